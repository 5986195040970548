"""A side that states a newer version of the protocol: bytes that fit no known layout are nobody's fault."""

from __future__ import annotations

from pathlib import Path
from struct import pack

import pytest

from streamdump.cli.app import main
from streamdump.model import Message, Unreadable
from tests.diagnose.talks import Connection, capture, diagnosed, rules
from tests.protocols.test_iggy import eviction, long_reply, long_request, s8, s32

Version = tuple[int, int, int]

UNKNOWN = "not readable with the layouts known here"

CLUSTER_OF_TEXTS = s32("cluster") + pack("<I", 1) + b"\xff" * 30
"""A reply to get_cluster_metadata that no layout has: the length of a name reaches beyond the frame."""


def packed(version: Version) -> bytes:
    return pack("<I", version[0] << 20 | version[1] << 10 | version[2])


def logged_in(client: Version, server: Version | None, release: str = "0.9.0") -> Connection:
    """A login in which the two sides state these versions."""
    asked = packed(client) + s8("rust-sdk") + s8("0.11.0") + s8("iggy") + s8("swordfish") + pack("<I", 0)
    one = Connection(dport=8090).open().ask(long_request(1, body=asked, number=0))
    answer = b"" if server is None else pack("<IIQ", 0, 1, 7) + packed(server) + s8(release)
    return one.tell(eviction(9) if server is None else long_reply(1, answer, number=0))


def unknown_layout(one: Connection) -> Connection:
    return one.ask(long_request(2, 12)).tell(long_reply(2, CLUSTER_OF_TEXTS))


NEWER = {
    "the server": ((0, 11, 0), (0, 13, 0), "the server says 0.13.0"),
    "both": ((0, 14, 2), (0, 13, 0), "the server says 0.13.0"),
    "a later major version": ((0, 11, 0), (1, 0, 0), "the server says 1.0.0"),
    "the client alone": ((0, 14, 2), (0, 11, 0), "the client says 0.14.2"),
    "the client, whose login is refused": ((0, 14, 2), None, "the client says 0.14.2"),
}


@pytest.mark.parametrize("case", NEWER)
def test_nobody_is_blamed_for_bytes_of_a_newer_version(case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    client, server, said = NEWER[case]
    one = unknown_layout(unknown_layout(logged_in(client, server))).fin(0)
    assert "iggy.damaged" not in (raised := rules(one))
    assert raised["iggy.not-readable"] == raised["iggy.newer-version"] == "note"
    data = capture(one)
    findings, _, records = diagnosed(data)
    causes = [found.cause for found in findings if UNKNOWN in found.cause]
    assert causes == [f"get_cluster_metadata from the server is {UNKNOWN} ({said})"]
    faults = [record.fault for record in records if type(record) is Message and record.fault is not None]
    assert [type(fault) for fault in faults] == [Unreadable, Unreadable]
    assert faults[0].reason.startswith(f"{UNKNOWN} ({said}): length says ")
    assert faults[1].reason.startswith("not readable here either: length says ")
    path = tmp_path / "newer.pcap"
    path.write_bytes(data)
    assert main(["conversations", "--json", str(path)]) == 0
    assert '"not_readable":2' in capsys.readouterr().out
    for argv in ([], ["-V"], ["-x"], ["conversations"], ["stats"]):
        assert main([*argv, str(path)]) == 0
        shown = "".join(capsys.readouterr())
        assert "damaged:" not in shown and "2 damaged" not in shown
        if argv in ([], ["conversations"]):
            assert "2 not readable" in shown


def test_a_newer_release_of_the_server_is_a_newer_version() -> None:
    raised = rules(unknown_layout(logged_in((0, 11, 0), (0, 11, 0), "0.10.0")).fin(0))
    assert raised["iggy.not-readable"] == "note" and "iggy.damaged" not in raised


def test_a_version_that_is_known_is_no_excuse() -> None:
    raised = rules(unknown_layout(logged_in((0, 11, 0), (0, 11, 0))).fin(0))
    assert raised["iggy.damaged"] == "warning"
    assert "iggy.not-readable" not in raised and "iggy.newer-version" not in raised


def test_a_frame_that_is_cut_off_is_not_one_of_a_newer_version() -> None:
    one = logged_in((0, 11, 0), (0, 13, 0)).ask(long_request(2, 12)).tell(long_reply(2, CLUSTER_OF_TEXTS)[:270]).fin(1)
    (fault,) = [record.fault for record in diagnosed(capture(one))[2] if type(record) is Message and record.fault is not None]
    assert type(fault) is not Unreadable and fault.reason.endswith("bytes sent")


@pytest.mark.parametrize("minor", [11, 13])
def test_skipped_bytes_blame_nobody_either(minor: int) -> None:
    one = logged_in((0, 11, 0), (0, minor, 0)).tell(b"\xff" * 300).ask(long_request(2, 1)).tell(long_reply(2)).fin(0)
    raised = rules(one)
    assert raised.get("iggy.skipped") == (None if minor == 13 else "warning")
    assert raised.get("iggy.not-readable") == ("note" if minor == 13 else None)
