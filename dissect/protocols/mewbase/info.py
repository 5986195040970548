"""The lines of text of mewbase's messages, and which of them are errors."""

from __future__ import annotations

from typing import Any, Final

from ...bson import Special
from ...model import Message
from ..protocol import Traffic
from ..records import LOST


def failed(message: Message) -> bool:
    body = message.fields.get("frame")
    return type(body) is dict and body.get("ok") is False


SAID: Final = 72
"""Characters of a document in a line."""


def info(message: Message) -> str:
    """The fields of a frame that tell most."""
    fields = message.fields
    body = fields.get("frame")
    if type(body) is not dict:
        return ""
    name = message.name
    parts: list[str] = []
    get = body.get
    if name == "RECEV" or name == "ACKEV":
        parts.append(f"subscription {_brief(get('subID', get('SubID')))}")
        if "pos" in body:
            parts.append(f"pos {_brief(body['pos'])}")
        if "event" in body:
            parts.append(_brief(body["event"]))
        elif "bytes" in body:
            parts.append(f"{_brief(body['bytes'])} bytes")
    elif name == "QUERY" or name == "QUERYRESULT" or name == "QUERYACK" or name == "QUERYRESPONSE":
        parts.append(f"query {_brief(get('queryID'))}")
        if "errCode" in body:
            parts.append(_error(body))
        parts += [form.format(_brief(body[key])) for key, form in _OF_QUERIES.items() if key in body]
        if get("last"):
            parts.append("last")
    else:
        if message.id is not None:
            parts.append(f"#{message.id}")
        if message.kind == "response":
            parts.append("OK" if get("ok") else _error(body))
        parts += [
            f"{_LEADS.get(key, f'{key} ')}{_brief(value)}"
            for key, value in body.items()
            if key not in _SAID_ALREADY and value is not None and _UNSET.get(key) != value
        ]
    return "  ".join(parts)


_OF_QUERIES: Final = {
    **dict.fromkeys(("name", "binder", "params", "matcher", "docID", "result"), "{}"),
    "numResults": "{} results",
    "bytes": "{} bytes",
}
_SAID_ALREADY: Final = frozenset(("ok", "rID", "errCode", "errCode_label", "errMsg", "sequence"))
_UNSET: Final = {"sessID": -1, "startPos": -1, "startTimestamp": 0}
"""What clients write for a field that is not used."""
_LEADS: Final = {
    "channel": "",
    "event": "",
    "name": "",
    "command": "",
    "sessID": "session ",
    "startPos": "from pos ",
    "startTimestamp": "from time ",
    "durableID": "durable ",
    "filterName": "filter ",
    "subID": "subscription ",
    "SubID": "subscription ",
}


def _error(body: dict[str, Any]) -> str:
    label = body.get("errCode_label")
    code = _brief(body.get("errCode", "?"))
    refusal = f"refused {code} {label}" if label else f"refused {code}"
    return f"{refusal}: {_brief(body['errMsg'])}" if "errMsg" in body else refusal


def _brief(value: Any) -> str:
    """A value in at most about `SAID` characters."""
    if type(value) is str:
        return value if len(value) <= SAID else f"{value[: SAID - 1]}…"
    if isinstance(value, dict | list):
        out: list[str] = []
        _pour(value, out, SAID)
        text = "".join(out)
        return text if len(text) <= SAID else f"{text[: SAID - 1]}…"
    if type(value) is bool:
        return "true" if value else "false"
    return "null" if value is None else str(value)


def _pour(value: Any, out: list[str], room: int) -> int:
    """Write `value` until there is no more room; returns the room left."""
    if isinstance(value, Special) and len(value) == 1:
        value = next(iter(value.values()))
    if isinstance(value, dict):
        before, closing = "{", "}"
        items: Any = value.items()
    elif type(value) is list:
        before, closing = "[", "]"
        items = ((None, item) for item in value)
    else:
        text = f'"{value[:SAID]}"' if type(value) is str else _brief(value)
        out.append(text)
        return room - len(text)
    if not value:
        out.append(before)
    for key, item in items:
        lead = before if key is None else f"{before}{key[:SAID]}="
        # Most are of these two, and a call for each costs more than all the rest
        kind = type(item)
        text = f'{lead}"{item[:SAID]}"' if kind is str else f"{lead}{item}" if kind is int else lead
        out.append(text)
        room -= len(text)
        if room > 0 and kind is not str and kind is not int:
            room = _pour(item, out, room)
        if room <= 0:
            break
        before = " "
    out.append(closing)
    return room - 1


TEXT: Final = """\
A frame is one BSON document {type, frame}; fields are those of BSON, so the tables name them without byte positions.
Values are printed as MongoDB Extended JSON v2, relaxed.

The length in front counts itself. (The protocol's own document says that it does not; a sender that does it that way is read, and a
note says so.) There was no version on the wire: `conversations` shows the dates between which the frames of a connection were in
use, as 2016-12-01..2017-06-28.

RESPONSE answers by rID, the one to CONNECT by being first. Before December 2016 there was no rID and answers came in the order of
requests; where frames were missed that is unsure, and a note says so. Once a rID was seen, a frame whose rID is cut off stays
unpaired. QUERYRESULT answers by queryID until `last`; a query that got results is answered even where that one is missing. authInfo,
username and password are secrets, but a `user` or `username` in the authInfo of a complete CONNECT."""


def traffic(message: Message) -> Traffic | None:
    """What of the users' messages a message carries."""
    frame = message.fields.get("frame")
    position = frame.get("pos") if isinstance(frame, dict) else None
    if message.name in ("PUB", "EMIT"):
        return Traffic(1)
    return Traffic(0, 1, offset=position if type(position) is int else None) if message.name == "RECEV" else None


def unanswered(request: Message, time_ns: int) -> str | None:
    """That the id of a request could not be read, by which it may have been answered."""
    return LOST if request.id is None and request.fault is not None and request.name != "CONNECT" else None
