"""RabbitMQ Streams of a later release: commands and versions that have no layout are paired, and nobody is blamed for them."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import pytest

from streamdump.cli.app import main
from streamdump.model import Exchange, Message, Unreadable
from streamdump.protocols.rabbitmq import layouts
from streamdump.protocols.rabbitmq.layouts import newer_versions
from tests.diagnose.talks import Connection, capture, diagnosed, rules

NAME = "rabbitmq-stream."
REPORTS = Path(__file__).parents[2] / "captures" / "samples" / "reports"
UNKNOWN = "not readable with the layouts known here"
PAIRED = ": the number behind it is read as that of its request"


def frame(key: int, version: int, number: int | None, *rest: bytes) -> bytes:
    body = (b"" if number is None else struct.pack(">I", number)) + b"".join(rest)
    return struct.pack(">IHH", 4 + len(body), key, version) + body


def stated(client: dict[int, int], server: dict[int, int]) -> Connection:
    """A connection whose sides exchanged these versions, by key the highest."""
    one = Connection().ready()
    for key, versions in ((0x001B, client), (0x801B, server)):
        code = b"" if key == 0x001B else struct.pack(">H", 1)
        entries = b"".join(struct.pack(">HHH", command, 1, most) for command, most in versions.items())
        (one.ask if key == 0x001B else one.tell)(frame(key, 1, 90, code, struct.pack(">i", len(versions)), entries))
    return one


def messages(one: Connection) -> list[Message]:
    return [each for each in diagnosed(capture(one))[2] if type(each) is Message]


def test_the_report() -> None:
    findings, _, records = diagnosed(REPORTS / "rmq_unknown_command.pcap")
    asked, answer = [one for one in records if type(one) is Message and one.name == "unknown 0x0020"]
    assert (asked.kind, answer.kind, answer.request, answer.outcome) == ("one_way", "response", asked.number, "answered")
    assert answer.latency_ns == answer.time_ns - asked.time_ns
    assert [*asked.notes, *answer.notes] == ["command 0x0020 is not known", f"command 0x0020 is not known{PAIRED}"]
    assert {one.severity for one in findings} == {"note"}
    assert not any("no version of the protocol" in one.cause for one in findings)


@pytest.mark.parametrize(
    ("asks", "answers", "answered"),
    [
        ((0x0020, 1, 7), (0x8020, 1, 7), True),
        ((0x0020, 3, 7), (0x8020, 2, 7), True),
        ((0x0020, 1, 7), (0x8020, 1, 8), False),
        ((0x0020, 1, 7), (0x8021, 1, 7), False),
        ((0x0015, 2, 7), (0x8015, 2, 7), True),
        ((0x000C, 2, 7), (0x800C, 2, 7), True),
        # Of a command without a number, what stands behind the version is something else
        ((0x0009, 3, 7), (0x8009, 3, 7), False),
        ((0x0010, 2, 7), (0x8010, 2, 7), False),
    ],
)
def test_what_is_not_known_is_paired_by_its_number(asks: Any, answers: Any, answered: bool) -> None:
    one = Connection().ready().ask(frame(*asks, b"ab")).tell(frame(*answers, b"cd"))
    *_, request, response = messages(one)
    assert (response.request, response.outcome) == ((request.number, "answered") if answered else (None, None))
    assert not any(type(each) is Exchange for each in diagnosed(capture(one.goodbye()))[2]), "nothing is missing"


def test_a_newer_version_answered_in_the_old_one() -> None:
    """As Subscribe of version 2 is: the response is paired by the same number."""
    one = Connection().ready().ask(frame(0x000B, 2, 70, b"\0\1x\0\1y\0")).tell(frame(0x800B, 1, 70, struct.pack(">HQ", 1, 5)))
    *_, request, response = messages(one)
    assert (request.name, request.notes) == ("QueryOffset", ["version 2 of QueryOffset is not known"])
    assert (response.request, response.outcome, list(response.notes)) == (request.number, "answered", [])
    found = rules(one.goodbye())
    assert found == {NAME + "unknown-command": "note"}


def test_both_sides_may_ask_with_the_same_number() -> None:
    one = Connection().ready().ask(frame(0x0020, 1, 5, b"c")).tell(frame(0x0020, 1, 5, b"s"))
    one.ask(frame(0x8020, 1, 5, b"c")).tell(frame(0x8020, 1, 5, b"s"))
    *_, asked, reported, by_client, by_server = messages(one)
    assert (by_client.request, by_server.request) == (reported.number, asked.number)


@pytest.mark.parametrize("size", range(4))
def test_a_frame_without_a_number_is_left_alone(size: int) -> None:
    one = Connection().ready().ask(frame(0x0020, 1, None, bytes(size))).tell(frame(0x8020, 1, None, bytes(size)))
    *_, response = messages(one)
    assert (response.request, response.notes) == (None, ["command 0x0020 is not known"])


def test_many_that_have_no_answer_are_not_all_kept() -> None:
    one = Connection().ready()
    for number in range(300):
        one.ask(frame(0x0020, 1, number))
    *_, response = [each for each in diagnosed(capture(one.tell(frame(0x8020, 1, 0))), open_limit=16)[2] if type(each) is Message]
    assert response.request is None


CREATE_2 = frame(0x000D, 1, 91, struct.pack(">h", 900), b"orders")
"""A Create that does not fit its layout."""

NEWER: dict[str, tuple[dict[int, int], dict[int, int], str]] = {
    "the server": ({}, {0x000D: 2}, "the server says Create up to 2"),
    "the client": ({0x000D: 7}, {0x000D: 1}, "the client says Create up to 7"),
    "both": ({0x000D: 7}, {0x000D: 3}, "the server says Create up to 3"),
}


@pytest.mark.parametrize("case", NEWER)
def test_nobody_is_blamed_for_bytes_of_a_newer_version(case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    client, server, said = NEWER[case]
    one = stated(client, server).ask(CREATE_2).ask(CREATE_2).fin(0)
    found = rules(one)
    assert found[NAME + "not-readable"] == found[NAME + "newer-version"] == "note"
    assert NAME + "damaged" not in found
    findings, _, records = diagnosed(capture(one))
    assert [each.cause for each in findings if UNKNOWN in each.cause] == [f"Create from the client is {UNKNOWN} ({said})"]
    faults = [each.fault for each in records if type(each) is Message and each.fault is not None]
    assert [type(each) for each in faults] == [Unreadable, Unreadable]
    assert faults[0].reason.startswith(f"{UNKNOWN} ({said}): ")
    path = tmp_path / "newer.pcap"
    path.write_bytes(capture(one))
    assert main(["conversations", "--json", str(path)]) == 0
    assert '"not_readable":2' in capsys.readouterr().out
    for argv in ([], ["-V"], ["-x"], ["conversations"], ["stats"]):
        assert main([*argv, str(path)]) == 0
        shown = "".join(capsys.readouterr())
        assert "damaged:" not in shown and "2 damaged" not in shown


@pytest.mark.parametrize(
    "server",
    [{}, {0x000D: 1}, {0x0002: 3}, {0x0021: 1}],
    ids=["nothing is stated", "the known version", "another command", "an unknown command"],
)
def test_known_versions_are_no_excuse(server: dict[int, int]) -> None:
    found = rules(stated({}, server).ask(CREATE_2).fin(0))
    assert found[NAME + "damaged"] == "warning"
    assert NAME + "not-readable" not in found


def test_each_newest_version_is_known() -> None:
    """Those with layouts, each stated as such, are nothing new."""
    known = {key: 2 if key in (0x0002, 0x0007, 0x0008, 0x0009) else 1 for key in range(0x0001, 0x0020)}
    assert known == layouts.NEWEST
    assert rules(stated(known, known).goodbye()) == {}
    for key in known:
        assert rules(stated(known, {**known, key: known[key] + 1}).goodbye()) == {NAME + "newer-version": "note"}
    assert rules(stated(known, {**known, 0x0020: 1}).goodbye()) == {NAME + "newer-version": "note"}


@pytest.mark.parametrize("newest", [2, 3])
def test_skipped_bytes_blame_nobody_either(newest: int) -> None:
    one = stated({}, {0x0002: newest}).tell(b"\xff" * 300)
    one.client(layouts.CREATE, stream="s", arguments=[]).server(layouts.CREATE_RESPONSE)
    one.client(layouts.DELETE, stream="s").server(layouts.DELETE_RESPONSE).fin(0)
    found = rules(one)
    assert found.get(NAME + "skipped") == ("warning" if newest == 2 else None)
    assert found.get(NAME + "not-readable") == (None if newest == 2 else "note")


def test_a_version_that_the_server_does_not_state_is_still_the_clients_mistake() -> None:
    one = stated({}, {0x000D: 1}).ask(frame(0x000D, 2, 92, b"\0\1s\0\0\0\0")).goodbye()
    (found,) = [each for each in diagnosed(capture(one))[0] if each.rule == NAME + "unknown-command"]
    assert (found.severity, found.cause) == (
        "warning",
        "the client sends Create (key 0x000d, version 2), and the server states versions 1 to 1",
    )


def test_very_many_versions_are_bounded() -> None:
    one = stated({}, dict.fromkeys(range(10_000), 0xFFFF))
    assert len(newer_versions(messages(one)[-1].fields)) < 100
    (found,) = [each for each in diagnosed(capture(one))[0] if each.rule == NAME + "newer-version"]
    assert len(found.cause) < 300
