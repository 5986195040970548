"""What the command line and the library say when a bug of ours shows: one line, exit code 5, and all else as ever."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

import streamdump
import streamdump.render.conversations
import streamdump.render.hexdump
import streamdump.render.jsonl
import streamdump.render.summary
import streamdump.render.tree
from streamdump.capture.link import LinkParser
from streamdump.cli.app import main
from streamdump.cli.exits import ExitCode
from streamdump.cli.run import lines_of
from streamdump.errors import BARRIER, InternalError
from streamdump.model import Ending, Exchange, Gap, Message
from streamdump.pair.pairer import Pairer
from streamdump.protocols import PROTOCOLS
from tests.support.planting import GOLDEN, Planted, plant, with_members
from tests.support.schema import validate
from tests.support.terminal import process_on_terminal

pytestmark = pytest.mark.usefixtures("barrier")

SOME = GOLDEN / "rabbitmq-stream" / "js_publish_consume_405.pcap"
"""Three conversations; the first creates a stream."""

OTHER = GOLDEN / "mewbase" / "java-query.pcap"

REPORT = re.compile(
    r"streamdump: internal error: Planted in streamdump/[\w/]+\.py:\d+ \(\w+\), packet (\d+) of (\S+), conversation (\d+) "
    r"([\d.:]+) > ([\d.:]+) rabbitmq-stream: what follows in it is skipped; please report this line"
)


def shown(capsys: pytest.CaptureFixture[str], *argv: str | Path) -> tuple[int, str, list[str]]:
    """Exit code, standard output, and the lines of standard error."""
    code = main([str(one) for one in argv])
    out, err = capsys.readouterr()
    assert "Traceback" not in err
    return code, out, err.splitlines()


def records(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> None:
    """The conversation of a client that creates a stream fails with that."""
    plant(monkeypatch, Pairer, "pair", lambda self, one, append: isinstance(one.record, Message) and one.record.name == "Create")


@pytest.mark.usefixtures("broken")
def test_one_line_and_code_5(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    for argv in (["--json", "--exchanges"], [], ["-V"], ["-x"], ["-q"], ["-t", "ud"]):
        code, out, err = shown(capsys, *argv, SOME)
        assert code == ExitCode.INTERNAL == 5
        assert len(err) == 2
        told = REPORT.fullmatch(err[0])
        assert told is not None
        assert told[2] == str(SOME)
        assert "1 internal error, " in err[1]
        assert re.search("more: streamdump (conversations|diagnose)", err[1])
        assert bool(out) is (argv != ["-q"])
    code, out, err = shown(capsys, "--json", "--exchanges", SOME)
    made = records(out)
    for record in made:
        validate(record)
    own = [record for record in made if record["conversation"] == int(told[3])]
    assert {record["reason"] for record in own if record["record"] == "gap"} == {"skipped"}
    names = [record["name"] for record in own if record["record"] == "message" and record["sender"] == "client"]
    assert names == ["PeerProperties", "SaslHandshake", "SaslAuthenticate", "Tune", "Open", "ExchangeCommandVersions"]
    code, out, err = shown(capsys, "conversations", "--json", SOME)
    assert (code, len(err)) == (5, 2)
    for record in records(out):
        validate(record)
    assert [record["internal_error"] for record in records(out)] == [f"Planted, packet {told[1]}", None, None]
    code, out, err = shown(capsys, "conversations", SOME)
    assert (code, len(err)) == (5, 2)
    assert [f"internal error: Planted, packet {told[1]}" in line for line in out.splitlines()] == [False, True, False, False]
    monkeypatch.setenv(BARRIER, "off")
    with pytest.raises(Planted):
        main([str(SOME)])


def test_a_good_run_says_nothing_of_it(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = shown(capsys, SOME)
    assert (code, len(err)) == (0, 1)
    assert "internal" not in err[0]
    _, out, _ = shown(capsys, "conversations", "--json", SOME)
    assert [record["internal_error"] for record in records(out)] == [None, None, None]


@pytest.mark.usefixtures("broken")
def test_several_files(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = shown(capsys, "--json", OTHER, SOME)
    assert code == 5
    told = REPORT.fullmatch(err[0])
    assert told is not None
    assert (told[2], len(err)) == (str(SOME), 2)
    with pytest.raises(InternalError, match=f" of {re.escape(str(SOME))}, "):
        list(streamdump.read(OTHER, SOME))
    alone = records(shown(capsys, "--json", OTHER)[1])
    assert [(one.get("name"), one.get("position")) for one in records(out) if one["protocol"] == "mewbase"] == [
        (one.get("name"), one.get("position")) for one in alone
    ]


@pytest.mark.usefixtures("broken")
def test_codes_that_meet(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "cut.pcap").write_bytes(SOME.read_bytes()[:-5])
    code, _, err = shown(capsys, tmp_path / "cut.pcap")
    assert (code, len(err)) == (ExitCode.UNREADABLE, 3)
    code, _, err = shown(capsys, "--json", tmp_path / "none", SOME)
    assert (code, len(err)) == (ExitCode.UNREADABLE, 3)
    assert shown(capsys, "-c", "0", SOME)[0] == ExitCode.USAGE


@pytest.mark.usefixtures("broken")
def test_the_library_goes_on_and_raises_at_the_end() -> None:
    found: list[Any] = []
    reading = streamdump.read(SOME, exchanges=True)
    with pytest.raises(InternalError) as raised:
        while True:
            found.append(next(reading))
    assert {type(one) for one in found} == {Message, Gap, Exchange, Ending}
    assert len({one.conversation for one in found}) == 3
    (line,) = raised.value.reports
    assert str(raised.value) == line
    assert REPORT.fullmatch(f"streamdump: {line}")


def test_the_library_tells_of_each_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, Pairer, "pair", lambda *_: True)
    with pytest.raises(InternalError, match=r"packet 4 of input, conversation 0 .* \(and 2 more\)$") as raised:
        list(streamdump.read(io.BytesIO(SOME.read_bytes())))
    assert len(raised.value.reports) == 3


def test_what_no_barrier_catches_is_a_line_too(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, LinkParser, "segment", lambda *_: True)
    code, out, err = shown(capsys, SOME)
    assert (code, out) == (5, "")
    assert re.fullmatch(r"streamdump: internal error: Planted in \S+ \(_parts\) of \S+: nothing was read after packet 0; please .*", err[0])
    plant(monkeypatch, LinkParser, "__init__", lambda *_: True)
    code, out, err = shown(capsys, SOME)
    assert (code, out, len(err)) == (5, "", 1)
    assert re.fullmatch(r"streamdump: internal error: Planted in \S+ \(__init__\): the run ended; please report this line", err[0])


# Rendering


LINE = re.compile(r" {0,4}\d+ +(\d+\.\d{6}|\d{4}-\d\d-\d\d) ")
"""What the first line of a record begins with."""


def without(number: int, out: str, json: bool = False) -> list[str]:
    """The lines of all records but one."""
    head = f'"number":{number},' if json else rf" *{number} "
    return [line for line in out.splitlines() if not (head in line if json else re.match(head, line))]


class Refusing:
    """An encoder that does not take a record."""

    def __init__(self, number: int) -> None:
        self.number = number

    def encode_lines(self, records: list[Any]) -> bytes:
        if any(record.number == self.number for record in records):
            raise OverflowError
        return msgspec.json.Encoder().encode_lines(records)


def test_json_that_cannot_be_made_costs_its_record(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    _, whole, _ = shown(capsys, "--json", SOME)
    monkeypatch.setattr(streamdump.render.jsonl, "_ENCODER", Refusing(7))
    code, out, err = shown(capsys, "--json", SOME)
    assert (code, len(err)) == (5, 2)
    assert out.splitlines() == without(7, whole, True)
    record = json.loads(whole.splitlines()[6])
    assert f"packet {record['packets'][1]} of {SOME}, conversation {record['conversation']} {record['src']} > {record['dst']}" in err[0]
    assert err[0].endswith(" rabbitmq-stream: record 7 is not shown; please report this line")
    _, whole, _ = shown(capsys, "conversations", "--json", OTHER, SOME)
    monkeypatch.setattr(streamdump.render.jsonl, "_ENCODER", Refusing(2))
    code, out, err = shown(capsys, "conversations", "--json", OTHER, SOME)
    assert (code, len(err)) == (5, 2)
    assert out.splitlines() == without(2, whole, True)
    assert "it is not shown" in err[0]


def in_says(patch: pytest.MonkeyPatch, number: int) -> None:
    class Guarded:
        def __init__(self, info: Any) -> None:
            self.info = info
            self.learn = getattr(info, "learn", None)

        def __call__(self, message: Message) -> str:
            if message.number == number:
                raise OverflowError
            return str(self.info(message))

    def guarded(one: Any) -> Any:
        making = None if one.loaded.info_with_context is None else lambda: Guarded(one.loaded.info_with_context())
        return with_members(one, info=one.loaded.info if making else Guarded(one.loaded.info), info_with_context=making)

    patch.setattr("streamdump.protocols.BY_NAME", {one.name: guarded(one) for one in PROTOCOLS})


def in_odd_lines(patch: pytest.MonkeyPatch, number: int) -> None:
    plant(patch, streamdump.render.summary.Lines, "_rendered", lambda self, record, *_: record.number == number)


def in_the_tree(patch: pytest.MonkeyPatch, number: int) -> None:
    plant(patch, streamdump.render.tree, "about", lambda message: message.number == number)


def in_the_dump(patch: pytest.MonkeyPatch, number: int) -> None:
    plant(patch, streamdump.render.hexdump, "hexdump", lambda message, *_: message.number == number)


ROOMS = [
    ([], in_says),
    (["-t", "ud"], in_odd_lines),
    (["-t", "ud"], in_says),
    (["-V"], in_the_tree),
    (["-x"], in_the_dump),
    (["-V", "-x"], in_the_tree),
]


@pytest.mark.parametrize(("argv", "room"), ROOMS, ids=lambda one: " ".join(one) if isinstance(one, list) else one.__name__)
def test_a_line_that_cannot_be_made_costs_its_record(
    argv: list[str], room: Callable[..., None], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, whole, _ = shown(capsys, *argv, SOME)
    lines = whole.splitlines()
    begins = [index for index, line in enumerate(lines) if LINE.match(line)]
    numbers = [int(lines[index].split()[0]) for index in begins]
    last = max(record.number for record in streamdump.read(SOME) if isinstance(record, Message))
    for number in (1, 30, last):
        with monkeypatch.context() as patch:
            room(patch, number)
            code, out, err = shown(capsys, *argv, SOME)
        assert (code, len(err)) == (5, 2)
        assert f": record {number} is not shown; " in err[0]
        place = numbers.index(number)
        left = lines[: begins[place]] + (lines[begins[place + 1] :] if place + 1 < len(begins) else [])
        assert out.splitlines() == left


def test_a_terminal_keeps_the_introduction_of_a_conversation(monkeypatch: pytest.MonkeyPatch) -> None:
    made = list(streamdump.read(SOME))
    expected = streamdump.render.summary.Lines({one.name: one.loaded.info for one in PROTOCOLS}, columns=100).text(made).splitlines()
    failed: list[tuple[Any, str]] = []
    plant(monkeypatch, streamdump.render.summary.Lines, "content", lambda self, record: record.number in (1, 2, 40))
    again = streamdump.render.summary.Lines({one.name: one.loaded.info for one in PROTOCOLS}, columns=100)
    text = lines_of(again, made, lambda record, what: failed.append((record.number, what.split()[0])))
    assert failed == [(1, "Planted"), (2, "Planted"), (40, "Planted")]
    assert text.splitlines() == [line for line in expected if not (LINE.match(line) and line.split()[0] in ("1", "2", "40"))]


def test_a_view_that_takes_nothing_loses_all_and_ends(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    plant(monkeypatch, streamdump.render.summary.Lines, "add", lambda *_: True)
    code, out, err = shown(capsys, OTHER)
    assert (code, out) == (5, "")
    _, lines, _ = shown(capsys, "--json", OTHER)
    assert len(err) == 1 + len(lines.splitlines())


def test_a_row_that_cannot_be_shown_is_left_out(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    _, whole, _ = shown(capsys, "conversations", SOME)
    plant(monkeypatch, streamdump.render.conversations, "sides", lambda row: row.number == 2)
    code, out, err = shown(capsys, "conversations", SOME)
    assert (code, len(err)) == (5, 2)
    lines = whole.splitlines()
    assert [line.split() for line in out.splitlines()] == [line.split() for line in (*lines[:2], *lines[3:])]


def test_an_interruption_passes(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Pairer, "pair", interrupted)
    code, _, err = shown(capsys, SOME)
    assert (code, "interrupted" in err[-1]) == (ExitCode.DONE, True)
    monkeypatch.setattr("streamdump.inspector.Inspector.__init__", interrupted)
    assert main([str(SOME)]) == ExitCode.INTERRUPTED


def test_a_terminal_is_told_too(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import streamdump.pair.pairer\n"
        "take = streamdump.pair.pairer.Pairer.pair\n"
        "def planted(self, one, append):\n"
        "    if getattr(one.record, 'name', '') == 'Create':\n"
        "        raise ZeroDivisionError\n"
        "    take(self, one, append)\n"
        "streamdump.pair.pairer.Pairer.pair = planted\n"
    )
    code, text = process_on_terminal(["-m", "streamdump", str(SOME)], 120, {"PYTHONPATH": str(tmp_path), BARRIER: ""})
    assert code == 5
    assert "streamdump: internal error: ZeroDivisionError in streamdump/pair/pairer.py:" in text
    assert "Traceback" not in text
    code, text = process_on_terminal(["-m", "streamdump", str(SOME)], 120, {"PYTHONPATH": str(tmp_path), BARRIER: "off"})
    assert "Traceback" in text


@pytest.mark.usefixtures("broken")
def test_what_was_not_dissected_is_not_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = shown(capsys, "check", SOME, "--golden", tmp_path, "--update", "--force")
    assert (code, list(tmp_path.iterdir())) == (5, [])
    assert REPORT.fullmatch(err[0].removesuffix(" (and 1 more)")) is not None
    some_golden = GOLDEN.parent / "check" / "mewbase" / f"{OTHER.name}.golden"
    (tmp_path / f"{SOME.name}.golden").write_text(some_golden.read_text())
    assert shown(capsys, "check", SOME, "--golden", tmp_path)[0] == 5
    report = tmp_path / "report.xml"
    code, out, _ = shown(capsys, "check", OTHER, SOME, "--golden", tmp_path, "--json", "--junit", report)
    assert code == 5
    assert {record["capture"]: record["outcome"] for record in records(out)} == {str(OTHER): "no golden", str(SOME): "internal error"}
    assert 'errors="1"' in report.read_text()
    assert 'type="internal-error"' in report.read_text()
    missing = tmp_path / "missing.pcap"
    assert shown(capsys, "check", missing, SOME, "--golden", tmp_path)[0] == 3


@pytest.mark.usefixtures("broken")
def test_what_was_not_dissected_is_not_published(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = shown(capsys, "scrub", SOME, tmp_path / "out.pcap")
    assert (code, list(tmp_path.iterdir())) == (5, [])
    assert REPORT.fullmatch(err[0]) is not None
