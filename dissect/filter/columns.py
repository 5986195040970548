"""The values of a record under chosen names."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from ..errors import UsageError
from ..model import Entry, Options, Record
from .grammar import Exists, parse, parts_of, shortened
from .names import AS_IN_TSHARK, DELTA, ENDPOINT, FRAME, RAW, RELATIVE, SHORT, Key, NameTable, Path, table_of
from .values import BEHIND, SHOWN, Earlier, collect, fields_of, split

HEADINGS = {**SHORT, **{name: f"{name}_ns" for name in (RELATIVE, DELTA)}}

Get = Callable[[Any], Any]


class Columns:
    """Chosen values of records, each as in the JSON; None where there is nothing."""

    def __init__(self, names: Sequence[str], getters: Sequence[dict[type, Get]], earlier: Earlier) -> None:
        self.headings = [HEADINGS.get(name, name) for name in names]
        """The names, with their unit where they have none."""
        self._getters = getters
        self._earlier = earlier

    def values(self, record: Record | Entry) -> list[Any]:
        """A value for each name."""
        kind = type(record)
        return [get[kind](record) if kind in get else None for get in self._getters]

    def begin(self, time_ns: int) -> None:
        """Count relative times from the first packet of the capture."""
        self._earlier.begin(time_ns)

    def learn(self, records: Iterable[Record | Entry]) -> None:
        """Learn from all records of a run in order, shown or not, before their values are requested."""
        self._earlier.learn(records)


def compile_columns(names: Sequence[str], options: Options | None = None, entries: bool = False) -> Columns:
    """Return the columns of records, or of `entries`, for these names; raise `UsageError`, with the nearest name, for an unknown one."""
    known = table_of(options, entries)
    earlier = Earlier()
    return Columns(names, [_getters(name, known, earlier) for name in names], earlier)


def _getters(name: str, known: NameTable, earlier: Earlier) -> dict[type, Get]:
    try:
        node = parse(name)
    except UsageError:
        node = None
    meaning = known.resolve(parts_of(name)) if isinstance(node, Exists) and node.name.text == name else None
    if name == RAW:
        raise UsageError(f"-e {name}: raw is for -Y only; -x prints the bytes")
    if meaning is None:
        raise UsageError(f"-e {shortened(name)}: no field has that name; {known.advice(known.nearest(name))}")
    getters = {record: _key(name, key, earlier) for record, key in meaning.keys.items()}
    if meaning.paths:
        of_key, of_fields = getters.get(known.records[0]), _fields(meaning.paths)
        getters[known.records[0]] = of_fields if of_key is None else lambda record: _first(of_key(record), of_fields(record))
    return getters


def _first(value: Any, other: Any) -> Any:
    return other if value is None else value


def _key(name: str, key: Key, earlier: Earlier) -> Get:
    if name == FRAME:
        return lambda record: record.packets[1]
    if name in AS_IN_TSHARK and key.kinds == {ENDPOINT}:
        # An address alone, as there
        return lambda record: split(getattr(record, AS_IN_TSHARK[name]))[0]
    if key.source.startswith(SHOWN):
        return lambda record: getattr(record, name)
    # A time has its text beside the number that is compared
    source = "r.time" if name == "time" else key.source
    get: Get = eval(f"lambda r: {source}", {"__builtins__": {}, **earlier.scope()})
    if source.startswith(BEHIND):
        return lambda record: _alone(get(record))
    return (lambda record: None if get(record) is None else msgspec.structs.asdict(get(record))) if key.struct else get


def _alone(values: list[Any]) -> Any:
    """Return the only one of these values, or all; None if there is none."""
    return values if len(values) > 1 else values[0] if values else None


def _fields(paths: Any) -> Get:
    every: dict[str, tuple[Path, ...]] = dict(paths)

    def get(record: Any) -> Any:
        present: list[Any] = []
        for path in every.get(record.protocol, ()):
            found: list[Any] = []
            several = collect(fields_of(record), path.steps, 0, found)
            if several and found:
                present.append(found)
            elif found:
                present.append(found[0])
        if len(present) < 2:
            return _alone(present)
        return [one for value in present for one in (value if isinstance(value, list) else [value])]

    return get
