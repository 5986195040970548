"""`browse`: what its screens show, what each key does, and that nothing captured acts on it. Driven by textual's pilot."""

from __future__ import annotations

import fcntl
import gzip
import json
import os
import pty
import select
import struct
import subprocess
import sys
import termios
from pathlib import Path
from threading import Event, Thread
from typing import Any

import msgspec
import pytest
from textual.events import Key, Paste

import streamdump
from streamdump.capture.files import open_capture
from streamdump.cli.app import main
from streamdump.cli.browse.app import HELP
from streamdump.cli.browse.places import Conversations, Fields, Findings, Messages, TextPage
from streamdump.cli.exits import ExitCode
from streamdump.cli.indexed import index, reading
from streamdump.cli.indexed.reading import Reader, View
from streamdump.cli.run import FileRun
from streamdump.errors import CaptureError
from streamdump.filter.grammar import quoted
from streamdump.inspector import Inspector
from streamdump.model import Message, Options, Record
from streamdump.render.clock import Clock
from tests.support.browsing import NAMES, Browsing
from tests.support.frames import ACK, START_NS, SYN, A, B, Packet, ethernet, ip4, pcap, tcp
from tests.support.logins import SECRET, login_captures
from tests.support.peers import Pair, free_port, needs_capture, said
from tests.support.secrets import found
from tests.support.terminal import on_terminal, process_on_terminal, typed
from tests.support.waiting import PATIENCE, until

GOLDEN = Path(__file__).parents[2] / "captures" / "golden"
REFUSED = GOLDEN / "rabbitmq-stream" / "vhost_failure_405.pcap"
LOST = GOLDEN / "rabbitmq-stream" / "lost_segments_405.pcap"
LOGIN = GOLDEN / "rabbitmq-stream" / "handshake_close_405.pcap"
SIZES = ((80, 24), (120, 40), (200, 60))
ACTIVE = "[@click=app.quit]x[/] [b]\x1b[31m\u202e\t\n"
"""What would act on a terminal, or on who takes it for markup."""


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_each_place_fits_the_terminal(size: tuple[int, int]) -> None:
    async def look(on: Browsing) -> None:
        assert "3 messages 22" in on.text and "quit" in on.text
        for keys in (["1"], ["2"], ["3"], ["enter"], ["question_mark"]):
            await on.press(*keys)
            lines = on.text.splitlines()
            assert len(lines) <= size[1] and max(map(len, lines)) <= size[0]
            assert "q quit" in on.text
        for columns, lines in ((40, 10), (12, 4), size):
            await on.pilot.resize_terminal(columns, lines)
            await on.press("escape", "1", "2", "3", "enter", "j")
            assert max(map(len, on.text.splitlines())) <= columns

    Browsing(REFUSED).drive(look, size)


def test_one_gets_from_a_finding_to_the_bytes_of_a_field_and_back() -> None:
    async def look(on: Browsing) -> None:
        await on.press("1")
        assert isinstance(on.place, Findings) and "virtual-host-refused" in on.text and 'the virtual host "no-such-vhost"' in on.text
        await on.press("enter")
        assert isinstance(on.place, Messages) and on.place.conversation == 0
        assert on.lines()[on.app.list.cursor].startswith("9 ") and "Open" in on.lines()[on.app.list.cursor]
        await on.press("r", "enter")
        assert isinstance(on.place, Fields) and on.place.record.number == 10
        await on.press("G")
        assert on.lines()[-1].endswith("12  virtual host access failure")
        assert "00 0c" in on.text
        chosen = [part.text for part in on.app.more.render_line(1) if part.style is not None and part.style.reverse]
        assert "".join(chosen).replace(" ", "").startswith("000c")
        await on.press("escape")
        assert isinstance(on.place, Messages)
        await on.press("escape")
        assert isinstance(on.place, Findings)

    Browsing(REFUSED).drive(look)


def test_of_several_captures_a_finding_names_its_own() -> None:
    async def look(on: Browsing) -> None:
        await on.press("1")
        assert f"of {REFUSED}" in on.place.line(0, 400)[-1][0]
        assert f"of {REFUSED}" in " ".join(" ".join(text for text, _ in line) for line in on.place.below(0, 400))

    Browsing(LOGIN, REFUSED).drive(look)


def test_keys_move_through_lines() -> None:
    async def look(on: Browsing) -> None:
        cursors = []
        for key in ("j", "down", "k", "G", "up", "g", "space", "pageup", "end", "home", "pagedown"):
            await on.press(key)
            cursors.append(on.app.list.cursor)
        last = len(on.place) - 1
        assert cursors[:6] == [1, 2, 1, last, last - 1, 0] and cursors[7:10] == [0, last, 0] and cursors[6] == cursors[10] > 0
        await on.press("g")
        await on.pilot.click("#list", offset=(3, 2))
        await on.settle()
        assert on.app.list.cursor == 2
        await on.pilot.click("#list", offset=(3, 2))
        await on.settle()
        assert isinstance(on.place, Fields)
        await on.press("right", "tab", "j")
        assert on.app.list.left > 0 and on.app.more.has_focus and on.app.more.cursor == 1
        await on.press("left", "n")
        assert on.place.record.number == 4
        await on.press("N", "N")
        assert on.place.record.number == 2

    Browsing(REFUSED).drive(look, (80, 24))


def test_keys_of_messages() -> None:
    async def look(on: Browsing) -> None:
        await on.press("n")
        assert on.lines()[on.app.list.cursor].startswith("10 ")
        await on.press("n", "N")
        assert on.lines()[on.app.list.cursor].startswith("10 ")
        await on.press("r")
        assert on.lines()[on.app.list.cursor].startswith("9 ")
        await on.press("m", "d", "j")
        assert " 3.001990 " in on.lines()[9] and "since mark" in on.text
        await on.press("d", "t", "t")
        assert on.reader.clock.form == "ud" and "2026-11-21 06:02:1" in on.text
        await on.press("t", "t", "colon")
        await on.type("15")
        await on.press("enter")
        assert on.lines()[on.app.list.cursor].startswith("15 ")
        await on.press("colon")
        await on.type("3s")
        await on.press("enter")
        assert on.lines()[on.app.list.cursor].startswith("10 ")
        await on.press("colon")
        await on.type("x")
        await on.press("enter")
        assert "not a message's number" in on.text
        await on.press("s")
        assert "by latency" in on.text and on.lines()[0].startswith("10 ")
        await on.press("s")
        longest = on.lines()[0][:3]
        await on.press("s")
        assert on.lines()[0].startswith("1 ")
        assert on.lines()[on.app.list.cursor].startswith(longest), "what ran beside it is around it"
        await on.press("l")
        assert isinstance(on.place, TextPage) and any("SaslAuthenticate" in line for line in on.lines())
        await on.press("escape", "question_mark")
        assert on.lines() == [line.strip() for line in HELP.splitlines()]

    Browsing(REFUSED).drive(look)


def test_the_user_messages_of_a_message_are_a_key_away() -> None:
    async def look(on: Browsing) -> None:
        row = next(at for at in range(len(on.place)) if on.place.row(at).record.name == "Publish")
        await on.press("g", *["j"] * row, "u")
        assert on.place.title() == f"entries of Publish {row + 1}: 4"
        assert on.lines() == [f"cred message {at}" for at in range(4)]
        assert "confirmed" in on.text and "id 0" in on.text and "body (bytes) = " in on.text
        await on.press("r")
        assert on.place.title().startswith("PublishConfirm")
        await on.press("escape", "escape", "enter", "u", "f")
        assert on.place.asked == f"number == {row + 1}" and len(on.place) == 1
        await on.press("escape", "g", "u")
        assert "carries no user messages" in on.text

    Browsing(GOLDEN / "rabbitmq-stream" / "credit_flow_405.pcap").drive(look)


def test_every_key_that_is_told_does_something_and_can_be_clicked() -> None:
    async def look(on: Browsing) -> None:
        bound = {key for one in on.app.BINDINGS for key in one.key.split(",")}  # type: ignore[union-attr]
        from streamdump.cli.browse.screen import EVERYWHERE, KEYS

        for root in ("1", "2", "3"):
            await on.press(root)
            assert {KEYS.get(key, key) for key, _ in (*on.place.keys, *EVERYWHERE)} <= bound
        await on.press("g")
        line = next(at for at, line in enumerate(on.app.keys.lines) if any(part[2] == "s" for part in line))
        column = sum(len(part[0]) for part in on.app.keys.lines[line][: [part[2] for part in on.app.keys.lines[line]].index("s")])
        await on.pilot.click("#keys", offset=(column, line))
        await on.settle()
        assert on.place.order == 1
        await on.pilot.click("#top", offset=(on.text.index("2 conv"), 0))
        await on.settle()
        assert isinstance(on.place, Conversations)

    Browsing(REFUSED).drive(look)


ASKED = ("outcome == refused", "response_code == access_refused or fields.virtual_host", "record == ending")
PROCESSES = REFUSED.with_name("processes_both_ends_made.pcapng")


@pytest.mark.parametrize(
    ("asked", "path"),
    [
        *((asked, path) for asked in ASKED for path in (REFUSED, LOST)),
        ("server.process == beam.smp", PROCESSES),
        ("client.process == orders and fields.stream", PROCESSES),
    ],
)
def test_a_filter_keeps_what_it_keeps_elsewhere(asked: str, path: Path) -> None:
    wanted = [one.number for one in streamdump.read(path, where=asked)]

    async def look(on: Browsing) -> None:
        assert [on.reader.records.row(one).record.number for one in on.place.shown] == wanted
        await on.press("escape")
        assert len(on.place) == len(on.reader.records)

    Browsing(path, where=asked).drive(look)


def test_latency_is_told_by_what_was_asked() -> None:
    async def look(on: Browsing) -> None:
        await on.settle()
        await on.press("l")
        assert any("LISTBINDERS" in line for line in on.lines()) and not any("RESPONSE" in line for line in on.lines())

    Browsing(GOLDEN / "mewbase" / "java-admin.pcap").drive(look)


def test_keys_that_come_together_keep_their_order() -> None:
    """As where somebody pastes, types while the machine is busy, or has another program type."""

    async def look(on: Browsing) -> None:
        await on.settle()
        for keys in (["/", *"outcome != refusde", "left", "backspace", "delete", *"ed"], [":", *"7x", "backspace"]):
            for key in keys:
                on.app.post_message(Key(NAMES.get(key, key), key if len(key) == 1 else None))
            await on.settle()
            assert on.app.prompt.value == {"/": "outcome != refused", ":": "7"}[keys[0]]
            await on.press("escape")
        assert on.app.place.order == 0 and on.app.reader.clock.form == "r" and isinstance(on.place, Messages)

    Browsing(REFUSED).drive(look)


def test_a_filter_is_understood_as_it_is_typed() -> None:
    async def look(on: Browsing) -> None:
        await on.press("slash")
        await on.type("outcome == refused")
        assert len(on.place) == 2
        await on.type(" and no")
        assert len(on.place) == 2 and "^^" in on.text
        await on.press("enter")
        assert on.app.prompt.has_focus and on.app.prompt.value == "outcome == refused and no" and "^^" in on.text, "it is kept and told of"
        await on.press(*["backspace"] * 7, "enter")
        assert len(on.place) == 2 and on.app.list.has_focus and "^^" not in on.text
        await on.press("slash")
        await on.type(" and number == 10")
        assert len(on.place) == 1
        await on.press("escape")
        assert len(on.place) == 2 and on.place.asked == "outcome == refused", "esc returns to what was asked for before"
        await on.press("escape")
        assert len(on.place) == 22
        await on.press("slash")
        await on.type("outco")
        await on.press("tab")
        assert on.app.prompt.value == "outcome"
        await on.press("escape", "2", "slash")
        await on.type("conversation == 1")
        assert [row.conversation for row in on.place.rows] == [1]
        await on.press("enter", "s", "s", "f")
        assert isinstance(on.place, Messages) and on.place.asked == "conversation == 1"
        await on.press("1", "slash")
        await on.type("conversation == 0")
        assert len(on.place) == 1
        await on.press("enter", "enter", "slash")
        await on.type("name == Open")
        view = on.place.view
        await on.press("enter", "2")
        assert view.stopped

    Browsing(REFUSED).drive(look)


def test_what_a_filter_has_behind_a_name_is_proposed() -> None:
    async def look(on: Browsing) -> None:
        for begun, proposed in (
            ("outcome ", "outcome =="),
            ("outcome c", "outcome contains"),
            ("outcome == r", "outcome == refused"),
            ("outcome == refused ", "outcome == refused and"),
            ("outcome > ", "outcome > "),
            ("outcome == refused and lat", "outcome == refused and latency_ns"),
        ):
            await on.press("slash")
            await on.type(begun)
            await on.press("tab")
            assert on.app.prompt.value == proposed
            await on.press("escape")

    Browsing(REFUSED).drive(look)


def test_below_stands_first_what_is_wrong_and_what_differs() -> None:
    """And the parts of the screen leave no row empty that the other one needs."""

    async def look(on: Browsing) -> None:
        names = [span.name for span in on.app.more.source.spans if span.depth == 0]
        assert names == ["peer_properties", "correlation_id", "size", "key", "version"]
        await on.press("n")
        names = [span.name for span in on.app.more.source.spans if span.depth == 0]
        assert names == ["response_code", "correlation_id", "size", "key", "version"]
        lines = on.text.splitlines()
        (first,) = [at for at, line in enumerate(lines) if line.startswith("packet ")]
        assert "virtual host access failure" in lines[first + 1]
        before = on.app.more.size.height
        await on.press("slash")
        await on.type("outcome == refused")
        await on.press("enter")
        assert len(on.place) < 5 and on.app.more.size.height > before
        rows = on.app.query_one("#both").size.height
        assert on.app.list.size.height == len(on.place) and on.app.more.size.height == rows - len(on.place) - 1
        await on.press("enter")
        assert [span.name for span in on.place.spans][:3] == ["size", "key", "version"], "as on the wire"
        assert on.app.list.size.height >= min(len(on.place), rows - len(on.app.more.source) - 1)

    Browsing(REFUSED).drive(look, (80, 24))


def test_a_tick_when_the_browser_has_closed_shows_nothing() -> None:
    Browsing(REFUSED).app.tick()


def test_what_is_told_below_is_of_the_chosen_line() -> None:
    async def look(on: Browsing) -> None:
        assert on.app.more.source.record.number == 1
        await on.press("slash")
        await on.type("number == 10")
        assert len(on.place) == 1 and on.app.more.source.record.number == on.app.index() + 1 == 10
        await on.type("0")
        assert len(on.place) == 0 and len(on.app.more.source) == 0 and "nothing here" not in on.text and "0 match" in on.text
        await on.press("escape", "2", "slash")
        await on.type("conversation == 1")
        assert on.app.more.source.line(0, 80)[0][0].startswith("1 ")

    Browsing(REFUSED).drive(look)


def test_a_finding_without_messages_leads_to_its_place() -> None:
    async def look(on: Browsing) -> None:
        await on.press("1")
        for rule, number, told in (
            ("tcp.lost-by-capture", 23, "this is the first gap"),
            ("rabbitmq-stream.id-in-use", 62, ""),
            ("rabbitmq-stream.refused", 78, ""),
        ):
            await on.press("g", *["j"] * [one.rule for one in on.place.rows].index(rule), "enter")
            assert isinstance(on.place, Messages) and on.app.index() == number - 1 and told in on.text
            assert bool(told) == ("no message shows this" in on.text)
            await on.press("escape")
        messages = Messages(on.reader, 0)
        for packet, at in ((74, 61), (75, 62), (1, 0)):
            finding = msgspec.structs.replace(on.place.rows[0], rule="tcp.retransmitted", packets=[packet])
            assert messages.place_of(finding) == (at, [f"no message shows this; this is the first message from packet {packet} on"])
        finding.packets = [10_000]
        assert messages.place_of(finding) == (len(messages) - 1, ["no message shows this; this is the last message"])
        assert messages.place_of(msgspec.structs.replace(finding, messages=[7], rule="iggy.again-and-again"))[0] == 6
        assert "has no messages" in Messages(on.reader, 7).place_of(finding)[1][0]

    Browsing(LOST).drive(look)


@pytest.mark.parametrize("size", [0, 20, 1000])
def test_what_cannot_be_read_is_told_at_once_and_at_the_end(size: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "cut.pcap"
    path.write_bytes(REFUSED.read_bytes()[:size])
    told = {0: "is empty", 20: "cut off in the file header", 1000: "cut off in packet"}[size]

    async def look(on: Browsing) -> None:
        for keys in (["3"], ["1"], ["question_mark"], ["escape", "3", "slash"], ["x"]):
            await on.press(*keys)
            assert told in on.text and len(on.text.splitlines()) <= 24 and "quit" in on.text

    on = Browsing(path, LOGIN) if size == 0 else Browsing(path)
    on.drive(look, (80, 24))
    assert on.reader.run.end() == ExitCode.UNREADABLE
    assert told in capsys.readouterr().err


def test_one_learns_that_there_are_no_more_messages() -> None:
    async def look(on: Browsing) -> None:
        await on.press("n")
        for text, told in (
            ("999", "no message 999: the last one is 22"),
            ("0", "no message 0: the last one is 22"),
            ("9999s", "no message at 9999s or later"),
            ("05:00:00", "no message at 05:00:00 or later"),
            ("x", "not a message's number"),
        ):
            await on.press("colon")
            await on.type(text)
            await on.press("enter")
            assert told in on.text and on.app.index() == 9
        await on.press("colon")
        await on.type("06:02:1" + "0" + "s")
        await on.press("enter")
        assert on.app.index() is not None

    Browsing(REFUSED).drive(look)


def test_what_does_not_fit_can_be_seen_and_that_is_said() -> None:
    async def look(on: Browsing) -> None:
        await on.press("question_mark")
        assert "space shows more" in on.text and "quit" not in on.text.splitlines()[-3]
        await on.press("space")
        assert "q, ctrl+c    quit" in on.text and "space shows more" not in on.text
        await on.press("escape", "2")
        assert "scroll with right and left" in on.text
        head = on.text.splitlines()[1]
        assert "client and server" in head and "how it went" not in head
        await on.press("right", "right", "right", "right")
        assert "how it went" in on.text and "refused" in on.text.splitlines()[2] and "right and left" not in on.text

    assert max(map(len, HELP.splitlines())) <= 80
    Browsing(REFUSED).drive(look, (80, 24))


def test_the_form_of_times_is_told() -> None:
    async def look(on: Browsing) -> None:
        for told in ("local time", "UTC", "epoch", "seconds"):
            await on.press("t")
            assert f"times: {told}" in on.text and told in on.text.splitlines()[1]

    Browsing(REFUSED).drive(look)


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    async def look(on: Browsing) -> None:
        for key, name in (("e", "mine.txt"), ("w", "mine.pcapng")):
            (tmp_path / name).write_text("mine")
            await on.press(key)
            on.app.prompt.value = str(tmp_path / name)
            await on.press("enter")
            assert "already exists" in on.text.replace("\n", "") and (tmp_path / name).read_text() == "mine"
            # The name is there to be mended
            assert on.app.prompt.value == str(tmp_path / name)
            on.app.prompt.value = str(tmp_path / f"new-{name}")
            await on.press("enter")
            assert (tmp_path / f"new-{name}").stat().st_size

    Browsing(REFUSED).drive(look, (200, 40))


def test_the_field_below_is_what_keys_speak_of_once_one_is_there() -> None:
    async def look(on: Browsing) -> None:
        await on.type(":11")
        await on.press("enter", "tab")
        while on.app.more.source.value(on.app.more.cursor, 80) != "'offs'":  # type: ignore[attr-defined]
            await on.press("j")
        await on.press("f")
        assert "== offs" in on.text and "name ==" not in on.text

    Browsing(LOST).drive(look)


def test_an_answer_that_a_filter_leaves_out_is_shown_all_the_same() -> None:
    async def look(on: Browsing) -> None:
        await on.press("r")
        assert isinstance(on.app.place, Fields)
        await on.press("escape")
        assert isinstance(on.app.place, Messages) and on.app.place.asked

    Browsing(REFUSED, where="outcome == refused").drive(look)


def test_a_list_is_sorted_once_all_is_done() -> None:
    """Until then it is what it was, and not empty."""

    async def look(on: Browsing) -> None:
        orders = []
        real = Messages.sort

        def sort(self: Messages, order: int) -> list[int]:
            orders.append((self.order, len(self)))
            return real(self, order)

        Messages.sort = sort  # type: ignore[method-assign]
        try:
            await on.press("s", "s", "s")
        finally:
            Messages.sort = real  # type: ignore[method-assign]
        assert orders == [(0, 22), (1, 22), (2, 22)]

    Browsing(REFUSED).drive(look)


def test_a_value_is_filtered_for_and_copied() -> None:
    async def look(on: Browsing) -> None:
        await on.press("n", "enter", "G", "y")
        assert on.app.clipboard == "12  virtual host access failure"
        assert "copied 31 characters to the terminal's clipboard (OSC 52)" in on.text
        await on.press("Y")
        assert on.app.clipboard == "fields.response_code == 12"
        await on.press("f")
        assert isinstance(on.place, Messages) and on.place.asked == "fields.response_code == 12" and len(on.place) == 2
        await on.press("f")
        assert on.place.asked == "(fields.response_code == 12) and name == Open"
        await on.press("y")
        assert "virtual host access failure" in on.app.clipboard

    Browsing(REFUSED).drive(look)


def test_what_is_shown_is_exported_as_text_or_as_json(tmp_path: Path) -> None:
    async def look(on: Browsing) -> None:
        for name in ("out.jsonl", "out.txt"):
            await on.press("e")
            on.app.prompt.value = str(tmp_path / name)
            await on.press("enter")
        lines = (tmp_path / "out.jsonl").read_bytes().splitlines()
        assert [json.loads(line) for line in lines] == [
            json.loads(line) for line in (tmp_path / "want.jsonl").read_bytes().splitlines() if json.loads(line).get("outcome") == "refused"
        ]
        assert len((tmp_path / "out.txt").read_text(encoding="utf-8").splitlines()) == 2
        await on.press("e")
        on.app.prompt.value = str(tmp_path / "no" / "folder")
        await on.press("enter")
        assert "cannot be written" in on.text
        await on.press("e")
        on.app.prompt.value = str(REFUSED)
        await on.press("enter")
        assert "is an input" in on.text

    done = subprocess.run([sys.executable, "-m", "streamdump", "--json", str(REFUSED)], capture_output=True, timeout=PATIENCE, check=True)
    (tmp_path / "want.jsonl").write_bytes(done.stdout)
    Browsing(REFUSED, where="outcome == refused").drive(look)


def test_packets_of_what_is_shown_are_written_as_captured(tmp_path: Path) -> None:
    async def look(on: Browsing) -> None:
        await on.press("w")
        assert "passwords and tokens" in on.text
        on.app.prompt.value = str(tmp_path / "out.pcapng")
        await on.press("enter")
        assert "written as captured" in on.text

    Browsing(REFUSED, where="conversation == 1").drive(look)
    wanted = [one for one in streamdump.read(REFUSED) if one.conversation == 1]
    found = list(streamdump.read(tmp_path / "out.pcapng"))
    assert [(one.src, one.time_ns) for one in found] == [(one.src, one.time_ns) for one in wanted]
    assert (tmp_path / "out.pcapng").stat().st_mode & 0o777 == 0o600


def some_captures() -> list[Path]:
    """Captures of each family, some with TLS."""
    found = [path for family in sorted(GOLDEN.iterdir()) if family.is_dir() for path in sorted(family.glob("*.pcap*"))[:6]]
    return [*found, *GOLDEN.glob("*/*tls*.pcapng"), LOST]


@pytest.mark.parametrize("path", some_captures(), ids=lambda path: path.name)
def test_a_message_read_again_from_a_snapshot_is_the_one_that_was_read(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "EVERY", 3)
    monkeypatch.setattr(reading, "ROOM", 1 << 30)
    monkeypatch.setattr(index, "RECORDS", 16)
    monkeypatch.setattr(index, "TOGETHER", 16)
    run = FileRun([str(path)], Options(findings=True))
    run.inspector.batch_rows = 1
    reader = Reader(run, run.inspector.options, Clock("r"))
    reader.shown.set()
    reader.start()
    reader.stop(wait_all=True)
    wanted = list(Inspector([open_capture(path)], Options(detail=True)).records())
    assert len(reader.records) == len(wanted)
    for at, one in enumerate(wanted[:400]):
        assert reader.full(at) == one
        row = reader.records.row(at).record
        if type(one) is Message:
            light = msgspec.structs.replace(one, fields={}, raw=None, spans=None)
            assert msgspec.json.encode(row) == msgspec.json.encode(light)


@pytest.mark.parametrize("kept", [False, True], ids=["a file", "what is kept of one"])
def test_who_still_reads_a_message_again_at_the_end_is_told(kept: bool, tmp_path: Path) -> None:
    path = tmp_path / "input"
    path.write_bytes(gzip.compress(REFUSED.read_bytes()) if kept else REFUSED.read_bytes())
    run = FileRun([str(path)], Options(findings=True))
    reader = Reader(run, run.inspector.options, Clock("r"))
    reader.shown.set()
    reader.start()
    reader.stop(wait_all=True)
    assert reader.full(0).number == 1
    reader.stop()
    with pytest.raises(CaptureError, match="cannot be read again"):
        reader.full(0)


@pytest.mark.parametrize("how", ["gzip", "fifo"])
def test_what_cannot_be_read_twice_is_kept(how: str, tmp_path: Path) -> None:
    path = tmp_path / "input"
    if how == "gzip":
        path.write_bytes(gzip.compress(REFUSED.read_bytes()))
    else:
        os.mkfifo(path)
        Thread(target=path.write_bytes, args=(REFUSED.read_bytes(),), daemon=True).start()

    async def look(on: Browsing) -> None:
        await on.press("n", "enter", "G")
        assert on.lines()[-1].endswith("virtual host access failure")

    Browsing(path).drive(look)


def test_a_spool_forgets_what_is_oldest() -> None:
    spool = index.Spool(100)
    places = [spool.write(bytes([number]) * 10) for number in range(50)]
    assert spool.read(places[49], 10) == bytes([49]) * 10
    assert spool.read(places[40], 10) == bytes([40]) * 10
    assert spool.read(places[0], 10) == b""
    spool.close()


def test_secrets_are_on_no_screen_unless_they_are_asked_for(tmp_path: Path) -> None:
    async def look(on: Browsing) -> None:
        seen = []
        for at in range(2, 6):
            await on.press("3", "colon")
            await on.type(str(at + 1))
            await on.press("enter", "enter")
            await on.press("G", "y")
            seen += [on.text, on.app.clipboard, *on.lines()]
            await on.press("escape")
        on.seen = "\n".join(seen)  # type: ignore[attr-defined]

    for show in (False, True):
        on = Browsing(LOGIN, where=None, show_secrets=show)
        on.drive(look, (200, 60))
        secret = b"guest\x00guest".hex()
        assert ("guest\\x00guest" in on.seen or secret in on.seen) == show  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", ["00", *(pytest.param(name, marks=pytest.mark.sweep) for name in ("03-0", "10", "18", "42", "46"))])
def test_a_planted_secret_is_in_no_export(name: str, tmp_path: Path) -> None:
    """Of every list, and of the fields of the first messages."""
    (path,) = (one for one in login_captures(tmp_path) if one.stem == name)
    folder = tmp_path / "exports"
    folder.mkdir()

    async def steps(on: Browsing) -> None:
        async def export(name: str) -> None:
            await on.press("e")
            on.app.prompt.value = str(folder / name)
            await on.press("enter")

        for key in ("1", "2", "3"):
            await on.press(key)
            await export(f"list {key}.txt")
        await export("json.jsonl")
        for number in range(1, min(len(on.place), 4) + 1):
            await on.press("3", "colon")
            await on.type(str(number))
            await on.press("enter", "enter")
            await export(f"message {number}.txt")
            await on.press("escape")

    Browsing(path).drive(steps, (200, 60))
    said = {file.stem: file.read_text("utf-8") for file in folder.iterdir()}
    assert {"list 1", "list 2", "list 3", "json", "message 1"} <= said.keys()
    assert "redacted" in said["json"]
    assert found(SECRET, said) == []


def test_captured_text_is_text_in_every_view(monkeypatch: pytest.MonkeyPatch) -> None:
    def poisoned(value: Any) -> Any:
        if isinstance(value, str):
            return value + ACTIVE
        if isinstance(value, dict):
            return {key + ACTIVE: poisoned(one) for key, one in value.items()}
        return [poisoned(one) for one in value] if isinstance(value, list) else value

    def poison(one: Any) -> Any:
        for name in (
            ("rule", "cause", "advice", "notes", "ended", "evidence", "facts", "name") if not isinstance(one, Message) else ("notes",)
        ):
            if hasattr(one, name):
                setattr(one, name, poisoned(getattr(one, name)))
        if isinstance(one, Message):
            one.fields = poisoned(one.fields)
            one.spans = [msgspec.structs.replace(span, name=poisoned(span.name), value=poisoned(span.value)) for span in one.spans or []]
        return one

    found = Reader.full
    monkeypatch.setattr(Reader, "full", lambda self, at: poison(found(self, at)))
    monkeypatch.setattr(
        index.RecordIndex,
        "add",
        lambda self, record, mark, name, text, *more, real=index.RecordIndex.add: real(
            self, record, mark, name + ACTIVE, ACTIVE + text, *more
        ),
    )

    async def look(on: Browsing) -> None:
        on.reader.findings = [poison(one) for one in on.reader.findings]
        on.reader._rows = [poison(one) for one in on.reader.rows]
        on.reader.warned = [ACTIVE]
        on.app.roots[0].state = None
        for keys in (["1"], ["2"], ["3"], ["n", "enter"], ["G", "f"], ["y"], ["l"]):
            await on.press(*keys)
            assert "\x1b" not in on.text and "\u202e" not in on.text
            rows = on.text.splitlines()
            shown = [(line.index("[@click"), at) for at, line in enumerate(rows) if "[@click" in line]
            assert shown or keys in (["G", "f"], ["l"])
            for column, at in shown[:4]:
                await on.pilot.click(offset=(column + 1, at))
                await on.pilot.click(offset=(column + 17, at))
                await on.settle()
                assert on.app.is_running
            await on.press("escape") if keys in (["l"],) else None

    Browsing(REFUSED).drive(look, (200, 60))


ACTS = "s\x1b]0;owned\x07\x1b[31m\x9b7m\u202e\u2066\u2028\x7f\t\r\n\U000e0041 \\u0041 \\\\ \"q' )"
"""Text with all that acts on a terminal, and all that a filter has its own meaning for."""


def hostile(path: Path) -> Path:
    """A capture whose texts, keys, names and addresses in a PROXY header all are such a text."""

    def string(text: str) -> bytes:
        return len(text.encode()).to_bytes(2, "big") + text.encode()

    def frame(key: int, body: bytes) -> bytes:
        return (len(body) + 4).to_bytes(4, "big") + key.to_bytes(2, "big") + b"\0\1" + body

    pair = (1).to_bytes(4, "big") + string(ACTS) + string(ACTS)
    client = [frame(0x11, (1).to_bytes(4, "big") + pair), frame(0x0D, (2).to_bytes(4, "big") + string(ACTS) + pair)]
    server = [frame(0x8011, (1).to_bytes(4, "big") + b"\0\1" + pair), frame(0x800D, (2).to_bytes(4, "big") + b"\0\6")]
    socket = ACTS.encode().ljust(108, b"\0")
    client[0] = b"\r\n\r\n\0\r\nQUIT\n\x21\x31" + (216).to_bytes(2, "big") + socket * 2 + client[0]
    packets = [(tcp(seq=999, flags=SYN), A, B), (tcp(sport=5552, dport=40000, seq=1999, ack=1000, flags=SYN | ACK), B, A)]
    one, other = 1000, 2000
    for asked, answer in zip(client, server, strict=True):
        packets.append((tcp(asked, seq=one, ack=other), A, B))
        one += len(asked)
        packets.append((tcp(answer, sport=5552, dport=40000, seq=other, ack=one), B, A))
        other += len(answer)
    path.write_bytes(pcap(Packet(ethernet(ip4(body, src=src, dst=dst)), START_NS + at) for at, (body, src, dst) in enumerate(packets)))
    return path


@pytest.mark.sweep
def test_no_key_brings_captured_characters_to_the_terminal(tmp_path: Path) -> None:
    asked = f"stream == {quoted(ACTS)}"

    async def look(on: Browsing) -> None:
        async def harmless(*keys: str) -> None:
            await on.press(*keys)
            assert all(one.isprintable() or one == "\n" for one in on.text), keys
            assert on.app.clipboard.isprintable()

        filters = set()
        for place in "123":
            await harmless(place)
            for at in range(len(on.place)):
                await harmless(place, "g", *["j"] * at, "y", "Y", "s", "f", "slash", "escape", "escape")
        for at in range(2, 4):
            await harmless("3", "g", *["j"] * at, "enter")
            for line in range(len(on.place)):
                await harmless("g", *["j"] * line, "y", "Y", "f")
                if isinstance(on.place, Messages):
                    # What is asked for is there, also once the prompt has shown it
                    filters.add(on.place.asked)
                    assert len(on.place) or '"' not in on.place.asked, on.place.asked
                    await harmless("slash", "enter")
                    assert on.place.asked in filters
                    await harmless("escape", "g", *["j"] * at, "enter")
        assert f"fields.{asked}" in filters
        # What one pastes, and what was given as -Y
        await harmless("3", "slash")
        on.app.prompt.post_message(Paste(f'stream == "{ACTS}'))
        await on.settle()
        await harmless("left")
        assert on.app.prompt.value == f"stream == {quoted(ACTS.splitlines()[0])}"[:-1]

    written = ACTS.replace("\\", "\\\\").replace('"', '\\"')
    Browsing(hostile(tmp_path / "hostile.pcap"), where=f'stream == "{written}"').drive(look, (200, 60))


def test_a_terminal_is_sent_no_captured_sequence(tmp_path: Path) -> None:
    text = typed(
        ["browse", str(hostile(tmp_path / "hostile.pcap"))],
        ("jj", lambda seen: "Create" in seen),
        ("\r", lambda seen: "correlation_id" in seen),
        ("jjjjjj", lambda seen: "esc back" in seen),
        ("f", lambda seen: "7/" in seen),
        ("/", lambda seen: "1 match" in seen),
        ("\x03", lambda seen: quoted(ACTS)[:20] in seen),
    )
    assert quoted(ACTS)[:20] in text
    assert not any(one in text for one in ("\x1b]0;owned", "owned\x07", "\x9b", "\u202e", "\u2066", "\u2028", "\x7f", "\U000e0041"))


def test_packed_records_are_unpacked_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index, "RECORDS", 4)
    kinds = set()
    for name in ("rabbitmq-stream/vhost_failure_405", "rabbitmq-stream/sasl_key_17_damaged", "seastar-rpc/basic", "iggy/seed-ids"):
        records, added = index.RecordIndex(), []
        for record in streamdump.read(GOLDEN / f"{name}.pcap", exchanges=True):
            records.add(record, "*", "a name", "a text", record.number, True)  # type: ignore[arg-type]
            added.append(msgspec.structs.replace(record, fields={}) if type(record) is Message else record)
            kinds.add(type(record))
        for at, record in enumerate(added):
            row = records.row(at)
            assert type(row.record) is type(record)
            assert msgspec.json.encode(row.record) == msgspec.json.encode(record)
            assert row[1:] == ("*", "a name", "a text", record.number, True)
    assert len(kinds) > 2


def test_without_a_terminal_it_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["browse", str(REFUSED)]) == ExitCode.USAGE
    assert capsys.readouterr().err == "streamdump: browse needs a terminal, and TERM other than dumb; streamdump FILE prints the messages\n"
    code, text = on_terminal(["browse", str(REFUSED)], environment={"TERM": "dumb"})
    assert (code, text.count("\n")) == (ExitCode.USAGE, 1)
    assert on_terminal(["browse", str(REFUSED)], stderr=False) == (ExitCode.USAGE, "")


def test_a_crash_gives_the_terminal_back_and_is_reported() -> None:
    code = (
        "import os, sys; os.environ.pop('STREAMDUMP_BARRIER', None)\n"
        "from streamdump.cli.browse.listing import Listing\n"
        "def broken(self, y): raise ValueError('secret')\n"
        "Listing.render_line = broken\n"
        "from streamdump.cli.app import main\n"
        f"sys.exit(main(['browse', {str(REFUSED)!r}]))\n"
    )
    done, text = process_on_terminal(["-c", code])
    assert done == ExitCode.INTERNAL
    assert text.rstrip().endswith("please report this line") or "please report this line" in text
    assert "\x1b[?1049l" in text and "secret" not in text and "Traceback" not in text


def test_what_cannot_be_opened_opens_no_screen() -> None:
    code, text = on_terminal(["browse", str(GOLDEN / "no-such.pcap")])
    assert code == ExitCode.UNREADABLE and "no such file" in text


def read(*paths: Path, **options: Any) -> Reader:
    """All that is remembered of captures."""
    run = FileRun([str(path) for path in paths], Options(findings=True, **options))
    reader = Reader(run, run.inspector.options, Clock("r"))
    reader.shown.set()
    reader.start()
    reader.stop(wait_all=True)
    return reader


def test_several_captures_and_what_a_port_is_read_as_are_as_elsewhere() -> None:
    paths = [GOLDEN / "rabbitmq-stream" / f"rstream_twice_{number}_310.pcap" for number in (1, 2)]
    for files, options in ((paths, {}), (paths, {"separate": True}), ([REFUSED], {"decode_as": ((5552, "rabbitmq-stream-draft", None),)})):
        reader = read(*files, **options)
        wanted = list(Inspector([open_capture(path) for path in files], Options(detail=True, **options)).records())  # type: ignore[arg-type]
        assert [reader.full(at) for at in range(len(reader.records))] == wanted
        reader.stop()


def test_what_is_remembered_of_an_interface_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "LIVE", 32)
    monkeypatch.setattr(reading, "MOST", 64)
    monkeypatch.setattr(index, "RECORDS", 16)
    monkeypatch.setattr(index, "TOGETHER", 16)
    run = FileRun([str(LOST)], Options(findings=True))
    run.inspector.batch_rows = 1
    reader = Reader(run, run.inspector.options, Clock("r"))
    reader.live = True
    reader.shown.set()
    reader.start()
    reader.stop(wait_all=True)
    every = View(reader)
    assert 32 <= len(every) < 32 + 2 * 16 and every[len(every) - 1] == len(reader.records) - 1
    assert reader.records.row(0).text == "no longer kept"
    assert reader.full(every[0]).number == every[0] + 1
    assert [every[at] for at in range(len(every))] == [at for at in reader.records.of[0] if at >= reader.records.first]
    reader.stop()


def test_a_live_list_follows_its_end_until_one_scrolls() -> None:
    async def look(on: Browsing) -> None:
        assert on.app.list.cursor == len(on.place) - 1
        await on.press("k")
        on.reader.records.add(on.reader.records.row(0).record, " ", "again", "", 0)
        await on.settle()
        assert on.app.list.cursor == len(on.place) - 3
        await on.press("G")
        on.reader.records.add(on.reader.records.row(0).record, " ", "again", "", 0)
        await on.settle()
        assert on.app.list.cursor == len(on.place) - 1

    on = Browsing(REFUSED)
    on.reader.live = on.app._following = True
    on.drive(look)


@needs_capture
def test_an_interface_is_shown_while_it_is_captured() -> None:
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
    port = free_port()
    call = [sys.executable, "-m", "streamdump", "browse", "-i", "lo", "-f", f"tcp port {port}"]
    with subprocess.Popen(call, stdin=slave, stdout=slave, stderr=slave, env=os.environ | {"TERM": "xterm"}) as process:
        os.close(slave)
        seen = b""

        def shows(text: bytes) -> bool:
            nonlocal seen
            if select.select([master], [], [], 0)[0]:
                seen += os.read(master, 1 << 16)
            return text in seen

        until(lambda: shows(b"live"), process)
        with Pair(port) as pair:
            pair.replay(said(LOGIN))
            until(lambda: shows(b"PeerProperties"), process)
        until(lambda: shows(b"closed (FIN)"), process)
        os.write(master, b"q")
        until(lambda: shows(b"in 1 conversation"))
        assert process.wait(PATIENCE) == ExitCode.DONE
    os.close(master)


def test_a_silent_pipe_does_not_keep_it_from_ending(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "ENOUGH", 0.1)
    path = tmp_path / "input"
    os.mkfifo(path)
    silent = os.open(path, os.O_RDWR)
    os.write(silent, REFUSED.read_bytes()[:-1])
    taken, take = Event(), Reader._take

    def take_all(reader: Reader, batch: list[Record]) -> bool:
        enough = take(reader, batch)
        taken.set()
        return enough

    # It has not been stopped while it still had something to read
    monkeypatch.setattr(Reader, "_take", take_all)
    run = FileRun([str(path)], Options(findings=True))
    reader = Reader(run, run.inspector.options, Clock("r"))
    reader.shown.set()
    reader.start()
    assert taken.wait(PATIENCE)
    reader.stop()
    assert not reader.done
    os.close(silent)
    until(lambda: reader.done)
    reader.stop()


def test_relative_times_count_from_the_first_packet() -> None:
    """It is no TCP packet, and came 300 s before the first message."""

    async def look(on: Browsing) -> None:
        await on.press("3")
        assert on.lines()[0].split()[:2] == ["1", "300.024915"]
        await on.press("/")
        await on.type("relative < 300.05s")
        await on.press("enter")
        assert len(on.lines()) == 2
        await on.press("escape", "colon")
        await on.type("300.17s")
        await on.press("enter")
        assert on.app.index() == 10

    Browsing(GOLDEN.parent / "samples" / "reports" / "relative_time_not_from_first_packet.pcap").drive(look)


def test_a_line_that_was_released_late_is_marked_as_in_text(capsys: pytest.CaptureFixture[str]) -> None:
    path = GOLDEN / "rabbitmq-stream" / "lost_segments_405.pcap"

    async def look(on: Browsing) -> None:
        await on.press("3")
        found = [int(line.split()[0]) for line in on.lines() if line.split()[1].endswith("^")]
        assert found == wanted

    assert main([str(path)]) == ExitCode.DONE
    wanted = [int(line.split()[0]) for line in capsys.readouterr().out.splitlines() if line.split()[1].endswith("^")]
    assert wanted
    Browsing(path).drive(look)
