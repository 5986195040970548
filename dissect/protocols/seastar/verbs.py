"""Names of verbs, which only the application knows: `--verbs scylla`, or a file of `number = name`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ...errors import UsageError
from . import verbs_scylla

BUILT_IN = ("scylla",)

NO_WAIT = "[no-wait]"
"""Behind a name in a file: calls of this verb are not answered."""

LARGEST = (1 << 64) - 1


class Verbs(dict[int, str]):
    """Verb numbers and names; `one_way`: verbs that are not answered."""

    def __init__(self, names: Mapping[int, str], one_way: frozenset[int] = frozenset()) -> None:
        super().__init__(names)
        self.one_way = one_way


SCYLLA = Verbs(verbs_scylla.NAMES, verbs_scylla.ONE_WAY)


def load_verbs(name_or_path: str) -> Verbs:
    """The verbs that an application or a file of lines `number = name` names; a name may end in `[no-wait]`, `#` starts a comment."""
    if name_or_path in BUILT_IN:
        return SCYLLA
    try:
        text = Path(name_or_path).read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(f"{name_or_path}: verb names must be UTF-8 text") from error
    except (OSError, ValueError) as error:
        known = ", ".join(BUILT_IN)
        reason = getattr(error, "strerror", None) or str(error)
        raise UsageError(f"--verbs takes {known} or a file of lines `number = name`; {name_or_path!r} is neither ({reason})") from error
    return parse_verbs(text, name_or_path)


def parse_verbs(text: str, source: str) -> Verbs:
    names: dict[int, str] = {}
    one_way: set[int] = set()
    for number, line in enumerate(text.splitlines(), 1):
        entry = line.partition("#")[0].strip()
        if not entry:
            continue
        left, equals, name = (part.strip() for part in entry.partition("="))
        if not equals or not name:
            raise UsageError(f"{source} line {number}: {entry!r} is not `number = name`")
        try:
            verb = int(left, 0)
        except ValueError as error:
            raise UsageError(f"{source} line {number}: {left!r} is not a number") from error
        if not 0 <= verb <= LARGEST:
            raise UsageError(f"{source} line {number}: {left} is not a 64-bit verb")
        if verb in names:
            raise UsageError(f"{source} line {number}: verb {verb} is named twice")
        if name.endswith(NO_WAIT):
            name = name.removesuffix(NO_WAIT).rstrip()
            one_way.add(verb)
        if not name:
            raise UsageError(f"{source} line {number}: verb {verb} has no name")
        names[verb] = name
    return Verbs(names, frozenset(one_way))
