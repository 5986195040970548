"""Allows a pipe to be read a second time, from a temporary file that no other process can open."""

from __future__ import annotations

import io
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import BinaryIO, cast

from ..errors import CaptureError
from .blocks import explain
from .files import CaptureReader, open_capture


def open_twice(name: str) -> tuple[CaptureReader, Callable[[], CaptureReader]]:
    """An input, and what opens that which was read of it again, from the start: a file from its name."""
    if name != "-" and (not Path(name).exists() or Path(name).is_file() or Path(name).is_dir()):
        return open_capture(name), partial(open_capture, name)
    spool = _Spool(name)
    return open_capture(cast(BinaryIO, spool), name=spool.name), lambda: open_capture(spool.again(), name=spool.name)


class _Spool:
    """Stores the bytes read from a stream."""

    def __init__(self, name: str) -> None:
        self.name = "standard input" if name == "-" else name
        try:
            stream = sys.stdin.buffer if name == "-" else cast(BinaryIO, io.FileIO(name, "r"))
        except OSError as error:
            raise CaptureError(explain(error), name) from error
        self._stream = stream
        self._read = getattr(stream, "read1", None) or stream.read
        self._kept = tempfile.TemporaryFile()  # noqa: SIM115

    def fileno(self) -> int:
        return self._stream.fileno()

    def read(self, size: int) -> bytes:
        data: bytes = self._read(size) or b""
        try:
            self._kept.write(data)
        except OSError as error:
            raise CaptureError(f"cannot be stored in {tempfile.gettempdir()} for a second reading: {explain(error)}", self.name) from error
        return data

    def again(self) -> BinaryIO:
        self._kept.seek(0)
        return cast(BinaryIO, self._kept)
