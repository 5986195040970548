"""Field tables: one declaration per message provides decoder, walk and documentation.

`decoder` is the fast path: values only, generated on first use, raises one of `UNREADABLE`. `walk` interprets the table, reports every
byte, and never raises. `read` tries the decoder, and on failure walks.
"""

from typing import Any

from ..model import Fault
from .docs import PartTable, describe, rows
from .generate import decoder, reader
from .spans import fast_walk
from .types import (
    Array,
    Bits,
    Blob,
    Choice,
    Custom,
    Entry,
    Field,
    Fixed,
    FixedText,
    Group,
    Labels,
    Layout,
    Number,
    Optional,
    Repeat,
    Rest,
    RestText,
    Since,
    Sized,
    Style,
    Text,
    Type,
    boolean,
    f32,
    f32le,
    f64,
    f64le,
    following,
    i8,
    i16,
    i16le,
    i32,
    i32le,
    i64,
    i64le,
    u8,
    u16,
    u16le,
    u32,
    u32le,
    u64,
    u64le,
    u128,
    u128le,
)
from .values import RENDER, UNREADABLE, redacted
from .walker import Walked, Walker, fault_of, walk

__all__ = [
    "RENDER",
    "UNREADABLE",
    "Array",
    "Bits",
    "Blob",
    "Choice",
    "Custom",
    "Entry",
    "Field",
    "Fixed",
    "FixedText",
    "Group",
    "Labels",
    "Layout",
    "Number",
    "Optional",
    "PartTable",
    "Repeat",
    "Rest",
    "RestText",
    "Since",
    "Sized",
    "Style",
    "Text",
    "Type",
    "Walked",
    "Walker",
    "boolean",
    "decoder",
    "describe",
    "f32",
    "f32le",
    "f64",
    "f64le",
    "fast_walk",
    "fault_of",
    "following",
    "i8",
    "i16",
    "i16le",
    "i32",
    "i32le",
    "i64",
    "i64le",
    "read",
    "read_frame",
    "reader",
    "redacted",
    "rows",
    "u8",
    "u16",
    "u16le",
    "u32",
    "u32le",
    "u64",
    "u64le",
    "u128",
    "u128le",
    "walk",
]


def read(
    layout: Layout, buf: bytes, start: int, end: int, style: Style, buffer: str = "frame"
) -> tuple[dict[str, Any], list[str], Fault | None]:
    """Return fields, notes and fault of the frame buf[start:end]; `buffer`: the buffer that offsets in the fault refer to."""
    try:
        fields = decoder(layout, style)(buf, start, end)
    except UNREADABLE:
        pass
    else:
        if "trailing" not in fields:
            return fields, [], None
    walked = walk(layout, buf, start, end, style, buffer=buffer)
    return walked.fields, walked.notes, walked.fault


def read_frame(
    layout: Layout, buf: bytes, start: int, end: int, style: Style, missing: str | None, detail: bool, buffer: str = "frame"
) -> Walked:
    """Return the result of `fast_walk`, without spans where nothing is missing and no `detail` is wanted."""
    if missing is not None or detail:
        return fast_walk(layout, buf, start, end, style, missing, buffer)
    fields, notes, fault = read(layout, buf, start, end, style, buffer)
    return Walked(fields, [], notes, fault)
