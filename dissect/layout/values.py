"""How values are rendered, the same in the generated decoders, in the walk and in parts written by hand."""

from __future__ import annotations

import struct
from binascii import b2a_base64
from collections.abc import Callable
from typing import Any

from streamdump.errors import Malformed
from streamdump.layout.types import BytesAs

UNREADABLE = (struct.error, ValueError, LookupError, Malformed)
"""What reading a frame raises when its bytes do not fit; text that is not UTF-8 is a ValueError."""


def lossy(data: bytes) -> str:
    """What is valid UTF-8, `\\xNN` for the rest, a doubled backslash."""
    return data.replace(b"\\", b"\\\\").decode("utf-8", "backslashreplace")


def base64(data: bytes) -> str:
    return b2a_base64(data, newline=False).decode("ascii")


def omitted(data: bytes) -> str:
    return f"<{sized(len(data))}>"


def redacted(count: int) -> str:
    """What stands for a secret of `count` bytes."""
    return f"<redacted {count} bytes>"


def not_finite(value: float) -> str:
    return "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"


def sized(count: int) -> str:
    return f"{count} byte" if count == 1 else f"{count} bytes"


RENDER: dict[BytesAs, Callable[[bytes], Any]] = {"hex": bytes.hex, "base64": base64, "text": lossy, "omit": omitted, "raw": bytes}
"""By `Style.bytes_as`: what bytes become."""
