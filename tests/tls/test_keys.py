"""Key logs: what is taken of them, how they grow, and that none can do harm."""

from __future__ import annotations

import io
import os
import random
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamdump.capture.files import open_capture
from streamdump.errors import UsageError
from streamdump.tls import keys
from streamdump.tls.keys import EARLY, HANDSHAKE, LABELS, MASTER, TRAFFIC, KeyLog, check
from tests.support.frames import Packet, enhanced, ethernet, interface, ip4, section, tcp
from tests.tls.peers import secrets_block

RANDOM = bytes(range(32))
SECRET, LONG = b"\x5a" * 32, b"\xa5" * 48


def line(label: str, secret: bytes = SECRET, session: bytes = RANDOM, end: bytes = b"\n") -> bytes:
    return f"{label} {session.hex()} {secret.hex()}".encode() + end


def log(text: bytes) -> KeyLog:
    found = KeyLog()
    found.add(text)
    return found


@pytest.mark.parametrize("label", LABELS)
@pytest.mark.parametrize("secret", [SECRET, LONG])
@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"  \n", b""])
def test_a_secret(label: str, secret: bytes, end: bytes) -> None:
    found = log(line(label, secret, end=end))
    assert found.find(RANDOM, label) == (secret, 0)
    assert (found.damaged, found.rsa) == (0, 0)
    assert all(found.find(RANDOM, other) is None for other in LABELS if other != label)
    assert found.lines(RANDOM) == [line(label, secret)]


def test_upper_case_too() -> None:
    assert log(f"{MASTER} {RANDOM.hex().upper()} {LONG.hex().upper()}\n".encode()).find(RANDOM, MASTER) == (LONG, 0)


def test_several_sessions_and_secrets() -> None:
    other = bytes(32)
    found = log(
        b"# a comment\n\n" + b"".join(line(label, bytes((index,)) * 48) for index, label in enumerate(LABELS)) + line(MASTER, session=other)
    )
    assert [found.find(RANDOM, label) for label in LABELS] == [(bytes((index,)) * 48, 0) for index in range(len(LABELS))]
    assert found.find(other, MASTER) == (SECRET, 0)
    assert found.find(bytes(31), MASTER) is None
    assert found.damaged == 0


def test_the_last_line_about_a_secret_counts() -> None:
    found = log(line(MASTER) + line(TRAFFIC[0]) + line(MASTER, LONG))
    assert found.find(RANDOM, MASTER) == (LONG, 0)
    assert found.find(RANDOM, TRAFFIC[0]) == (SECRET, 0)


@pytest.mark.parametrize(
    ("text", "damaged", "rsa"),
    [
        (b"EXPORTER_SECRET " + b"0" * 64 + b" " + b"1" * 64 + b"\n", 0, 0),
        (b"ECH_CONFIG 00 11\n", 0, 0),
        (b"RSA " + b"0" * 16 + b" " + b"1" * 96 + b"\n", 0, 1),
        (b"CLIENT_RANDOM 00 11\n", 1, 0),
        (b"CLIENT_RANDOM " + b"0" * 64 + b"\n", 1, 0),
        (b"CLIENT_RANDOM " + b"0" * 64 + b" " + b"1" * 95 + b"\n", 1, 0),
        (b"CLIENT_RANDOM " + b"0" * 64 + b" " + b"x" * 96 + b"\n", 1, 0),
        (b"this is no key log\n", 1, 0),
        (b"\x00\xff\n\n\x80\n", 2, 0),
        (b"# only a comment", 0, 0),
        (b"", 0, 0),
    ],
)
def test_other_lines(text: bytes, damaged: int, rsa: int) -> None:
    found = log(text + line(MASTER) if text.endswith(b"\n") else text)
    assert (found.damaged, found.rsa) == (damaged, rsa)
    assert bool(found.find(RANDOM, MASTER)) == text.endswith(b"\n")


@given(
    st.binary(max_size=300), st.lists(st.sampled_from([line(MASTER), line(EARLY, LONG), b"\n", b"# x\n", b"CLIENT_RANDOM "]), max_size=5)
)
def test_anything_is_taken(noise: bytes, lines: list[bytes]) -> None:
    found = log(b"".join(lines) + noise)
    found.lines(RANDOM)
    assert found.damaged >= 0


def test_binary_files_and_lines_without_end_are_read_in_pieces(tmp_path: Path) -> None:
    chance = random.Random(1)
    path = tmp_path / "keys"
    path.write_bytes(
        chance.randbytes(3 << 20) + b"\n" + line(MASTER) + b"A" * (3 << 20) + b"\n" + line(EARLY) + b"CLIENT_RANDOM " + b"0" * (2 << 20)
    )
    found = KeyLog([str(path)])
    assert found.find(RANDOM, MASTER) == (SECRET, 0)
    assert found.find(RANDOM, EARLY) == (SECRET, 0)
    assert found.damaged


def test_a_huge_log_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sessions that were logged last are kept."""
    monkeypatch.setattr(keys, "SESSIONS", 100)
    path = tmp_path / "keys"
    sessions = [index.to_bytes(32, "big") for index in range(5000)]
    path.write_bytes(b"".join(line(label, session=session) for session in sessions for label in (*HANDSHAKE, *TRAFFIC)))
    found = KeyLog([str(path)])
    assert all(found.find(session, TRAFFIC[1]) for session in sessions[-100:])
    assert not any(found.find(session, TRAFFIC[1]) for session in sessions[:-100])
    assert found.dropped == 4900


def test_sessions_take_little_memory() -> None:
    import tracemalloc

    text = b"".join(line(label, LONG, index.to_bytes(32, "big")) for index in range(10_000) for label in (*HANDSHAKE, *TRAFFIC))
    tracemalloc.start()
    found = log(text)
    size = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert size < 600 * 10_000
    assert found.find(bytes(32), TRAFFIC[0])


def test_it_is_read_when_it_is_needed(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    found = KeyLog([str(path)])
    path.write_bytes(line(MASTER))
    assert found.given
    assert found.find(RANDOM, MASTER) == (SECRET, 0)
    path.write_bytes(line(MASTER, LONG))
    assert found.find(RANDOM, MASTER) == (SECRET, 0)
    assert not found.expecting


# One that grows


def test_what_is_written_later_is_read(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    found = KeyLog([str(path)], follow=True)
    assert found.expecting
    assert not found.poll(0)
    path.write_bytes(line(MASTER)[:50])
    assert not found.poll(3)
    with path.open("ab") as stream:
        stream.write(line(MASTER)[50:] + line(EARLY)[:-1])
    assert found.poll(7)
    assert found.find(RANDOM, MASTER) == (SECRET, 7)
    assert found.find(RANDOM, EARLY) is None
    with path.open("ab") as stream:
        stream.write(b"\n")
    assert found.poll(9)
    assert found.find(RANDOM, EARLY) == (SECRET, 9)
    assert not found.poll(10)
    found.close()


def test_a_log_that_is_begun_anew(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_bytes(line(MASTER) * 3)
    found = KeyLog([str(path)], follow=True)
    assert found.poll(0)
    path.write_bytes(line(EARLY))
    assert found.poll(1)
    path.unlink()
    assert not found.poll(2)
    (tmp_path / "other").write_bytes(line(TRAFFIC[0]))
    (tmp_path / "other").rename(path)
    assert found.poll(3)
    assert [found.find(RANDOM, label) for label in (MASTER, EARLY, TRAFFIC[0])] == [(SECRET, 0), (SECRET, 1), (SECRET, 3)]
    found.close()


def test_a_pipe_does_not_keep_the_capture_waiting(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    found = KeyLog([str(path)], follow=True)
    begin = time.monotonic()
    assert not found.poll(0)
    writer = os.open(path, os.O_WRONLY)
    os.write(writer, line(MASTER))
    assert found.poll(1)
    os.write(writer, line(EARLY))
    assert found.poll(2)
    os.close(writer)
    assert not found.poll(3)
    found.close()
    assert time.monotonic() - begin < 10
    assert found.find(RANDOM, EARLY) == (SECRET, 2)


# In captures


def packet(seq: int) -> bytes:
    return enhanced(Packet(ethernet(ip4(tcp(b"x", seq=seq)))))


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("rows", [1, None])
def test_secrets_blocks(order: str, rows: int | None) -> None:
    text = line(MASTER) + b"# odd length"
    blocks = [section(order), interface(order=order), secrets_block(text, order)]
    blocks += [enhanced(Packet(ethernet(ip4(tcp(b"x")))), order=order), secrets_block(line(EARLY), order)]
    reader = open_capture(io.BytesIO(b"".join(blocks)), name="test")
    assert sum(len(batch) for batch in reader.batches(rows)) == 1
    assert reader.secrets == [(0, text), (1, line(EARLY))]


def test_other_secrets_and_damaged_blocks_are_passed_over() -> None:
    good = secrets_block(line(MASTER))
    wireguard = good[:8] + b"WGK\0"[::-1] + good[12:]
    too_long = good[:12] + b"\xff\xff\xff\x7f" + good[16:]
    empty = bytes.fromhex("0a000000 0c000000 0c000000")
    reader = open_capture(io.BytesIO(b"".join([section(), interface(), wireguard, empty, too_long, packet(1)])), name="test")
    assert sum(len(batch) for batch in reader.batches()) == 1
    assert [number for number, _ in reader.secrets] == [0]
    found = KeyLog()
    for _, text in reader.secrets:
        found.add(text)
    assert found.find(RANDOM, MASTER) == (SECRET, 0)


def test_secrets_that_nobody_takes_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    from streamdump.capture import pcapng

    monkeypatch.setattr(pcapng, "MAX_SECRETS", 10 * (len(line(MASTER)) + pcapng.SECRETS_EACH))
    reader = open_capture(io.BytesIO(b"".join([section(), interface(), *[secrets_block(line(MASTER))] * 50, packet(1)])), name="test")
    assert sum(len(batch) for batch in reader.batches()) == 1
    assert len(reader.secrets) == 10


@pytest.mark.parametrize("packed", [False, True])
def test_a_capture_as_key_log(packed: bool, tmp_path: Path) -> None:
    import gzip

    data = b"".join([section(), interface(), packet(1), secrets_block(line(MASTER)), packet(2)])
    path = tmp_path / "keys.pcapng"
    path.write_bytes(gzip.compress(data) if packed else data)
    found = KeyLog([str(path)])
    assert found.find(RANDOM, MASTER) == (SECRET, 0)
    assert found.damaged == 0


def test_a_packed_log(tmp_path: Path) -> None:
    import gzip

    path = tmp_path / "keys.log.gz"
    packed = gzip.compress(line(MASTER) + line(EARLY).rstrip())
    path.write_bytes(packed)
    found = KeyLog([str(path)])
    assert found.find(RANDOM, MASTER) == (SECRET, 0)
    assert found.find(RANDOM, EARLY) == (SECRET, 0)
    assert (found.damaged, found.errors) == (0, [])
    path.write_bytes(packed[:-1])
    found = KeyLog([str(path)])
    assert found.find(RANDOM, MASTER) == (SECRET, 0)
    assert found.errors == [f"key log {path}: the gzip data is cut off"]


def test_a_text_that_begins_with_a_mark(tmp_path: Path) -> None:
    path = tmp_path / "keys.log"
    path.write_bytes(b"\xef\xbb\xbf" + line(MASTER))
    for follow in (False, True):
        found = KeyLog([str(path)], follow)
        found.poll(0)
        assert found.find(RANDOM, MASTER) == (SECRET, 0)
        assert found.damaged == 0
        found.close()


def test_secrets_of_a_capture_that_is_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "keys.pcapng"
    path.write_bytes(b"".join([section(), interface(), secrets_block(line(MASTER)), packet(1), packet(2)])[:-1])
    found = KeyLog([str(path)])
    assert found.find(RANDOM, MASTER) == (SECRET, 0)
    (trouble,) = found.errors
    assert trouble.startswith(f"key log {path}: ")


# Those that cannot be read


def test_what_is_wrong_is_said(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such file"):
        check([str(tmp_path / "none")])
    with pytest.raises(UsageError, match="is a directory"):
        check([str(tmp_path)])
    path = tmp_path / "keys"
    path.write_bytes(line(MASTER))
    check([str(path)])
    if os.geteuid():
        path.chmod(0)
        with pytest.raises(UsageError, match="cannot be read: permission denied"):
            check([str(path)])
    assert not KeyLog([str(tmp_path)])
    assert not KeyLog([str(tmp_path / "none")])


def test_no_text_of_an_error_has_a_secret(tmp_path: Path) -> None:
    found = log(line(MASTER))
    assert SECRET.hex() not in repr(found)
    assert SECRET.hex() not in str(vars(found).keys())
