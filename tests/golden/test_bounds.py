"""What golden files and captures of strangers may cost: doubling them doubles it, also where all was made to look alike."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from time import process_time
from typing import Any

import pytest

from streamdump.cli.app import main
from streamdump.cli.exits import ExitCode
from streamdump.errors import UsageError
from streamdump.golden import align, normalise, report
from streamdump.golden.compare import OLD_CAPTURE, DiffReporter, _Keys, _Pair, _Same, differences
from streamdump.golden.model import GoldenConversation, Line, Total, Transcript
from streamdump.golden.normalise import _ENDPOINT, MAX_PATH, IdNames, Normaliser, _Into, _OpenConversation
from streamdump.golden.settings import INSTRUCTIONS, CheckSettings, read_settings
from streamdump.golden.text import parsed, written
from streamdump.golden.values import Alias, ValueSet
from streamdump.model import Span
from streamdump.patterns import linear
from streamdump.scrub import sensitive_parts
from tests.support.work import steps

ENDS = (Alias("client", 1), Alias("server", 1))
CAPTURES = Path(__file__).parents[2] / "captures" / "golden" / "rabbitmq-stream"


def said(lines: list[Line], flows: list[Total] | None = None, number: int = 1) -> GoldenConversation:
    return GoldenConversation("rabbitmq-stream", None, True, (Alias("client", number), ENDS[1]), lines, flows or [])


def create(stream: str) -> Line:
    return Line(0, "Create", "request", None, {"stream": stream})


def alternating(count: int) -> tuple[Transcript, Transcript]:
    """Between all that differs the same line again and again."""
    both = ([line for at in range(count) for line in (create("s"), create(f"{mark}{at}"))] for mark in "uv")
    one, other = (Transcript([said(lines)]) for lines in both)
    return one, other


def orphans(count: int) -> tuple[Transcript, Transcript]:
    """Responses without requests on the one side, requests with responses of other names on the other."""
    golden = Transcript([said([Line(1, "Foo", "response", "answered", {"response_code": at}) for at in range(count)])])
    lines = []
    for at in range(count):
        asked = create(f"s{at}")
        asked.responses.append(Line(1, "Create", "response", "answered", {"response_code": 1}, request=asked))
        lines += [asked, *asked.responses]
    return golden, Transcript([said(lines)])


def conversations(count: int) -> tuple[Transcript, Transcript]:
    """Conversations of which none is like another."""
    both = []
    for mark in "ab":
        lines = ([Line(0, f"{mark}{at}_{kind}", "one_way", None) for kind in range(20)] for at in range(count))
        both.append([said(one, number=at) for at, one in enumerate(lines)])
    one, other = (Transcript(of) for of in both)
    return one, other


def sets(count: int) -> tuple[Transcript, Transcript]:
    """A field of a flow with a value for each message."""
    one, other = (
        Transcript([said([], [Total(0, "Credit", "subscription 1", "list", {"credit": ValueSet(tuple(range(start, start + count)))})])])
        for start in (0, 1)
    )
    return one, other


def crossed(count: int) -> tuple[Transcript, Transcript]:
    """Lines that all stand elsewhere, among lines of which only the notes differ."""
    both = []
    for way in (1, -1):
        moved = [Line(0, f"m{at}", "one_way", None) for at in range(count)][::way]
        noted = [Line(0, "n", "one_way", None, {"x": at, "@notes": [f"{way}"]}) for at in range(count)]
        both.append(Transcript([said([line for pair in zip(moved, noted, strict=True) for line in pair])]))
    return both[0], both[1]


@pytest.mark.parametrize("kind", [alternating, orphans, conversations, sets, crossed])
def test_twice_as_much_takes_twice_as_long(kind: Callable[[int], tuple[Transcript, Transcript]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(align, "EFFORT", 1_000)
    monkeypatch.setattr(align, "FOR_EACH", 10)
    once, twice = (steps(partial(differences, *kind(count), CheckSettings())) for count in (100, 200))
    assert twice < 2.3 * once


def test_the_bound_is_far_from_what_people_have() -> None:
    golden, got = alternating(60)
    found = differences(golden, got, CheckSettings())
    assert not found.bounded
    assert [one.text for one in found] == [f'conversation client1: Create request: stream is "v{at}", golden "u{at}"' for at in range(60)]
    found = differences(*conversations(60), CheckSettings())
    assert not found.bounded and len(found) == 120


@pytest.mark.parametrize(
    ("bound", "most", "error"),
    [
        ("FIELDS", 100, "has more than the 100 fields, or 32 MiB of their names, that can be compared; --only handshake compares less"),
        ("FIELDS", 3, "has a PeerProperties of more than 3 fields"),
        ("LINES", 12, "has more than the 12 lines that can be compared; --only handshake compares less"),
        ("MESSAGES", 12, "has more than the 12 messages that can be compared; --only handshake compares less"),
        ("NAMES", 1_500, "has more than the 500,000 fields, or 0 MiB of their names, that can be compared; --only handshake compares less"),
    ],
)
def test_a_capture_that_says_too_much_is_not_compared(
    bound: str, most: int, error: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    capture = tmp_path / "a.pcap"
    capture.write_bytes((CAPTURES / "rbfly_filter_405.pcap").read_bytes())
    monkeypatch.setattr(normalise, bound, most)
    for arguments in (["check", "--update", str(capture)], ["diff", str(capture), str(capture)]):
        assert main(arguments) == ExitCode.UNREADABLE
        assert f"{capture}: {error}" in capsys.readouterr().err
    assert not capture.with_name("a.pcap.golden").exists()
    for only in ("handshake", "names"):
        arguments = ["check", "--update", "--only", only, str(capture)]
        if most > 3 and (only == "handshake" or bound in ("FIELDS", "NAMES")):
            assert main(arguments) == ExitCode.DONE
            written = capture.with_name("a.pcap.golden").read_bytes()
            monkeypatch.undo()
            assert main(arguments) == ExitCode.DONE
            assert capture.with_name("a.pcap.golden").read_bytes() == written
            monkeypatch.setattr(normalise, bound, most)


def test_what_stands_around_a_difference_is_written_as_far_as_it_is_shown() -> None:
    def large(fields: int) -> int:
        lines = [create("a"), Line(0, "Open", "request", None, {f"f{at}": at for at in range(fields)})]
        pair = _Pair(said(lines), said([create("b"), lines[1]]), _Keys(), False, align.Effort())
        reporter = DiffReporter(pair, _Same(()), OLD_CAPTURE)
        return steps(lambda: reporter._line("missing", "", lines[0]))

    assert large(20_000) < 1.1 * large(200)


def test_where_the_bound_is_reached_it_is_said(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    captures = [str(CAPTURES / name) for name in ("handshake_close_405.pcap", "vhost_failure_405.pcap")]
    assert main(["diff", *captures]) == ExitCode.FOUND
    assert report.BOUNDED not in capsys.readouterr().out
    monkeypatch.setattr(align, "EFFORT", 0)
    monkeypatch.setattr(align, "FOR_EACH", 0)
    assert main(["diff", *captures]) == ExitCode.FOUND
    assert capsys.readouterr().out.splitlines()[1] == f"  {report.BOUNDED}"
    assert main(["diff", "--json", *captures]) == ExitCode.FOUND
    assert json.loads(capsys.readouterr().out)["bounded"] is True
    # What is the same is the same at any price
    assert main(["diff", captures[0], captures[0]]) == ExitCode.DONE


def test_values_of_a_flow_are_found_at_once() -> None:
    def take(count: int) -> None:
        place, flow = _OpenConversation(said([]), "", ""), Total(0, "Credit", "", "list")
        for credit in range(count):
            place.several(flow, {"credit": credit, "ids": [credit, True], "other": {}})

    assert steps(lambda: take(400)) < 2.3 * steps(lambda: take(200))


def test_digits_are_no_address_however_many() -> None:
    began = process_time()
    assert _ENDPOINT.sub("", f"{'1' * 200_000}.{'2' * 100_000}:") == f"{'1' * 200_000}.{'2' * 100_000}:"
    assert process_time() - began < 1
    assert _ENDPOINT.sub("*", "to 10.0.0.1:5552, [2001:db8::7]:9 and 1111.1.1.1:1") == "to *, * and 1111.1.1.1:1"


def filled(value: Any) -> dict[str, Any]:
    """The fields of a message with these, by path."""
    normaliser, fields = Normaliser(CheckSettings()), dict[str, Any]()
    normaliser._fill(_Into(_OpenConversation(said([]), "", ""), normaliser.rules("mewbase"), "PUB", fields, {}), value)
    return fields


def test_a_long_path_is_not_written_before_each_field() -> None:
    inner: Any = {f"k{at}": at for at in range(1_000)}
    for level in range(20):
        inner = {f"{level}" * 400: inner}
    fields = filled({"event": inner})
    assert len(fields) == 1_000
    assert sum(map(len, fields)) < 1_000 * (MAX_PATH + 10)
    # Which object it is still counts, and the file reads back
    assert not fields.keys() & filled({"other": inner}).keys()
    text = written(Transcript([said([Line(0, "PUB", "request", None, fields)])]))
    assert parsed(text, "golden").conversations[0].lines[0].fields == fields
    # As long as nobody writes
    assert list(filled({"event": {"a" * 150: {"b" * 150: {"c": 1}}}})) == [f"event.{'a' * 150}.{'b' * 150}.c"]
    assert IdNames().endpoints == {}


def test_scrub_keeps_no_long_paths() -> None:
    spans = [Span("sections", 0, 90_000, None, 0, False)]
    spans += [Span(f"{depth}" * 1_000, 0, 90_000, None, depth, False) for depth in range(1, 40)]
    spans += [Span(f"{at}", 0, 1, None, 40) for at in range(1_000)]
    found = list(sensitive_parts.paths(spans))
    assert len(found) == len(spans)
    assert sum(len(path) for _, path in found) <= len(spans) * sensitive_parts.LONGEST


@pytest.mark.parametrize(
    ("table", "said"),
    [
        (f"[check.mask.text]\nx = '{'(?:.{0,900}a)' * 30}'", "is too large; a pattern may have 2,000 instructions of RE2"),
        ("[check.mask.text]\nx = '.{0,300}'", "is too large; a pattern may have 2,000 instructions of RE2"),
        (
            "[check.mask.pattern]\n" + "".join(f'f{at} = "[0-9]{{1,900}}"\n' for at in range(5)),
            "check.mask.pattern: all patterns together may have 4,000 instructions of RE2",
        ),
    ],
)
def test_a_pattern_is_no_program_that_takes_long(table: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "streamdump.toml"
    path.write_text(table)
    began = process_time()
    with pytest.raises(UsageError) as error:
        read_settings(path)
    assert str(error.value).endswith(said)
    assert process_time() - began < 1


@pytest.mark.parametrize("table", ["mask.text", "mask.pattern"])
@pytest.mark.parametrize(("times", "code"), [(120, ExitCode.UNREADABLE), (12, ExitCode.DONE)])
def test_large_patterns_search_a_bounded_number_of_characters(
    table: str, times: int, code: ExitCode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "streamdump.toml").write_text(f"[check.{table}]\npublisher_reference = '(a|b)*a(a|b){{{times}}}Z'\n")
    capture = tmp_path / "a.pcap"
    capture.write_bytes((CAPTURES / "rbfly_filter_405.pcap").read_bytes())
    assert main(["check", "--update", str(capture)]) == ExitCode.DONE
    monkeypatch.setattr(normalise, "SEARCHED", 500)
    assert main(["check", "--update", str(capture)]) == code
    said = "instructions of RE2 in check.mask; up to 300 search any text"
    assert (said in capsys.readouterr().err) == (code == ExitCode.UNREADABLE)


def test_usual_patterns_are_small() -> None:
    assert INSTRUCTIONS == 2_000
    identity, email = r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", r"(?i)[\w.+-]+@[\w.-]+"
    for pattern in (identity, email, r"\p{L}[\p{N}_-]*", r"\d{4}-\d\d-\d\dT[\d:.]+Z"):
        assert linear(pattern, INSTRUCTIONS).programsize < INSTRUCTIONS


def test_a_capture_that_is_as_its_golden_file_says_costs_what_writing_the_file_does(tmp_path: Path) -> None:
    capture = tmp_path / "a.pcap"
    capture.write_bytes((CAPTURES / "js_publish_consume_405.pcap").read_bytes())

    def run(*options: str) -> int:
        return steps(lambda: main(["check", *options, str(capture)]))

    for _ in range(8):
        # The first frames of a layout are read in another way
        run("--update")
    assert run() < 1.02 * run("--update")
