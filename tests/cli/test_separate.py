"""Several files: one network, unless `--separate` says that each is its own; a warning where they cannot be one."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import msgspec
import pytest

import streamdump
from streamdump.capture.files import open_capture
from streamdump.cli.app import main
from streamdump.cli.exits import ExitCode
from streamdump.inspector import Inspector
from streamdump.options import Options
from tests.support.frames import Packet, ethernet, ip4, pcap, tcp
from tests.support.peers import GOLDEN
from tests.support.rewrite import packets

TWO = GOLDEN / "rabbitmq-stream" / "two_connections_310.pcap"
COOKED = GOLDEN / "iggy" / "py070-anyif.pcap"


@pytest.fixture
def others(tmp_path: Path) -> list[Path]:
    """Captures of other networks with the same addresses: other bytes at the same places, and other places."""
    bytes_, places = tmp_path / "bytes.pcap", tmp_path / "places.pcap"
    bytes_.write_bytes(TWO.read_bytes().replace(b"raw-client", b"raw_client"))
    moved = []
    for packet in packets(TWO):
        raw = bytearray(packet.raw)
        seq, ack = struct.unpack_from(">II", raw, 38)
        moved_ack = ack + 0x51234567 & 0xFFFF_FFFF if raw[47] & 16 else 0
        struct.pack_into(">II", raw, 38, seq + 0x51234567 & 0xFFFF_FFFF, moved_ack)
        moved.append(Packet(bytes(raw), packet.time_ns + 20_000_000, packet.wire))
    places.write_bytes(pcap(moved, packets(TWO)[0].link, nano=True))
    return [bytes_, places]


def said(*captures: Path, separate: bool = False, rows: int | None = None) -> list[list[dict[str, Any]]]:
    """What each conversation says, without numbers that are those of a run."""
    inspector = Inspector([open_capture(one) for one in captures], Options(separate=separate), rows)
    found: dict[int, list[dict[str, Any]]] = {}
    for record in inspector.records():
        told: dict[str, Any] = msgspec.to_builtins(record)
        unlike = ("number", "conversation", "file", "request", "response")
        assert record.conversation is not None
        found.setdefault(record.conversation, []).append({key: value for key, value in told.items() if key not in unlike})
    return sorted(found.values(), key=str)


def test_separate_files_say_what_each_says_alone(others: list[Path]) -> None:
    captures = [TWO, *others, COOKED, COOKED]
    alone = sorted([talk for one in captures for talk in said(one)], key=str)
    assert said(*captures, separate=True) == alone
    assert said(*captures, separate=True, rows=7) == alone
    assert said(*captures) != alone


def test_fragments_of_separate_files_are_not_put_together(tmp_path: Path) -> None:
    data = [tcp(bytes((one,)) * 100) for one in b"ab"]
    for index, name in enumerate(("a.pcap", "b.pcap")):
        parts = [ethernet(ip4(data[index][at : at + 80], offset=at, more=at + 80 < 120)) for at in (0, 80)]
        (tmp_path / name).write_bytes(
            pcap([Packet(part, 1_700_000_000_000_000_000 + at * 1000) for at, part in enumerate(parts)], nano=True)
        )
    both = tmp_path / "a.pcap", tmp_path / "b.pcap"
    seen = []
    for separate in (True, False):
        inspector = Inspector([open_capture(one) for one in both], Options(separate=separate, decode_as=((5552, "iggy", None),)))
        list(inspector.records())
        seen.append((inspector.link.counters.reassembled, [row.bytes for row in inspector.rows()]))
    assert seen[0] == (2, [(100, 0), (100, 0)])
    assert seen[0] != seen[1]


@pytest.mark.parametrize("other", [0, 1])
def test_files_that_cannot_be_of_one_network_are_told(other: int, others: list[Path], capsys: pytest.CaptureFixture[str]) -> None:
    for command in ([], ["conversations"]):
        assert main([*command, str(TWO), str(others[other])]) == ExitCode.DONE
        (told,) = [line for line in capsys.readouterr().err.splitlines() if "--separate" in line]
        assert told.startswith("streamdump: the bytes of conversation ")
        assert f"differ between {TWO} and {others[other]}: the first ones were kept" in told
    assert main([str(TWO), "--separate", str(others[other])]) == ExitCode.DONE
    assert "--separate" not in capsys.readouterr().err
    # The same connection captured twice, or in two parts
    assert main([str(TWO), str(TWO)]) == ExitCode.DONE
    assert "--separate" not in capsys.readouterr().err


def test_conversations_of_separate_files_are_written_apart(others: list[Path], tmp_path: Path) -> None:
    target = tmp_path / "w.pcapng"
    for conversation in range(4):
        argv = [str(TWO), "--separate", str(others[1]), "-w", str(target), "-Y", f"conversation == {conversation}"]
        assert main(argv) == ExitCode.DONE
        source = TWO if conversation < 2 else others[1]
        assert set(packets(target)) < set(packets(source))
        assert len({one.src for one in streamdump.read(target)}) == 2
