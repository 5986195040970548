"""The pages of `diagnose` and `latency`: what they show, that captured text stays text, and that nothing is loaded."""

from __future__ import annotations

import io
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest

from streamdump.capture.files import open_capture
from streamdump.cli.app import main
from streamdump.cli.exits import ExitCode
from streamdump.diagnose.engine import Outcome
from streamdump.inspector import Inspector
from streamdump.latency.records import Bucket, IntervalRow, Times
from streamdump.model import Ending, Finding, Options
from streamdump.protocols import PROTOCOLS
from streamdump.render.findings import FindingGroups
from streamdump.render.html.charts import FEWEST, distribution, series, short
from streamdump.render.html.page import check_page
from streamdump.render.html.reports import diagnosis
from streamdump.render.html.sequence_diagrams import FIRST, LAST, SequenceDiagrams
from tests.support.frames import pcap
from tests.support.logins import rabbitmq
from tests.support.secrets import conversation

GOLDEN = Path(__file__).parents[2] / "captures" / "golden"
WRONG = GOLDEN / "rabbitmq-stream" / "wrong_password_405.pcap"
LOSSY = GOLDEN / "iggy" / "seed-lossy.pcap"
SAYS = {one.name: one.loaded.info for one in PROTOCOLS}
HOSTILE = "</td><script>alert(1)</script><img src=x onerror=alert(1)> \" onload='alert(1)' {{ 7*7 }} \u202e\x1b[31m"


class Seen(HTMLParser):
    """Elements with their attributes, and all text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


def harmless(page: str) -> Seen:
    """The page, which has its own script alone and loads nothing."""
    seen = Seen(page)
    names = [name for name, _ in seen.elements]
    assert names.count("script") == 1
    assert not {"img", "link", "iframe", "object", "embed", "form", "base"} & set(names)
    for _, attributes in seen.elements:
        assert not [name for name in attributes if name.startswith("on") or name in ("src", "style", "srcdoc")]
        assert re.fullmatch("#message-[0-9]+", attributes.get("href") or "#message-0")
    assert not re.search(r"@import|url\(", page)
    (policy,) = [one["content"] for name, one in seen.elements if name == "meta" and one.get("http-equiv") == "Content-Security-Policy"]
    assert policy is not None
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    return seen


def made(tmp_path: Path, *arguments: str) -> str:
    page = tmp_path / "report.html"
    assert main([*arguments, "--html", str(page)]) == ExitCode.DONE
    return page.read_text()


def test_a_diagnosis_shows_cause_and_ladder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    seen = harmless(made(tmp_path, "diagnose", str(WRONG)))
    said, told = capsys.readouterr()
    assert "rabbitmq-stream.authentication-refused" in said
    assert "report.html: written" in told
    text, page = seen.text, (tmp_path / "report.html").read_text()
    ids = {attributes.get("id") for _, attributes in seen.elements}
    assert [attributes["href"] for name, attributes in seen.elements if name == "a"] == ["#message-5", "#message-6"]
    assert {"message-5", "message-6"} <= ids, "the diagram has them"
    assert "messages 5, 6; packets 10, 12; at 3.004962 s, 2026-11-21 06:02:03.030812 UTC" in text
    (client, label) = (re.search(rf'y="([0-9]+)"[^>]*>{word}<', page) for word in ("127.0.0.1:36188", "seconds"))
    assert client is not None and label is not None
    assert int(label[1]) - int(client[1]) >= 20, "the label stands below the addresses"
    assert text.index("does not authenticate the user") < text.index("Conversations that failed") < text.index("All conversations")
    ladder = text[text.index("Conversations that failed") : text.index("All conversations")]
    steps = [step for name in ("PeerProperties", "SaslHandshake", "SaslAuthenticate") for step in (name, name)]
    assert re.findall(r"^(PeerProperties|Sasl\w+|end)$", ladder, re.M) == [*steps, "end"]


def test_latencies_have_tables_and_pictures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = made(tmp_path, "latency", str(GOLDEN / "rabbitmq-stream" / "js_publish_consume_405.pcap"), "--by", "command,server")
    seen = harmless(page)
    assert "interval" not in capsys.readouterr()[0], "the text has no series that nobody asked for"
    names = [name for name, _ in seen.elements]
    assert names.count("table") == 2
    assert names.count("polyline") >= 2
    assert re.search(r"PeerProperties\s+127\.0\.0\.2:5552", seen.text)


@pytest.mark.parametrize("command", ["diagnose", "latency", "stats"])
def test_a_page_says_which_files_were_captured_when(command: str, tmp_path: Path) -> None:
    other = GOLDEN / "rabbitmq-stream" / "handshake_close_405.pcap"
    text = harmless(made(tmp_path, command, str(WRONG), str(other))).text
    assert f"{WRONG}, {other}" in text
    assert re.search(r"Captured from 20\d\d-\d\d-\d\d \d\d:\d\d:\d\d UTC to 20\d\d-.* UTC \([\d.,]+ (min|s|ms|µs)\b.*\)", text)


def interval(second: int) -> IntervalRow:
    told = {
        "count": 1,
        "answered": 1,
        "refused": 0,
        "unanswered": 0,
        "reasons": {},
        "handler": None,
        "network": None,
        "network_at_most": None,
    }
    times = Times(1, *[1_000] * 8)
    return IntervalRow(protocol="iggy", latency=times, time="", time_ns=second * 10**9, interval_ns=10**9, **told)  # type: ignore[arg-type]


def test_no_line_crosses_a_time_without_requests() -> None:
    found = series([interval(second) for second in (0, 1, 3, 100, 400)], 0, 400 * 10**9)
    assert found is not None
    assert [len(line.split()) for line in found.p50] == [3, 2, 2]
    assert [len(line.split()) for line in found.p99] == [3, 2, 2]
    assert len(found.dots) == 5
    first, second = found.p50[1].split()
    assert first == second


def test_bars_need_enough_requests() -> None:
    assert distribution([Bucket(1_000, 2_000, FEWEST - 1)]) is None
    assert distribution([Bucket(1_000, 2_000, FEWEST // 2), Bucket(5_000, 6_000, FEWEST // 2 - 1)]) is None
    found = distribution([Bucket(1_000, 2_000, FEWEST // 2), Bucket(5_000, 6_000, FEWEST // 2)])
    assert found is not None
    assert len(found.bars) == 2


def test_a_group_without_any_picture_has_no_heading(tmp_path: Path) -> None:
    seen = harmless(made(tmp_path, "latency", str(LOSSY)))
    pictures = seen.text[seen.text.index("Distribution and course") :]
    assert re.findall(r"^iggy +(\w+)", pictures, re.M)[:2] == ["ping", "send_messages"]
    assert "Bars need 20 requests." in pictures
    assert re.search(r"Of \d+ more groups there is no picture", pictures)
    assert "get_stats" not in pictures


def test_what_went_wrong_is_coloured_in_a_conversation(tmp_path: Path) -> None:
    page = made(tmp_path, "follow", "0", str(WRONG), "--findings")
    assert re.findall(r'class="long error">(.*)</td>', page)[0].startswith("! #3")
    assert page.count('class="long error"') == 2, "the refusal and its finding"
    assert [one["href"] for name, one in harmless(page).elements if name == "a"] == ["#message-5", "#message-6"]
    assert page.count('id="message-6"') == 1


def test_axes_say_what_they_are(tmp_path: Path) -> None:
    text = harmless(made(tmp_path, "latency", str(LOSSY))).text
    assert re.search(r"latency; upwards: requests, \d+ at most", text)
    assert re.search(r"time since 20\d\d-\d\d-\d\d \d\d:\d\d:\d\d UTC; upwards: latency", text)


@pytest.mark.witness
@pytest.mark.skipif(shutil.which("chromium") is None, reason="needs Debian's chromium")
@pytest.mark.parametrize("command", ["diagnose", "latency", "stats"])
def test_on_paper_nothing_is_wider_than_the_paper(command: str, tmp_path: Path) -> None:
    """As on a sheet of A4 with its margins, where nobody can scroll."""
    shown = made(tmp_path, command, str(GOLDEN / "rabbitmq-stream" / "js_publish_consume_405.pcap"), str(WRONG))
    assert overflow(shown.replace("@media print", "@media all"), 718, tmp_path) == 0


@pytest.mark.witness
@pytest.mark.skipif(shutil.which("chromium") is None, reason="needs Debian's chromium")
@pytest.mark.parametrize(
    "command",
    ["diagnose", "conversations", "stats", "latency", "latency --by command,server,client,stream", "follow 0 --findings"],
)
def test_on_a_narrow_screen_nothing_is_wider_than_the_page(command: str, tmp_path: Path) -> None:
    captures = [GOLDEN / "rabbitmq-stream" / "js_publish_consume_405.pcap", WRONG, LOSSY]
    assert overflow(made(tmp_path, *command.split(), *map(str, captures)), 1100, tmp_path) == 0


@pytest.mark.witness
@pytest.mark.skipif(shutil.which("chromium") is None, reason="needs Debian's chromium")
@pytest.mark.parametrize("protocol", ["rabbitmq-stream", "iggy", "seastar-rpc"])
def test_conversations_of_all_captures_are_no_wider_than_the_page(protocol: str, tmp_path: Path) -> None:
    """Long endpoints, variants and sizes, and every reason to end."""
    captures = sorted((GOLDEN / protocol).glob("*.pcap"))
    page = tmp_path / "report.html"
    main(["conversations", *map(str, captures), "--html", str(page)])  # some of them are damaged
    assert overflow(page.read_text(), 1100, tmp_path) == 0


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (0.25, "0.25"),
        (9_999, "9,999"),
        (12_345, "12.35 k"),
        (1_234_567, "1.235 M"),
        (66_571_993_173, "66.57 G"),
        (2.0**62, "4.612 E"),
    ],
)
def test_numbers_of_an_axis_are_short(value: float, text: str) -> None:
    assert short(value) == text


def overflow(shown: str, width: int, tmp_path: Path) -> int:
    """The pixels by which the page, or a table in it, is wider than a window of this width."""
    shown = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", shown)
    measure = "[...document.querySelectorAll('html, .wide')].map((one) => one.scrollWidth - one.clientWidth)"
    page = tmp_path / "paper.html"
    page.write_text(
        shown.replace("</body>", f"<script>document.title = 'over ' + Math.max(...{measure})</script></body>"), encoding="utf-8"
    )
    call = [
        "chromium",
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        f"--window-size={width},1000",
        f"--user-data-dir={tmp_path / 'profile'}",
    ]
    done = subprocess.run([*call, "--dump-dom", page.as_uri()], capture_output=True, text=True, timeout=120, check=True)
    (over,) = re.findall("<title>over ([0-9]+)</title>", done.stdout)
    return int(over)


@pytest.mark.parametrize("command", ["diagnose", "latency", "stats"])
def test_of_what_cannot_be_read_there_is_neither_page_nor_praise(command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "text.pcap").write_text("no capture")
    page = tmp_path / "page.html"
    assert main([command, str(tmp_path / "text.pcap"), "--html", str(page)]) == ExitCode.UNREADABLE
    assert "nothing wrong" not in capsys.readouterr()[1]
    assert not page.exists()


def test_captured_text_is_text_only() -> None:
    found, summaries = FindingGroups(), [Outcome(3, 0, HOSTILE, HOSTILE, True, None, HOSTILE, HOSTILE, HOSTILE, 1, "error", HOSTILE)]
    found.add([Finding(1, 1, "", 0, 3, HOSTILE, "b", None, None, HOSTILE, "error", HOSTILE, HOSTILE, [1], [2])])
    ladders = SequenceDiagrams({"iggy": lambda message: HOSTILE})
    ladders.add([Ending(1, 1, "", 0, 3, HOSTILE, "b", "client", "iggy", HOSTILE, None, 0, 0)])  # type: ignore[arg-type]
    seen = harmless(diagnosis(HOSTILE, [HOSTILE], found, summaries, ladders))
    assert seen.text.count("<script>alert(1)</script>") >= 8
    assert "{{ 7*7 }}" in seen.text
    assert "\\u202e\\x1b[31m" in seen.text
    assert not re.search("[\u202e\x1b]", seen.text)


def test_a_user_name_cannot_bring_markup(tmp_path: Path) -> None:
    login = rabbitmq("PLAIN")
    sent = [(side, data if isinstance(data, int) else data.replace(b"\x00alice\x00", b"\x00<b>ev\x00")) for side, data in login.sent]
    capture = tmp_path / "hostile.pcap"
    capture.write_bytes(pcap(conversation(sent, 5552)))
    harmless(made(tmp_path, "diagnose", str(capture)))


def test_of_a_long_conversation_the_beginning_and_the_end_are_kept() -> None:
    ladders = SequenceDiagrams(SAYS)
    path = GOLDEN / "rabbitmq-stream" / "js_publish_consume_405.pcap"
    inspector = Inspector([open_capture(io.BytesIO(path.read_bytes()))], Options())
    counts: dict[int, int] = {}
    for record in inspector.records():
        ladders.add([record])
        counts[record.conversation or 0] = counts.get(record.conversation or 0, 0) + 1
    long = max(counts, key=counts.__getitem__)
    ladder = ladders.kept.get(long)
    assert ladder is not None
    assert len(ladder.first) == min(FIRST, counts[long])
    assert len(ladder.first) + len(ladder.last) + ladder.passed == counts[long]
    assert len(ladder.last) <= LAST
    ladders.drop([long])
    assert long not in ladders.kept


def test_what_cannot_be_written_is_told_before_a_packet_is_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "target")
    for path in ("-", str(tmp_path), str(tmp_path / "no" / "page.html"), str(tmp_path / "link")):
        assert main(["diagnose", str(WRONG), "--html", path]) == ExitCode.USAGE
        said, told = capsys.readouterr()
        assert not said
        assert told.startswith(f"streamdump: --html {path}")
    assert not (tmp_path / "target").exists()
    page = tmp_path / "page.html"
    page.write_text("before")
    capture = tmp_path / "capture.pcap"
    capture.write_bytes(WRONG.read_bytes())
    for command in ("diagnose", "latency"):
        assert main([command, str(capture), "--html", str(tmp_path / "." / "capture.pcap")]) == ExitCode.USAGE
        assert capsys.readouterr()[1].endswith("capture.pcap: is an input; inputs are never overwritten\n")
    assert capture.read_bytes() == WRONG.read_bytes()
    check_page(str(page))
    assert page.read_text() == "before"


@pytest.mark.witness
@pytest.mark.skipif(shutil.which("chromium") is None, reason="needs Debian's chromium")
def test_a_browser_runs_its_script_and_no_other(tmp_path: Path) -> None:
    found = FindingGroups()
    leak = "<img src=http://leak.invalid/a><script src=http://leak.invalid/b></script>"
    found.add([Finding(1, 1, "", 0, 3, leak, "b", None, None, leak, "error", leak, leak, [1], [2])])
    page, net = tmp_path / "report.html", tmp_path / "net.json"
    page.write_text(
        diagnosis(leak, [leak], found, [Outcome(3, 0, leak, leak, True, None, leak, leak, leak, 1, None, None)], SequenceDiagrams(SAYS))
    )
    # The browser itself asks for updates: no name is found
    call = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--enable-logging=stderr"]
    call += ["--host-resolver-rules=MAP * ~NOTFOUND", f"--user-data-dir={tmp_path / 'profile'}", f"--log-net-log={net}"]
    shown = subprocess.run([*call, "--dump-dom", page.as_uri()], capture_output=True, text=True, timeout=120, check=True)
    assert "CONSOLE" not in shown.stderr, shown.stderr
    assert shown.stdout.count('<button type="button">') == 8
    asked = re.findall(r'"url":"(\w+://[^/"]*)', net.read_text())
    assert not [one for one in asked if "leak" in one]
