"""What the tables of Apache Iggy say, for the runtime that finds out by itself which of the layouts a conversation has."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from ..protocols.iggy import bodies, frames, replica_layouts
from ..protocols.iggy.bodies import VERSIONS
from ..protocols.iggy.candidates import TEXT_LAYOUTS
from ..protocols.iggy.commands import BY_CODE, LISTED, OPERATIONS, Forms
from ..protocols.iggy.layout_versions import CLASSIC, CLIENT_VERSIONS, EDGES, LAYOUTS, SERVER_VERSIONS, V5_VERSION
from ..protocols.iggy.statuses import statuses
from .lua import TypeWriter, quoted, table

COMPUTED: Mapping[int, str] = {
    id(VERSIONS): "packed_version",
    id(frames.OK): "status_name",
    id(replica_layouts.GROUPS): "group_name",
} | {id(statuses(layout)): "status_name" for layout in LAYOUTS}
"""Labels that the runtime finds: a version is identified by its number, a status by the layout of the conversation."""


def iggy_tables(types: TypeWriter) -> Iterator[str]:
    """All commands by layout, the headers before them, and the fields that identify the layout."""
    yield f"P.layouts = {table(map(quoted, LAYOUTS))}"
    yield f"P.classic = {len(CLASSIC)}"
    yield f"P.v5_version = {V5_VERSION}"
    yield f"P.text_layouts = {_set(map(quoted, TEXT_LAYOUTS))}"
    for name, hints in (("client_versions", CLIENT_VERSIONS), ("server_versions", SERVER_VERSIONS), ("edges", EDGES)):
        yield f"P.{name} = {_map((quoted(version), quoted(layout)) for version, layout in hints.items())}"
    yield f"P.operations = {_map((str(operation), str(code)) for operation, code in OPERATIONS.items())}"
    yield f"P.listed = {_set(map(str, sorted(LISTED)))}"
    yield f"P.statuses = {_map((str(code), _status(code)) for code in sorted({one for layout in LAYOUTS for one in statuses(layout)}))}"
    headers = {"ask": frames.asks(1)["L0"].layouts[0], "answer": frames.answer(1, "L0").layouts[0]}
    headers |= {"error": frames.refusal("L6").layouts[0], "eviction": frames.EVICTED.layouts[0], "other": frames.OTHER.layouts[0]}
    for name, layout in headers.items():
        yield f"P.{name} = {types.entries(layout.fields, '')}"
    for name, fields in frames.LONG_REQUESTS.items():
        yield f"P.request_{name} = {types.entries(fields, '')}"
    replies = {one.note.rpartition(" ")[2]: one for one in frames.documented() if one.name == "reply header"}
    for name, layout in replies.items():
        yield f"P.reply_{name} = {types.entries(layout.fields, '')}"
    levels = ((bodies.GLOBAL_PERMISSIONS, "streams"), (("stream_id", *bodies.STREAM_PERMISSIONS), "topics"))
    last = _rights(("topic_id", *bodies.TOPIC_PERMISSIONS))
    yield f"P.permissions = {table([*(_rights(names, below) for names, below in levels), last])}"
    results = next(one for one in frames.documented() if one.name == "results")
    yield f"P.results = {types.entries(results.fields, '')}"
    for code in (*BY_CODE, frames.OLD_LOGIN_CODE, frames.OLD_LOGOUT_CODE, frames.OFFSET_ROUTING_CODE):
        command = frames.command_of(code)
        assert command is not None
        ask, answer = (_forms(types, rows) for rows in (command.request, command.response))
        yield f"P:command({code}, {quoted(command.name)}, {ask}, {answer})"
    yield from _replica_tables(types)


def _replica_tables(types: TypeWriter) -> Iterator[str]:
    """What replicas send each other: the header and the body of each command, and the bodies of Prepares by operation."""
    for command, name in replica_layouts.SENT.items():
        head = types.entries(replica_layouts.TABLES[command].head, "")
        body = types.entries(replica_layouts.BODY.get(command, ()), "")
        what = f"name = {quoted(name)}, kind = {quoted(replica_layouts.kind_of(command))}"
        yield f"P.replicas[{command}] = {{ {what}, head = {head}, body = {body} }}"
    for operation, fields in replica_layouts.PREPARED.items():
        yield f"P.prepared[{operation}] = {types.entries(fields, '')}"


def _forms(types: TypeWriter, by_layout: Mapping[str, Forms]) -> str:
    """The forms of a body, by the layout from which on it has them."""
    return table(f"{layout} = {table((types.entries(body, '', 4) for body in found), 2)}" for layout, found in by_layout.items())


def _status(code: int) -> str:
    """The names of a status, by the layout from which on they hold; empty where it has none or several."""
    names: dict[str, str] = {}
    for layout in LAYOUTS:
        name = statuses(layout).get(code, "")
        if name != next(reversed(names.values()), ""):
            names[layout] = name
    return _map((layout, quoted(name)) for layout, name in names.items())


def _rights(names: Iterable[str], below: str | None = None) -> str:
    """Rights of a user, what they are about before them; `below`: what has others of its own."""
    rows = [table((quoted(name), "uint32le" if name.endswith("_id") else "boolean")) for name in names]
    return table([*rows, *([] if below is None else [f"list = {quoted(below)}"])], 2)


def _set(values: Iterable[str]) -> str:
    return table(f"[{value}] = true" for value in values)


def _map(rows: Iterable[tuple[str, str]]) -> str:
    return table(f"{key} = {value}" if key.isidentifier() else f"[{key}] = {value}" for key, value in rows)
