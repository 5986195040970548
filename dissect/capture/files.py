"""Opens captures: files, pipes and file objects, compressed or not, recognised by content, never by name."""

from __future__ import annotations

import contextlib
import io
import sys
from collections import deque
from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, BinaryIO, Self, cast

from ..errors import CaptureError, NoCapture
from ..model import Packet
from . import pcap, pcapng
from .blocks import Blocks, RawInput, explain, parts
from .unpack import packing

if TYPE_CHECKING:
    from .packet_processes import ProcessReader

NAMES = (".pcap", ".pcapng", ".cap")
PACKED = (".gz", ".zst", ".lz4", ".xz", ".bz2")

ARCHIVES = {
    (0, b"PK\3\4"): "a zip archive",
    (0, b"7z\xbc\xaf\x27\x1c"): "a 7z archive",
    (257, b"ustar"): "a tar archive",
}
"""By position and magic; they may have several files, and are not read."""


def named_as_capture(name: str) -> bool:
    """Return whether a name has the suffix of a capture, compressed or not."""
    for packed in PACKED:
        name = name.removesuffix(packed)
    return name.endswith(NAMES)


class CaptureReader:
    """The packets of one input in batches, to be read once."""

    def __init__(self, blocks: Blocks, path: str | Path | None = None) -> None:
        """`path`: the file opened for this reader, which closes it at the end."""
        self._blocks = blocks
        self._path = path
        self.name = blocks.name
        self.format = ""
        self.secrets: pcapng.Secrets = []
        """TLS key logs found so far, each with the number of packets before it; the consumer removes them."""
        self.context = blocks.context
        """Blocks that others depend on: see `Blocks`."""
        self.processes: ProcessReader | None = None
        """Processes of packets read so far, which only pcapng files state; the consumer removes them from `waiting`."""
        self._packets = self._begin()

    def _begin(self) -> Iterator[list[Packet]]:
        start = self._blocks.read(4)
        self._blocks.unread(start)
        magic = start[:4]
        if magic in pcap.MAGICS:
            self.format = "pcap"
            return pcap.read_packets(self._blocks)
        if magic == pcapng.MAGIC:
            # pcap files need not wait for it
            from .packet_processes import ProcessReader

            self.format, self.processes = "pcapng", ProcessReader()
            return pcapng.read_packets(self._blocks, self.secrets, self.processes)
        if not start:
            raise CaptureError("is empty", self.name)
        if magic in pcap.MODIFIED:
            raise CaptureError("is a modified (Kuznetzov) pcap file, which is not supported; convert it with editcap -F pcap", self.name)
        if any(known.startswith(magic) for known in (*pcap.MAGICS, *pcap.MODIFIED, pcapng.MAGIC)):
            raise CaptureError("is cut off in its first bytes", self.name, len(start))
        archive = next((name for (at, known), name in ARCHIVES.items() if start.startswith(known, at)), None)
        if archive is not None:
            raise NoCapture(f"is not a capture but {archive}; unpack it first", self.name)
        raise NoCapture(f"is not a capture: neither pcap nor pcapng starts with {start[:8].hex(' ')}", self.name)

    @property
    def packets(self) -> int:
        """Packets read so far."""
        return self._blocks.packets

    @property
    def bytes_read(self) -> int:
        """Bytes read from the input so far, before decompression."""
        return self._blocks.raw.count

    @property
    def bytes_total(self) -> int | None:
        """The size of the input, counted as `bytes_read`; None for a pipe."""
        return self._blocks.raw.total

    @property
    def is_pipe(self) -> bool:
        """Whether the input is a pipe, whose packets may arrive over a long time."""
        return self._blocks.raw.is_pipe

    def while_silent(self, idle: Callable[[], None]) -> None:
        """Call `idle` repeatedly while a pipe is silent."""
        self._blocks.raw.idle = idle

    @cached_property
    def last_secrets(self) -> int | None:
        """The number of packets before the last key log in the file, -1 if there is none; None for a pipe, where it is unknown. Reads the
        file a second time, up to the first damage."""
        if self.format != "pcapng":
            return -1
        if self._path is None or self._blocks.raw.identity is None:
            return None
        last = -1
        with contextlib.suppress(CaptureError), open_capture(self._path) as again:
            if again._blocks.raw.identity != self._blocks.raw.identity:
                return None
            for _ in again.batches():
                if again.secrets:
                    last = again.secrets[-1][0]
                    again.secrets.clear()
            if again.secrets:
                last = again.secrets[-1][0]
        return last

    def watch_places(self) -> deque[tuple[bytes, int]] | None:
        """Return a queue that receives the buffers of packets with their positions; None unless the input is an uncompressed file."""
        if not self._blocks.uncompressed_file:
            return None
        self._blocks.places = deque()
        return self._blocks.places

    def __iter__(self) -> Iterator[list[Packet]]:
        return self.batches()

    def batches(self, rows: int | None = None, size: int | None = None) -> Iterator[list[Packet]]:
        """Yield the packets in batches: those of a block of about `size` bytes, at most `rows`. A damaged input yields its complete
        packets, then raises the error."""
        if size is not None:
            self._blocks.limit_size(size)
        try:
            for packets in self._packets:
                yield from parts(packets, rows)
        finally:
            self.close()

    def close(self) -> None:
        """Close the input if `open_capture` opened it, as the end of reading does."""
        if self._path is not None:
            self._blocks.raw.close()

    def __del__(self) -> None:
        self.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def open_capture(source: str | Path | BinaryIO, *, name: str | None = None) -> CaptureReader:
    """Return a reader for a file, a FIFO, standard input (`-`) or a binary file object; raise `CaptureError` if it is not a capture."""
    path: str | Path | None = None
    stream: BinaryIO
    if source == "-":
        stream, name = sys.stdin.buffer, name or "standard input"
    elif isinstance(source, str | Path):
        name = name or str(source)
        try:
            stream = cast(BinaryIO, io.FileIO(source, "r"))
        except FileNotFoundError as error:
            raise CaptureError("no such file", name) from error
        except OSError as error:
            raise CaptureError("is a directory" if isinstance(error, IsADirectoryError) else explain(error), name) from error
        path = source
    else:
        stream, name = source, name or str(getattr(source, "name", "input"))
    raw = RawInput(stream, name)
    try:
        return CaptureReader(Blocks(raw, packing(raw)), path)
    except BaseException:
        if path is not None:
            raw.close()
        raise
