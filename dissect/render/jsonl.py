"""JSON Lines: the output contract. One record a line, keys in the order of the structs' members."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec

from .terminal import Palette

_ENCODER = msgspec.json.Encoder()

# What JSON allows raw and a terminal, an editor or a line splitter might act on, as UTF-8: DEL and C1, soft hyphen, the
# bidirectional, zero-width and other format characters, line and paragraph separators, the byte order mark, tags.
_ACTIVE = re.compile(
    rb"\x7f|\xc2[\x80-\x9f\xad]|\xd8\x9c|\xe1\xa0\x8e|\xe2\x80[\x8b-\x8f\xa8-\xae]|\xe2\x81[\xa0-\xaf]|\xef\xbb\xbf|\xef\xbf[\xb9-\xbb]"
    rb"|\xf3\xa0[\x80\x81][\x80-\xbf]"
)

_HARMLESS = bytes(range(0x7F))


def _escaped(block: bytes) -> bytes:
    if block.isascii() and b"\x7f" not in block:
        return block
    # Looking at each byte would take as long as all else about a finding, of which most have a µ
    return _ACTIVE.sub(_escape, block) if _ACTIVE.search(block.translate(None, _HARMLESS)) else block


def _escape(match: re.Match[bytes]) -> bytes:
    units = match[0].decode().encode("utf-16-be")
    return b"".join(b"\\u%04x" % int.from_bytes(units[at : at + 2], "big") for at in range(0, len(units), 2))


def encode(records: Sequence[Any]) -> bytes:
    """`records` as JSON Lines, each line ended."""
    return _escaped(_ENCODER.encode_lines(records))


def encode_value(value: Any) -> str:
    """One value as it is in a record's line."""
    return _escaped(_ENCODER.encode(value)).decode()


# A text may have millions of characters: a choice for each that could be taken back would be kept.
_TOKEN = re.compile(rb'("(?:[^"\\]++|\\.)*+")(:?)|(-?[0-9][0-9.eE+-]*)|(true|false|null)')


def painted(block: bytes, colours: Palette) -> bytes:
    """JSON Lines with keys, texts, numbers and the other values in the colours of a terminal."""
    key, text, number, other, reset = (code.encode() for code in (colours.ask, colours.answer, colours.warn, colours.bold, colours.reset))

    def token(match: re.Match[bytes]) -> bytes:
        said, colon, digits, word = match.groups()
        if said is None:
            return b"%b%b%b" % ((number, digits, reset) if word is None else (other, word, reset))
        return b"%b%b%b%b" % (key if colon else text, said, reset, colon)

    return _TOKEN.sub(token, block)
