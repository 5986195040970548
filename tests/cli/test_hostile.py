"""Captures that mean harm: active characters in every text, lengths that cannot be true, noise."""

from __future__ import annotations

import json
import random
import re
import struct
import unicodedata
from pathlib import Path

import pytest

from streamdump.cli.app import main
from streamdump.cli.exits import ExitCode
from tests.support.frames import ACK, PSH, SYN, Packet, ethernet, ip4, pcap, tcp

GOLDEN = Path(__file__).parents[2] / "captures" / "golden"
CAPTURES = sorted(path for path in GOLDEN.rglob("*.pcap") if path.stat().st_size < 40_000)[::5]
CODES = re.compile(r"\x1b\[[0-9;]*m")
HOSTILE = "\x1b[2J\r\n\u202e\x9b\u200b"
TEXT_VIEWS = ([], ["-V", "-x", "--show-secrets", "--exchanges"], ["conversations"])
JSON_VIEWS = (["--json", "--show-secrets"], ["--json", "--bytes", "text"], ["conversations", "--json"])

# Pieces of words that the captures are full of, and what of the same length takes their place.
REPLACED = (
    (b"rea", "\u202e".encode()),
    (b"st", b"\x1b\r"),
    (b"er", b"\n\x1b"),
    (b"ab", b"\xc2\x9b"),
    (b"on", b"\x7f\r"),
    (b"1.0", "\u2066".encode()),
)


def conversation(*sent: bytes, port: int = 5552) -> bytes:
    """A capture of a client that opens a connection and sends these segments."""
    packets = [Packet(ethernet(ip4(tcp(seq=999, flags=SYN, dport=port))))]
    at = 1000
    for data in sent:
        packets.append(Packet(ethernet(ip4(tcp(data, seq=at, flags=ACK | PSH, dport=port)))))
        at += len(data)
    return pcap(packets)


def text(value: str) -> bytes:
    raw = value.encode()
    return struct.pack(">h", len(raw)) + raw


def frame(key: int, body: bytes) -> bytes:
    return struct.pack(">IHH", len(body) + 4, key, 1) + body


def properties(*pairs: str) -> bytes:
    return struct.pack(">i", len(pairs) // 2) + b"".join(map(text, pairs))


GREETING = frame(0x11, struct.pack(">I", 1) + properties("product", HOSTILE, HOSTILE, "x"))


FORCED = ("-d", "tcp.port==5552,rabbitmq-stream")


def views(path: Path, capsys: pytest.CaptureFixture[str], *more: str) -> tuple[str, str]:
    """All text views of a capture, and all JSON ones."""
    made = []
    for forms in (TEXT_VIEWS, JSON_VIEWS):
        parts = []
        for form in forms:
            assert main([*form, *more, str(path)]) in (ExitCode.DONE, ExitCode.UNREADABLE)
            out, err = capsys.readouterr()
            assert all(line.isprintable() for line in err.split("\n"))
            parts.append(out)
        made.append("".join(parts))
    return made[0], made[1]


def active(text: str) -> set[str]:
    """The characters that could act on a terminal."""
    return {one for one in set(text) - {"\n"} if unicodedata.category(one) in ("Cc", "Cf", "Cs", "Zl", "Zp")}


@pytest.mark.parametrize("path", CAPTURES, ids=lambda path: path.name)
def test_no_text_of_a_capture_acts_on_the_terminal(path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = path.read_bytes()
    for piece, replacement in REPLACED:
        data = data.replace(piece, replacement)
    (tmp_path / "x").write_bytes(data)
    shown, encoded = views(tmp_path / "x", capsys)
    assert not active(shown)
    assert not active(encoded)
    assert all(json.loads(line)["record"] for line in encoded.splitlines())


def test_what_is_escaped_can_still_be_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    publisher = frame(1, struct.pack(">IB", 2, 0) + text(HOSTILE) + text("orders"))
    (tmp_path / "x").write_bytes(conversation(GREETING, publisher))
    shown, encoded = views(tmp_path / "x", capsys, *FORCED)
    assert r"\x1b[2J\r\n\u202e\x9b\u200b" in shown
    assert not active(shown)
    assert [record["fields"].get("publisher_reference") for record in map(json.loads, encoded.splitlines()) if "fields" in record][
        1
    ] == HOSTILE


def test_coloured_text_holds_no_codes_but_ours(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "x").write_bytes(conversation(GREETING))
    main(["-V", "-x", "--color", "always", *FORCED, str(tmp_path / "x")])
    out = capsys.readouterr().out
    assert "\x1b[" in out
    assert not active(CODES.sub("", out))
    assert "\x1b[2J" not in out


@pytest.mark.parametrize("view", ([], ["entries"], ["follow", "0"], ["conversations"]), ids=" ".join)
@pytest.mark.parametrize("terminal", [False, True])
def test_addresses_in_a_proxy_header_are_escaped(
    view: list[str], terminal: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """They stand where the conversation is introduced."""
    path = f"/run/{HOSTILE}".encode().ljust(108, b"\0")
    header = b"\r\n\r\n\0\r\nQUIT\n" + bytes((0x21, 0x31)) + struct.pack(">H", 216) + path * 2
    body = struct.pack(">BIQI", 1, 1, 1, 2) + b"hi"
    (tmp_path / "x").write_bytes(conversation(header + GREETING + frame(2, body)))
    if terminal:
        monkeypatch.setattr("sys.stdout.isatty", lambda: True)
        monkeypatch.setenv("PAGER", "cat")
        monkeypatch.setenv("COLUMNS", "200")
    assert main([*view, "--color", "never", str(tmp_path / "x")]) == ExitCode.DONE
    out, _ = capsys.readouterr()
    assert r"PROXY /run/\x1b[2J" in out or view == ["conversations"]
    assert not active(CODES.sub("", out))


@pytest.mark.parametrize(
    "sent",
    [
        [b"\xff" * 400],
        [struct.pack(">IHH", 0xFFFFFFFF, 1, 1) + b"x" * 100],
        [GREETING, struct.pack(">IHH", 0xFFFFFFFF, 8, 1) + b"x" * 3000],
        [GREETING, frame(0x11, struct.pack(">II", 9, 0x7FFFFFFF) + b"\0" * 8)],
        [GREETING, frame(2, struct.pack(">Bi", 0, -1))],
        [random.Random(1).randbytes(1400) for _ in range(40)],
        [GREETING, *(random.Random(seed).randbytes(900) for seed in range(20))],
    ],
    ids=["ones", "huge", "huge later", "count", "negative count", "noise", "noise later"],
)
def test_lengths_that_cannot_be_true_and_noise(sent: list[bytes], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "x").write_bytes(conversation(*sent))
    for forced in ((), FORCED):
        shown, _ = views(tmp_path / "x", capsys, *forced)
        assert not active(shown)
    assert main(["-q", str(tmp_path / "x")]) == ExitCode.DONE


def test_noise_is_claimed_by_nobody(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "x").write_bytes(conversation(*(random.Random(seed).randbytes(900) for seed in range(20))))
    assert main([str(tmp_path / "x")]) == ExitCode.DONE
    out, err = capsys.readouterr()
    assert not out
    assert (
        "1 conversation not decoded (unknown); -d tcp.port==5552,rabbitmq-stream decodes port 5552 as rabbitmq-stream anyway; more: " in err
    )
