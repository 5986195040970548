"""Relative times count from the first packet of the capture, as in tshark, whatever it is, and wherever they are shown."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import streamdump
from streamdump.cli.app import main
from streamdump.inspector import Inspector
from streamdump.model import Options
from tests.diagnose.talks import SECOND, Connection
from tests.support.frames import START_NS, Packet, pcap
from tests.test_capture_end import udp

REPORT = Path(__file__).parents[2] / "captures" / "samples" / "reports" / "relative_time_not_from_first_packet.pcap"
FIRST = "300.024915"


def printed(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], *arguments: str) -> str:
    monkeypatch.setattr("sys.argv", ["streamdump", *arguments])
    assert main() == 0
    return capfd.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "where"),
    [
        ([], (0, 1)),
        (["-t", "r"], (0, 1)),
        (["-Y", "number == 1"], (0, 1)),
        (["follow", "0"], (1, 1)),
        (["-T", "fields", "-e", "relative"], (0, 0)),
    ],
    ids=str,
)
def test_text(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], arguments: list[str], where: tuple[int, int]) -> None:
    line, word = where
    text = printed(monkeypatch, capfd, *arguments, str(REPORT))
    shown = text.splitlines()[line].split()[word]
    assert (f"{int(shown) / 1e9:.6f}" if shown.isdigit() else shown) == FIRST


def test_findings_and_pages(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert "at 300.172238" in printed(monkeypatch, capfd, "diagnose", str(REPORT))
    page = tmp_path / "page.html"
    printed(monkeypatch, capfd, "follow", "0", "--html", str(page), str(REPORT))
    assert FIRST in page.read_text()
    printed(monkeypatch, capfd, "diagnose", "--html", str(page), str(REPORT))
    assert FIRST in page.read_text(), "in the diagram of the conversation"


def test_filters() -> None:
    def numbers(where: str, *sources: Any) -> list[int]:
        return [one.number for one in streamdump.read(*sources, where=where)]

    assert numbers("relative < 300.05s", str(REPORT)) == [1, 2]
    assert numbers("relative < 300s", str(REPORT)) == []


@pytest.mark.parametrize("command", [(), ("stats",), ("conversations",), ("latency",), ("diagnose",)], ids=str)
def test_filters_of_commands(capfd: pytest.CaptureFixture[str], command: tuple[str, ...]) -> None:
    for time, some in (("300s", False), ("301s", True)):
        assert main([*command, "-Y", f"relative < {time}", str(REPORT)]) in (0, 1)
        (matching,) = re.findall(r"; (\d+) \w+ match(?:es)? -Y", capfd.readouterr().err)
        assert (matching != "0") == some


def test_merged_files(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    late, early = tmp_path / "late.pcap", tmp_path / "early.pcap"
    late.write_bytes(pcap(Connection(begin=7 * SECOND).ready().packets, nano=True))
    early.write_bytes(pcap([udp(2 * SECOND), udp(90 * SECOND)], nano=True))
    for files in ([late, early], [early, late]):
        assert printed(monkeypatch, capfd, "-c", "1", *map(str, files)).split()[1] == "5.003000"


def test_never_negative(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "back.pcap"
    path.write_bytes(pcap([Packet(udp(0).data, START_NS + SECOND), *Connection().ready().packets], nano=True))
    assert {line.split()[1] for line in printed(monkeypatch, capfd, str(path)).splitlines()} == {"0.000000"}
    assert {one.number for one in streamdump.read(path, where="relative == 0")} == set(range(1, 11))


def test_of_an_interface_too() -> None:
    found: list[int] = []
    inspector = Inspector([], Options())
    inspector.begins.append(found.append)
    for at in (3, 4):
        inspector.process([])
        inspector.process(list(_captured(at)))
    assert found == [START_NS + 3 * SECOND]


def _captured(at: int) -> Any:
    import io

    from streamdump.capture.files import open_capture

    return (packet for batch in open_capture(io.BytesIO(pcap([udp(at * SECOND)], nano=True))).batches() for packet in batch)
