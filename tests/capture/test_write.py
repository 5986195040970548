"""What `-w` opens: a new file that others cannot read, or what is no file."""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from streamdump.capture.files import open_capture
from streamdump.capture.write import PcapngWriter, Ring
from streamdump.errors import UsageError
from streamdump.model import Packet as Captured
from tests.support.frames import START_NS, Packet, bytes_of, pcap, reader

PACKET = b"a packet with a password in it"


def batch() -> list[Captured]:
    (one,) = reader(pcap([Packet(PACKET)])).batches()
    return one


def write(path: Path, ring: Ring | None = None) -> None:
    writer = PcapngWriter(str(path), ["lo"], 1, 0, ring)
    writer.write(batch())
    writer.close(START_NS, 1, 0)


def packets(path: Path) -> list[bytes]:
    return [bytes_of(one) for some in open_capture(str(path)) for one in some]


@pytest.fixture(autouse=True)
def _any_mask() -> Iterator[None]:
    """The mode does not hang on what the user's other files get."""
    before = os.umask(0)
    yield
    os.umask(before)


def test_a_new_file_is_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "new.pcapng"
    write(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert packets(path) == [PACKET]


def test_a_file_that_others_may_read_is_replaced(tmp_path: Path) -> None:
    """Who has the old one open, or knows it by another name, gets no packets."""
    path, other = tmp_path / "old.pcapng", tmp_path / "other"
    path.write_bytes(b"before" * 1000)
    path.chmod(0o666)
    other.hardlink_to(path)
    with path.open("rb") as opened:
        write(path)
        assert opened.read() == other.read_bytes() == b"before" * 1000
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert packets(path) == [PACKET]


@pytest.mark.parametrize("there", [True, False])
def test_a_symbolic_link_is_refused(tmp_path: Path, there: bool) -> None:
    target, path = tmp_path / "target", tmp_path / "link.pcapng"
    if there:
        target.write_bytes(b"before")
    path.symlink_to(target)
    with pytest.raises(UsageError, match=r"-w .*link.pcapng: is a symbolic link, which is not followed; name the file itself"):
        write(path)
    assert path.is_symlink()
    assert target.exists() == there
    assert not there or target.read_bytes() == b"before"


def test_a_symbolic_link_that_comes_in_between_is_not_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target, path = tmp_path / "target", tmp_path / "file.pcapng"
    path.write_bytes(b"before")
    unlink = Path.unlink

    def exchange(self: Path, missing_ok: bool = False) -> None:
        unlink(self, missing_ok)
        self.symlink_to(target)

    monkeypatch.setattr(Path, "unlink", exchange)
    with pytest.raises(UsageError, match="cannot be written: file exists"):
        write(path)
    assert not target.exists()


def test_files_of_a_ring_are_new_too(tmp_path: Path) -> None:
    ring = Ring(size=100)
    write(tmp_path / "ring.pcapng", ring)
    (path,) = tmp_path.iterdir()
    path.chmod(0o644)
    write(tmp_path / "ring.pcapng", ring)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.unlink()
    path.symlink_to(tmp_path / "target")
    with pytest.raises(UsageError, match="a symbolic link"):
        write(tmp_path / "ring.pcapng", ring)
    assert list(tmp_path.iterdir()) == [path]


def test_a_fifo_stays_one(tmp_path: Path) -> None:
    path, read = tmp_path / "fifo", []
    os.mkfifo(path, 0o644)
    reading = threading.Thread(target=lambda: read.append(path.read_bytes()))
    reading.start()
    write(path)
    reading.join(60)
    assert stat.S_ISFIFO(path.stat().st_mode)
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    assert PACKET in read[0]


def test_devices_and_what_a_shell_makes_of_them() -> None:
    write(Path(os.devnull))
    assert stat.S_ISCHR(Path(os.devnull).stat().st_mode)
    out, into = os.pipe()
    for folder in ("/dev/fd", "/proc/self/fd"):
        write(Path(folder) / str(into))
    os.close(into)
    with os.fdopen(out, "rb") as pipe:
        assert pipe.read().count(PACKET) == 2


def test_a_folder_is_none(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be written: is a directory"):
        write(tmp_path)
