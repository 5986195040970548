"""What went wrong can be read off the lines of text, at 80 columns too: the cause, who hung up, what was open."""

from __future__ import annotations

from pathlib import Path

import pytest

from streamdump.capture.files import open_capture
from streamdump.cli.app import main
from streamdump.inspector import Inspector
from streamdump.model import Options, Record
from streamdump.protocols import PROTOCOLS
from streamdump.render.summary import Lines
from tests.render.records import ending, exchange, message
from tests.support.segments import ACK, FIN, a, b, captured, handshake

GOLDEN = Path(__file__).parents[2] / "captures" / "golden"


def view(inspector: Inspector, columns: int | None) -> Lines:
    info = {protocol.name: protocol.loaded.info for protocol in PROTOCOLS}
    alarms = {protocol.name: protocol.loaded.alarms for protocol in PROTOCOLS}
    return Lines(info, columns=columns, alarms=alarms, asked=inspector.asked)


def lines_of(path: Path, columns: int | None = 80) -> list[str]:
    """As they are on a terminal, those that go on below as one."""
    inspector = Inspector([open_capture(path)], Options(bodies=False))
    shown = view(inspector, columns)
    found: list[str] = []
    for records in inspector.batches():
        for line in shown.text(records).splitlines():
            assert columns is None or len(line) <= columns
            if len(line) - len(line.lstrip()) < 22:
                found.append(line)
            else:
                found[-1] += f" {line.lstrip()}"
    return found


TOLD = {
    "rabbitmq-stream/wrong_password_405": ("! #3 authentication failure", "server closed (FIN) after 323 µs"),
    "rabbitmq-stream/versions_unsupported_310": (
        "! #1 unknown frame",
        "! #5 unanswered after 10 s, server closed (FIN): 1 command",
        "server closed (FIN) after 10 s of silence, 2 unanswered",
    ),
    "rabbitmq-stream/server_close_frame_too_large_436": (
        "! #1 frame too large",
        "! unanswered after 1.004 s, client closed (FIN): publisher 1 ftl id 1",
    ),
    "rabbitmq-stream/access_refused_436": ("secret-stream: access refused", "! limited-1 stream not available"),
    "mewbase/java-auth-bad": ("! refused 1 authentication failed: Authentication failed", "server closed (FIN) after 5.163 ms"),
    "iggy/py090-rejected": ("! evicted: incompatible protocol, accepted are 0.12.0 to 0.12.3", "client closed (FIN)"),
    "iggy/new-client-old-server": (
        "! invalid_command (3) (the client speaks the 256-byte framing, the server the classic one",
        "client closed (FIN) after 12.04 s of silence, 1 unanswered",
    ),
    "seastar-rpc/server_stops": ("server closed (FIN)", "1 unanswered"),
}


@pytest.mark.parametrize(("capture", "told"), TOLD.items())
def test_what_went_wrong_is_told_at_80_columns(capture: str, told: tuple[str, ...]) -> None:
    lines = [" ".join(line.split()) for line in lines_of(GOLDEN / f"{capture}.pcap")]
    for text in told:
        assert any(" ".join(text.split()) in line for line in lines), text


def test_an_unanswered_line_stands_behind_what_came_before_it_was_certain() -> None:
    lines = lines_of(GOLDEN / "rabbitmq-stream" / "versions_unsupported_310.pcap", None)
    times = [float(line.split()[1]) for line in lines]
    assert times[:-1] == sorted(times[:-1])
    assert "unanswered after 10 s, server closed (FIN): 1 command  up to Deliver 2 (request 11)" in lines[-3]
    assert lines[-1].endswith("! server closed (FIN) after 10 s of silence, 2 unanswered")


def test_a_large_request_that_is_not_kept_whole_is_named() -> None:
    entry = bytes.fromhex(f"00000000 000000{9:02x} 000003e8") + bytes(1000)
    publish = bytes.fromhex("0002 0001 07 00000001") + entry
    segments = [*handshake(), a(1000, len(publish).to_bytes(4, "big") + publish), b(5000, ack=1000, flags=FIN | ACK, time_ns=5_000_000_000)]
    inspector = Inspector([], Options(decode_as=((5552, "rabbitmq-stream", None),)))
    records: list[Record] = inspector.process(captured(segments))
    records += inspector.finish()
    assert "unanswered after 4.997 s, server closed (FIN): publisher 7  id 9 (request 1)" in view(inspector, None).text(records)


def test_the_empty_column_goes_before_a_word_of_trouble() -> None:
    lines = Lines({"rabbitmq-stream": lambda message: "said " * 9}, columns=80)
    _, cut, refused, below, left, *_ = lines.text([message(), message(2, outcome="refused"), exchange(3, id=None)]).splitlines()
    assert cut.endswith("…")
    assert refused.index("! said") < cut.index("said")
    assert f"{refused} {below}".count("said") == 9
    assert "! unanswered after 3 s" in left


@pytest.mark.parametrize(("columns", "times"), [(60, "r"), (80, "ud")])
def test_where_a_line_has_no_room_for_words_they_stand_below(columns: int, times: str) -> None:
    said = "#1  stream does not exist"
    lines = Lines({"rabbitmq-stream": lambda message: said}, columns=columns, times=times)
    first, below = lines.text([message(outcome="refused")]).splitlines()[1:]
    assert first.endswith("!")
    assert below.strip() == said
    assert below.index("#") == first.index("DeclarePublisher")
    assert len(below) <= columns


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({}, "! server closed (FIN) after 3 s of silence"),
        ({"quiet_ns": 20_000_000}, "  server closed (FIN) after 20 ms of silence"),
        (
            {"sender": "client", "how": "RST", "open": 2, "quiet_ns": 125_000_000_000},
            "! client aborted (RST) after 2 min 5 s of silence, 2 unanswered",
        ),
        ({"sender": "client", "how": "no answer", "protocol": None, "quiet_ns": None}, "! no answer from 192.0.2.1:51054"),
        ({"how": "refused", "protocol": None, "quiet_ns": None}, "! 192.0.2.2:5552 refused the connection (RST to a SYN)"),
        ({"sender": None, "protocol": None, "quiet_ns": None}, "  192.0.2.2:5552 closed (FIN), not a byte was sent"),
        ({"how": "forgotten"}, "forgotten, as there were too many or it was silent for long"),
    ],
)
def test_how_an_ending_is_told(changes: dict[str, object], told: str) -> None:
    for columns in (None, 200):
        assert told in Lines({}, columns=columns).text([ending(**changes)])


def test_the_closing_line_counts_and_says_where_to_look(capsys: pytest.CaptureFixture[str]) -> None:
    path = GOLDEN / "rabbitmq-stream" / "wrong_password_405.pcap"
    main([str(path), "-q"])
    err = capsys.readouterr().err
    assert (
        err
        == f"streamdump: {path}: 15 packets, 6 messages in 1 conversation, 1 ended by the server; 1 refused; more: streamdump diagnose\n"
    )
