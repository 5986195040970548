"""The frames of mewbase, as its public history from 2016-09-26 to 2017-09-29 has them; there was no version on the wire.

A frame is a BSON document {type, frame}; BSON names its own fields, so these tables do not say where bytes are but which
fields a frame has, which of them must be there, and from when to when. Where client and server were seen to differ from the
protocol's own document, the note says so. They are no rows of the table language: in that the order of the rows is the order
of the bytes, and from a version the fields follow; here names may stand anywhere, and from the fields the date follows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, Literal

import msgspec

from ...bson import NAME_SHOWN, Special

CLIENT, SERVER = "client", "server"

UNKNOWN_NOTED: Final = 8
"""Unknown fields of a frame that are noted one by one."""

SECRET_NAMES: Final = frozenset(("authInfo", "username", "password"))

USER_NAMES: Final = ("user", "username")
"""The fields of authInfo that are shown, if it can be read completely."""

PLAIN_LIMIT: Final = 64
"""Characters of a version or of the name of a user."""

ERRORS: Final = {
    1: "authentication failed",
    2: "not authorised",
    3: "no such channel",
    4: "no such binder",
    5: "no such query",
    6: "command not processed",
    100: "server error",
}


class Wire(msgspec.Struct, frozen=True, eq=False):
    """What a field holds: its name for people, and the classes that its value has once read."""

    name: str
    classes: frozenset[type]


NULL: Final = type(None)
INT32: Final = Wire("int32", frozenset((int, float)))
"""Servers accept every number type of BSON as an integer, so a number is all that can be asked for."""
INT64: Final = Wire("int64", INT32.classes)
STRING: Final = Wire("string", frozenset((str,)))
BOOLEAN: Final = Wire("boolean", frozenset((bool, int)))
DOCUMENT: Final = Wire("document", frozenset((dict, list)))
STRINGS: Final = Wire("array of string", frozenset((list,)))
STRING_OR_NULL: Final = Wire("string or null", STRING.classes | {NULL})
DOCUMENT_OR_NULL: Final = Wire("document or null", DOCUMENT.classes | {NULL})
INT64_OR_NULL: Final = Wire("int64 or null", INT64.classes | {NULL})
CODE: Final = Wire("int32", INT32.classes | STRING.classes)

Need = Literal["mandatory", "mandatory since 2016-12-01", "optional"]
MUST: Final[Need] = "mandatory"
LATER: Final[Need] = "mandatory since 2016-12-01"
MAY: Final[Need] = "optional"


class FrameField(msgspec.Struct, frozen=True, eq=False):
    """A field of a frame. `instead_of`: an older or alternative name of a mandatory field, which may stand in its place.

    `since` and `until`: the field shows that both programs are of such a date.
    """

    name: str
    wire: Wire
    need: Need
    note: str = ""
    instead_of: str | None = None
    since: str = ""
    until: str = ""


class FrameTable(msgspec.Struct, frozen=True, eq=False):
    """The fields of one frame type, in the order in which the last programs write them."""

    name: str
    side: str
    kind: Literal["request", "response", "one_way"]
    fields: tuple[FrameField, ...]
    note: str = ""
    since: str = ""
    until: str = ""

    @property
    def labels(self) -> dict[str, dict[int, str]]:
        """The fields that have a `..._label` beside them."""
        return {"frame.errCode": ERRORS} if any(entry.name == "errCode" for entry in self.fields) else {}

    def rows(self) -> list[tuple[str, str, str]]:
        """Path, type and remark of every field, for the documentation."""
        rows = [("size", "int32", "bytes of the frame, these four included"), ("type", "string", f"always {self.name}")]
        rows.append(("frame", "document", ""))
        for entry in self.fields:
            said = [f"instead of {entry.instead_of}" if entry.instead_of else entry.need]
            if entry.since and entry.since not in entry.need:
                said.append(f"since {entry.since}")
            if entry.until:
                said.append(f"until {entry.until}")
            if entry.name in SECRET_NAMES:
                said.append("secret")
            if entry.note:
                said.append(entry.note)
            rows.append((f"frame.{entry.name}", entry.wire.name, "; ".join(said)))
        return rows


RID: Final = FrameField("rID", INT32, LATER, "chosen by the client, comes back in the answer", since="2016-12-01")
CHANNEL: Final = (
    FrameField("channel", STRING, MUST),
    FrameField("streamName", STRING, MAY, instead_of="channel", until="2016-10-07"),
    FrameField("eventType", STRING, MAY, until="2016-10-06"),
)
SUBSCRIPTION: Final = (
    FrameField("subID", INT32, MUST, "counted by the server from 0 per connection"),
    FrameField("SubID", INT32, MAY, instead_of="subID", until="2016-11-23"),
)
QUERY_ID: Final = FrameField("queryID", INT32, MUST, "from the same counter as rID")
OK: Final = FrameField("ok", BOOLEAN, MUST)
FAILURE: Final = (
    FrameField("errCode", CODE, MAY, "the document says string, but no such server was found"),
    FrameField("errMsg", STRING, MAY),
)
SESSION: Final = FrameField("sessID", INT32, MAY, "counts the producers of a client; -1: none")


def _publish(name: str, note: str, since: str = "", until: str = "") -> FrameTable:
    return FrameTable(name, CLIENT, "request", (*CHANNEL, SESSION, FrameField("event", DOCUMENT, MUST), RID), note, since, until)


def _transaction(name: str) -> FrameTable:
    note = "the document promises an answer; real servers throw, and never read a frame of this connection correctly again"
    return FrameTable(name, CLIENT, "request", (FrameField("sessID", INT32, MUST), RID), note)


FRAMES: Final = (
    FrameTable(
        "CONNECT",
        CLIENT,
        "request",
        (
            FrameField("version", STRING, MUST, 'always "0.1"; later servers refuse a greater number'),
            FrameField("authInfo", DOCUMENT_OR_NULL, MAY, since="2016-11-28"),
            FrameField("username", STRING_OR_NULL, MAY, "only in the document; no client sent it here"),
            FrameField("password", STRING_OR_NULL, MAY, "only in the document; no client sent it here"),
        ),
        "must come first; answered by a RESPONSE without rID",
    ),
    FrameTable(
        "RESPONSE",
        SERVER,
        "response",
        (
            OK,
            *FAILURE,
            FrameField("result", DOCUMENT_OR_NULL, MAY, "to FINDBYID", since="2017-01-13"),
            FrameField("binders", STRINGS, MAY, "to LISTBINDERS", since="2017-01-03"),
            FrameField("channels", STRINGS, MAY, "to LISTCHANNNELS", since="2017-01-03"),
            FrameField("exists", BOOLEAN, MAY, "to CREATEBINDER and CREATECHANNEL", since="2017-01-03"),
            RID,
        ),
        "in any order since 2016-12-01, in that of the requests before; the one to CONNECT has no rID",
    ),
    _publish("PUB", "PUBLISH in the document, which servers drop", since="2016-11-02"),
    _publish("EMIT", "the former name of PUB", until="2016-11-02"),
    _transaction("STARTTX"),
    _transaction("COMMITTX"),
    _transaction("ABORTTX"),
    FrameTable(
        "SUBSCRIBE",
        CLIENT,
        "request",
        (
            *CHANNEL,
            FrameField("startPos", INT64_OR_NULL, MAY, "-1: none"),
            FrameField("startSeq", INT64_OR_NULL, MAY, until="2016-10-07"),
            FrameField("startSequence", INT64_OR_NULL, MAY, until="2016-09-28"),
            FrameField("startTimestamp", INT64_OR_NULL, MAY, "0: none"),
            FrameField("durableID", STRING_OR_NULL, MAY),
            FrameField("filterName", STRING_OR_NULL, MAY, since="2017-06-28"),
            FrameField("matcher", DOCUMENT_OR_NULL, MAY, until="2017-06-28"),
            RID,
        ),
        "answered by SUBRESPONSE, on failure by RESPONSE",
    ),
    FrameTable(
        "SUBRESPONSE",
        SERVER,
        "response",
        (OK, FrameField("subID", INT32, MAY, "the new subscription"), *FAILURE, RID),
    ),
    FrameTable("UNSUBSCRIBE", CLIENT, "request", (*SUBSCRIPTION, RID)),
    FrameTable("SUBCLOSE", CLIENT, "request", (*SUBSCRIPTION, RID), since="2016-11-23"),
    FrameTable(
        "RECEV",
        SERVER,
        "one_way",
        (
            FrameField("subID", INT32, MUST),
            FrameField("event", DOCUMENT, MUST, "its fields are not in the publisher's order"),
            FrameField("pos", INT64, MUST),
            FrameField("seqNo", INT64, MAY, instead_of="pos", until="2016-10-07"),
            FrameField("timestamp", INT64, MUST, "ms since 1970"),
            FrameField("streamName", STRING, MAY, until="2016-10-07"),
            FrameField("eventType", STRING, MAY, until="2016-10-06"),
        ),
        "may come before the answer to the PUB that caused it, and twice after a durable subscription is resumed",
    ),
    FrameTable(
        "ACKEV",
        CLIENT,
        "one_way",
        (
            *SUBSCRIPTION,
            FrameField("pos", INT64, MAY, since="2016-11-23"),
            FrameField("bytes", INT32, MAY, "size of the RECEV less 4; 1234 in October and November 2016"),
        ),
    ),
    FrameTable(
        "QUERY",
        CLIENT,
        "request",
        (
            FrameField("name", STRING, MUST, since="2017-01-13"),
            FrameField("binder", STRING, MAY, instead_of="name", until="2017-01-13"),
            FrameField("params", DOCUMENT_OR_NULL, MUST, since="2017-01-13"),
            FrameField("matcher", DOCUMENT_OR_NULL, MAY, instead_of="params", until="2017-01-13"),
            FrameField("docID", STRING_OR_NULL, MAY, instead_of="params", since="2016-11-17", until="2017-01-13"),
            QUERY_ID,
            RID,
        ),
        "answered by QUERYRESULT with its queryID; nothing answers its rID",
    ),
    FrameTable(
        "QUERYRESULT",
        SERVER,
        "response",
        (
            FrameField("ok", BOOLEAN, MAY, since="2017-01-03"),
            QUERY_ID,
            FrameField("result", DOCUMENT_OR_NULL, MAY),
            FrameField("last", BOOLEAN, LATER, "may never come true if the query filters out the last document", since="2016-11-17"),
            *FAILURE,
        ),
    ),
    FrameTable(
        "QUERYACK",
        CLIENT,
        "one_way",
        (QUERY_ID, FrameField("bytes", INT32, MAY, "size of the QUERYRESULT less 4", since="2016-11-17")),
    ),
    FrameTable(
        "QUERYRESPONSE",
        SERVER,
        "response",
        (QUERY_ID, FrameField("numResults", INT32, MUST, "number of QUERYRESULT that follow"), FrameField("ok", BOOLEAN, MAY), *FAILURE),
        until="2016-11-17",
    ),
    FrameTable(
        "FINDBYID",
        CLIENT,
        "request",
        (FrameField("binder", STRING, MUST), FrameField("dodID", STRING, MUST, "spelt like this by the programs"), RID),
        since="2017-01-13",
    ),
    FrameTable(
        "PING",
        CLIENT,
        "one_way",
        (
            FrameField("type", INT32, MAY, "8: request, 0: reply; for two weeks in March 2017 on a side branch, then empty"),
            FrameField("sequence", INT64, MAY, "the reply has one more"),
        ),
        "every 10 s by default, never answered",
    ),
    FrameTable("LISTBINDERS", CLIENT, "request", (RID,), since="2017-01-03"),
    FrameTable("CREATEBINDER", CLIENT, "request", (FrameField("name", STRING, MUST), RID), since="2017-01-03"),
    FrameTable("LISTCHANNNELS", CLIENT, "request", (RID,), "with three N; servers drop LISTCHANNELS", since="2017-01-03"),
    FrameTable("CREATECHANNEL", CLIENT, "request", (FrameField("name", STRING, MUST), RID), since="2017-01-03"),
    FrameTable(
        "COMMAND", CLIENT, "request", (FrameField("name", STRING, MUST), FrameField("command", DOCUMENT, MUST), RID), since="2017-01-13"
    ),
)


def secret_in(table: FrameTable | None, shown: frozenset[str] = frozenset()) -> Callable[[str, bool], bool]:
    """Return whether a path of a frame of this type, or of an unknown one, is never shown, with all below it; of CONNECT all but those in
    `shown`."""
    if table is None:
        return _secret_by_name
    if table.name != "CONNECT":
        return _secret_elsewhere
    opened = {"frame", *("frame.authInfo" for path in shown if path.startswith("frame.authInfo."))}
    return lambda path, nested: path not in shown and not (nested and path in opened)


def shown_in_connect(document: dict[str, Any], complete: bool) -> frozenset[str]:
    """The paths of CONNECT that are shown: their values are short and printable, so no length there includes what follows."""
    shown = {"type"} if _is_plain(document.get("type")) else set()
    frame = document.get("frame")
    if type(frame) is dict:
        if _is_plain(frame.get("version")):
            shown.add("frame.version")
        auth = frame.get("authInfo")
        if complete and type(auth) is dict:
            shown |= {f"frame.authInfo.{name}" for name in USER_NAMES if type(auth.get(name)) is str and _is_plain(auth[name])}
    return frozenset(shown)


def _is_plain(value: Any) -> bool:
    return type(value) in (int, float) or (type(value) is str and len(value) <= PLAIN_LIMIT and value.isprintable())


def is_strange(name: str) -> bool:
    """Whether CONNECT has no field of this name; what its authInfo holds is up to the user."""
    return name not in _NAMES


def _secret_elsewhere(path: str, _nested: bool) -> bool:
    return path.startswith("frame.") and path[6:] in SECRET_NAMES


def _secret_by_name(path: str, _nested: bool) -> bool:
    """Also where a sender forgets the inner document, or damage has hit a name."""
    return path.rpartition(".")[2] in SECRET_NAMES


_NAMES: Final = frozenset(("type", "frame", "version", *SECRET_NAMES, *USER_NAMES))

BY_NAME: Final = {frame.name: frame for frame in FRAMES}


class Shape(msgspec.Struct, frozen=True, eq=False):
    """What the names and classes of a frame's fields tell, whatever their values."""

    odd: tuple[str, ...]
    """Notes on fields that are unknown or hold something else than they should."""
    missing: tuple[str, ...]
    """Notes on mandatory fields that are not there."""
    later: tuple[str, ...]
    """Fields not there that are mandatory since 2016-12-01."""
    since: str
    until: str
    """The dates that these fields are seen at, "" for no bound."""
    streams: bool
    """Whether it may name a stream, or refer to one."""


def shape(table: FrameTable, names: Sequence[str], classes: Sequence[type]) -> Shape:
    """The fields of one frame held against its table."""
    entries = {entry.name: entry for entry in table.fields}
    replaced = {entry.instead_of for entry in table.fields if entry.name in names}
    odd: list[str] = []
    unknown: list[str] = []
    since, until = [table.since], [table.until]
    for name, kind in zip(names, classes, strict=True):
        entry = entries.get(name)
        if entry is None:
            unknown.append(name[:NAME_SHOWN])
            continue
        if kind not in entry.wire.classes:
            odd.append(f"{name} is {_kind(kind)}, not {entry.wire.name}")
        since.append(entry.since)
        until.append(entry.until)
    odd += [f"{table.name} has no field {name}" for name in unknown[:UNKNOWN_NOTED]]
    if len(unknown) > UNKNOWN_NOTED:
        odd.append(f"and {len(unknown) - UNKNOWN_NOTED} more fields that {table.name} does not have")
    absent = [entry for entry in table.fields if entry.name not in names and entry.name not in replaced]
    missing = tuple(f"mandatory field {entry.name} is missing" for entry in absent if entry.need == MUST)
    later = tuple(entry.name for entry in absent if entry.need == LATER)
    streams = table.name == "SUBSCRIBE" or not {"name", "channel", "streamName", "subID", "SubID"}.isdisjoint(names)
    return Shape(tuple(odd), missing, later, max(since), min(filter(None, until), default=""), streams)


_KINDS: Final[dict[type, str]] = {
    int: "a number",
    float: "a number",
    str: "a string",
    bool: "a boolean",
    dict: "a document",
    list: "an array",
    NULL: "null",
    Special: "of a special type",
}


def _kind(kind: type) -> str:
    return _KINDS.get(kind, kind.__name__)


def labelled(body: dict[str, Any]) -> dict[str, Any]:
    """`body` with the meaning of its error code behind it."""
    fields: dict[str, Any] = {}
    for name, value in body.items():
        fields[name] = value
        if name == "errCode":
            fields["errCode_label"] = ERRORS.get(int(value)) if type(value) in (int, float) else None
    return fields
