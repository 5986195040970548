"""What the library raises."""

from __future__ import annotations


class StreamdumpError(Exception):
    """Base of every error that a user can cause; its text is one clear sentence."""


class CaptureError(StreamdumpError):
    """A file that is no capture, is damaged or cut off, or an interface that does not open.

    `file` is the name as the user gave it, `offset` the byte position in the (unpacked) file where reading
    ended, and `packet` the number of the last whole packet; None where there is none.
    """

    def __init__(self, reason: str, file: str | None = None, offset: int | None = None, packet: int | None = None) -> None:
        self.reason = reason
        self.file = file
        self.offset = offset
        self.packet = packet
        where = f"{file}: " if file is not None else ""
        at = []
        if packet is not None:
            at.append(f"after packet {packet}")
        if offset is not None:
            at.append(f"at byte {offset}")
        super().__init__(f"{where}{reason}{' (' + ', '.join(at) + ')' if at else ''}")


class MissingCodec(CaptureError):
    """A compressed capture whose decompressor is not installed (exit code 2, not 3)."""


class InterfaceError(CaptureError):
    """No permission to capture, no such interface, or one that went away (exit code 4)."""


class UsageError(StreamdumpError):
    """An option value or filter that cannot be carried out (exit code 2)."""


class ForeignState(UsageError):
    """The state of open conversations that another version of streamdump wrote, or that is damaged."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(f"the state of open conversations was written by another version of streamdump: {reason}")


class Malformed(Exception):
    """Bytes that do not fit their layout; becomes `Message.fault` in the dissector and never leaves it.

    `offset` counts from the start of `buffer` ("frame", or "unpacked" for a decompressed one).
    """

    def __init__(self, field: str, offset: int, reason: str, buffer: str = "frame") -> None:
        self.field = field
        self.offset = offset
        self.reason = reason
        self.buffer = buffer
        super().__init__(f"{field} at byte {offset}: {reason}")
