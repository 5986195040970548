"""Inputs of every kind, and those that are no captures."""

from __future__ import annotations

import gzip
import io
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from streamdump.capture.files import open_capture
from streamdump.errors import CaptureError
from tests.support.frames import START_NS, Packet, ethernet, ip4, pcap, pcapng, tcp

PACKETS = [Packet(ethernet(ip4(tcp(bytes(n), seq=n))), START_NS + n) for n in range(20)]
PLAIN = pcap(PACKETS, nano=True)


def test_a_file_by_name_and_by_path(tmp_path: Path) -> None:
    path = tmp_path / "named.txt"
    path.write_bytes(PLAIN)
    for source in (str(path), path):
        with open_capture(source) as opened:
            assert (opened.name, opened.format, opened.bytes_total) == (str(path), "pcap", len(PLAIN))
            assert sum(map(len, opened)) == opened.packets == 20
            assert opened.bytes_read == len(PLAIN)
    assert open_capture(path, name="shown").name == "shown"


def test_file_objects_of_every_kind(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(PLAIN)
    with path.open("rb") as buffered, path.open("rb", buffering=0) as plain, gzip.open(tmp_path / "y", "wb") as packed:
        packed.write(PLAIN)
        packed.close()
        with gzip.open(tmp_path / "y") as unpacked:
            for stream in (buffered, plain, unpacked, io.BytesIO(PLAIN)):
                assert sum(map(len, open_capture(stream))) == 20  # type: ignore[arg-type]
    assert open_capture(io.BytesIO(PLAIN)).name == "input"


def test_forced_batches() -> None:
    sizes = [len(batch) for batch in open_capture(io.BytesIO(PLAIN)).batches(7)]
    assert sizes == [7, 7, 6]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "is empty"),
        (b"hello world\n", "is not a capture"),
        (b"\xd4\xc3\xb2", "cut off"),
        (b"\x0a\x0d", "cut off"),
        (b"\x1f\x8b", "cut off"),
        (b"\x1f\x8bwhatever", "gzip data is damaged"),
        (b"x", "is not a capture"),
        (bytes(100), "is not a capture"),
        (b"\x1b[31mred", "is not a capture"),
        (PLAIN[:23], "cut off in the file header"),
        (pcapng([])[:20], "cut off in a block"),
        (b"BZh9" + bytes(50), "bzip2 data is damaged"),
        (bytes.fromhex("fd377a585a00") + bytes(50), "xz data is damaged"),
        (bytes.fromhex("28b52ffd") + b"\xff" * 50, "zstd data is damaged"),
        (bytes.fromhex("04224d18") + bytes(50), "lz4 data has an unknown version"),
        (bytes.fromhex("04224d18 60 40 82 ffffff7f") + bytes(50), "a block of 2147483647 bytes"),
    ],
)
def test_what_is_no_capture_is_one_clear_sentence(tmp_path: Path, content: bytes, reason: str) -> None:
    path = tmp_path / "bad.pcap"
    path.write_bytes(content)
    with pytest.raises(CaptureError) as caught:
        list(open_capture(path))
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    assert reason in message
    assert message.isprintable()


def test_directory_missing_file_and_forbidden_file(tmp_path: Path) -> None:
    with pytest.raises(CaptureError, match="is a directory"):
        open_capture(tmp_path)
    with pytest.raises(CaptureError, match="no such file"):
        open_capture(tmp_path / "missing.pcap")
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(CaptureError, match="not a directory"):
        open_capture(tmp_path / "file" / "x")
    if os.getuid() != 0:
        (tmp_path / "file").chmod(0)
        with pytest.raises(CaptureError, match="permission denied"):
            open_capture(tmp_path / "file")


def test_error_while_reading_becomes_a_capture_error() -> None:
    class Failing(io.BytesIO):
        def read1(self, size: int | None = -1) -> bytes:
            if self.tell() >= 200:
                raise OSError(5, "Input/output error")
            return super().read1(100)

    count = 0
    with pytest.raises(CaptureError, match="cannot be read: input/output error") as caught:
        for batch in open_capture(Failing(PLAIN), name="disk"):
            count += len(batch)
    assert count == caught.value.packet == 2


def test_fifo(tmp_path: Path) -> None:
    path = tmp_path / "fifo"
    os.mkfifo(path)
    writer = threading.Thread(target=lambda: path.write_bytes(PLAIN))
    writer.start()
    with open_capture(path) as opened:
        assert opened.bytes_total is None
        assert sum(map(len, opened)) == 20
    writer.join()


@pytest.mark.parametrize("packed", [False, True])
def test_packets_of_a_pipe_come_as_they_arrive(packed: bool) -> None:
    """Each packet is handed on before the next one is written; a reader that waited for a full block would wait for ever."""
    read_end, write_end = os.pipe()
    pack = zlib_stream() if packed else (lambda data: data)
    with os.fdopen(read_end, "rb") as stream:
        os.write(write_end, pack(PLAIN[:24]))
        opened = open_capture(stream, name="pipe").batches()
        at = 24
        for n, one in enumerate(PACKETS, 1):
            end = at + 16 + len(one.data)
            os.write(write_end, pack(PLAIN[at:end]))
            at = end
            assert [packet.number for packet in next(opened)] == [n]
        os.write(write_end, pack(b""))
        os.close(write_end)
        assert list(opened) == []


def zlib_stream():  # type: ignore[no-untyped-def]
    import zlib

    packer = zlib.compressobj(wbits=31)
    return lambda data: packer.compress(data) + packer.flush(zlib.Z_SYNC_FLUSH if data else zlib.Z_FINISH)


def test_pipe_that_breaks_in_a_packet() -> None:
    read_end, write_end = os.pipe()
    os.write(write_end, PLAIN[:-5])
    os.close(write_end)
    with os.fdopen(read_end, "rb", buffering=0) as stream:
        opened = open_capture(stream, name="pipe")  # type: ignore[arg-type]
        with pytest.raises(CaptureError, match="cut off in packet 20"):
            list(opened)
        assert opened.packets == 19


@pytest.mark.parametrize("content", [PLAIN, gzip.compress(PLAIN)])
def test_standard_input(content: bytes) -> None:
    code = "from streamdump.capture.files import open_capture; r = open_capture('-'); print(r.name, sum(map(len, r)))"
    done = subprocess.run([sys.executable, "-c", code], input=content, capture_output=True, check=True)
    assert done.stdout.decode().split() == ["standard", "input", "20"]


def test_reading_a_capture_needs_no_renderer_and_no_scapy() -> None:
    code = "import sys, streamdump.capture.files, streamdump.capture.link; print({'rich', 'typer', 'scapy'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert done.stdout.decode().strip() == "set()"
