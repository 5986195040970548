"""Where frames of mewbase begin and end: the envelope, and how far bytes are from being one.

The envelope is a BSON document {type: string, frame: document}, nearly always with its fields in this order:

    n  n  n  n   02 't' 'y' 'p' 'e' 00   L L L L  type 00   03 'f' 'r' 'a' 'm' 'e' 00   m m m m ... 00 00

Real programs count the length n itself into n, so that n = 22 + L + m. The protocol's document says that n is "the length of the
rest"; a program that follows it sends 4 less, in n alone or in every document inside.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from typing import Final

from ...bson import ELEMENT, TYPES, UNREADABLE, read, walk
from ...model import VALUES
from ..dissector import SEARCH_WINDOW
from .layouts import FRAMES, FrameTable

TYPE: Final = b"\x02type\x00"
FRAME: Final = b"\x03frame\x00"

SHORTEST: Final = 27
"""Bytes of a frame with an empty type and an empty document."""

ODD_LIMIT: Final = 1 << 20
"""Bytes of a frame with its fields in another order, which has to be complete to be believed."""

LONG: Final = SEARCH_WINDOW - 64
"""A frame longer than this is believed without the next one, which the search would not live to see."""

ODD_NAME: Final = 64
"""Bytes of the name of the first field of such a frame."""

HEADS: Final[dict[bytes, FrameTable]] = {
    TYPE + (len(table.name) + 1).to_bytes(4, "little") + table.name.encode() + b"\0" + FRAME: table for table in FRAMES
}
"""By all that stands between the two lengths of a frame."""

Shift = tuple[int, int]
"""What has to be added to the length of the frame, and of the documents inside, to get their sizes."""

COUNTED: Final[Shift] = (0, 0)
REST: Final[Shift] = (4, 0)
REST_INSIDE: Final[Shift] = (4, 4)

_INT32 = Struct("<i").unpack_from

YES, MORE, NO = 1, 0, -1

LONGEST_HEAD: Final = 64
"""Bytes of a frame that `candidate` examines, or more, where it is not complete."""

READ: Final = 16
"""What a byte costs of a document that is read to see whether it is one."""

_CUT: Final = "the rest is not there yet"


def head(data: bytes, at: int) -> tuple[FrameTable, int] | None:
    """The frame type whose head stands behind the length at `at`, and the position of the inner document."""
    if len(data) - at < 14:
        return None
    inner = at + 21 + data[at + 10]
    table = HEADS.get(data[at + 4 : inner])
    return None if table is None else (table, inner)


def reads(data: bytes, at: int, end: int, shift: Shift) -> bool:
    """Whether data[at:end] is a document without damage."""
    if shift == COUNTED and end - at <= ELEMENT * VALUES:
        try:
            read(data, at, end)
        except UNREADABLE:
            pass
        else:
            return True
    walked = walk(data, at, end, shift=shift[0], inner_shift=shift[1], spans=False)
    return walked.fault is None and walked.trailing is None


def first_length(data: bytes, at: int) -> tuple[int, Shift | None]:
    """The size of a frame of a side whose way of counting is not known yet, and that way if the frame shows it.

    For a frame that begins as real programs' do: only its own bytes are examined; 0 if more of them are needed.
    """
    size = int(_INT32(data, at)[0])
    have = len(data) - at
    if have < 14:
        return 0, None
    text = _INT32(data, at + 10)[0]
    if not 0 < text <= min(ODD_NAME, size - 25):
        return size, None
    if have < 25 + text:
        return 0, None
    if data[at + 14 + text : at + 21 + text] != FRAME:
        return size, None
    inner = _INT32(data, at + 21 + text)[0]
    if size == 22 + text + inner:
        other = REST_INSIDE
    elif size + 4 == 22 + text + inner:
        other = REST
    else:
        return size, COUNTED
    if have < size:
        return size, None
    if reads(data, at, at + size, COUNTED):
        return size, COUNTED
    walked = walk(data, at, at + size, size=size + 4, missing=_CUT, shift=other[0], inner_shift=other[1], resume=False, spans=False)
    if walked.fault is not None and walked.fault.reason == _CUT:
        # good as far as it goes, and its last four bytes are still to come
        return size + 4, other
    return size, None


def odd_length(data: bytes, at: int, shift: Shift) -> int:
    """The size of a frame that does not begin as real programs' frames do, if it reads, once all of it is there; 0 when more bytes are
    needed, -1 when no frame can begin at `at`."""
    size = int(_INT32(data, at)[0]) + shift[0]
    have = len(data) - at
    start = data[at + 4 : at + 10]
    if size < 5:
        return -1
    if size == 5:
        return -1 if start[0] else 5
    if size >= SHORTEST and len(start) < 6 and TYPE.startswith(start):
        return 0
    if start[0] not in TYPES or size > ODD_LIMIT:
        return -1
    room = min(5 + ODD_NAME, size)
    name = data.find(0, at + 5, at + room)
    if name < 0:
        return -1 if have >= room else 0
    if not data[at + 5 : name].isascii():
        return -1
    return size if have >= size else 0


def candidates(data: bytes, at: int, limit: int, end: int, final: bool, shift: Shift | None) -> Iterator[tuple[int, int, int]]:
    """Yield each place in data[at:limit] where four bytes and `TYPE` stand, with the result of `candidate` there."""
    while (found := data.find(TYPE, at + 4, limit)) >= 0:
        yield found - 4, *candidate(data, found - 4, end, final, shift)
        at = found - 3


def candidate(data: bytes, at: int, end: int, final: bool, shift: Shift | None) -> tuple[int, int]:
    """Whether a frame begins at `at`, where `TYPE` stands behind four bytes: (YES, MORE or NO, size of the frame).

    The type has to be known and the lengths to agree; the next frame, or the end of a segment at `end`, has to follow. Where no
    byte will follow (`final`), what fits so far is enough.
    """
    lacking = NO if final else MORE
    if end < at + 14:
        return lacking, 0
    text = _INT32(data, at + 10)[0]
    if not 0 < text < 18:
        return NO, 0
    if end < at + 25 + text:
        return lacking, 0
    size, inner = _INT32(data, at)[0], _INT32(data, at + 21 + text)[0]
    if data[at + 4 : at + 21 + text] not in HEADS or inner < 1:
        return NO, 0
    if size == 22 + text + inner:
        sizes = [size, size + 4] if shift is None else [size + shift[0]]
    elif size + 4 == 22 + text + inner and shift in (None, REST):
        sizes = [size + 4]
    else:
        return NO, 0
    best = NO
    for length in sizes:
        following = at + length
        if following == end or (following > end and (final or length > LONG)):
            return YES, length
        if following > end:
            best = MORE
        elif data.startswith(TYPE, following + 4, end):
            return YES, length
        elif end < following + 10 and TYPE.startswith(data[following + 4 : end]):
            if final:
                return YES, length
            best = MORE
    return best, sizes[0]
