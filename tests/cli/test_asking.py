"""`-Y`, `-T fields` and `protocols --fields` on the command line, and the same questions to the library."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path
from typing import Any

import pytest

import streamdump
from streamdump.cli.app import main
from streamdump.cli.exits import ExitCode
from streamdump.cli.options import field_names, filter_words
from streamdump.errors import CaptureError, FilterError
from streamdump.filter import compile_filter, names_of
from streamdump.filter.columns import HEADINGS
from streamdump.model import Message
from tests.support.peers import GOLDEN, Pair, capturing, free_port, needs_capture
from tests.support.terminal import on_terminal
from tests.support.work import steps

TWO = GOLDEN / "rabbitmq-stream" / "two_connections_310.pcap"
AMQP = GOLDEN / "rabbitmq-stream" / "publish_amqp_sections_436.pcap"
LOST = GOLDEN / "rabbitmq-stream" / "lost_segments_405.pcap"
EXPIRED = GOLDEN / "seastar-rpc" / "timeout_expiry.pcap"
PLAIN = GOLDEN / "rabbitmq-stream" / "deliver_v2_405.pcap"


def shown(capsys: pytest.CaptureFixture[str], *argv: str | Path, code: ExitCode = ExitCode.DONE) -> tuple[str, str]:
    assert main([str(one) for one in argv]) == code
    out, err = capsys.readouterr()
    return out, err


@pytest.mark.parametrize("form", [[], ["--json"], ["-V"], ["-x"], ["-t", "ud"], ["-T", "fields", "-e", "number", "-e", "name"]])
@pytest.mark.parametrize("expression", ["name == Publish", "outcome == answered and latency < 1ms", "size > 1KiB or not kind == request"])
def test_what_is_shown_is_shown_as_without_a_filter(form: list[str], expression: str, capsys: pytest.CaptureFixture[str]) -> None:
    whole = shown(capsys, *form, "-c", "10000", AMQP)[0]
    some = shown(capsys, *form, "-Y", expression, AMQP)[0]
    rest = shown(capsys, *form, "-Y", f"not ({expression})", AMQP)[0]
    assert some
    assert rest
    assert sorted([*some.splitlines(), *rest.splitlines()]) == sorted(whole.splitlines())


def test_numbers_are_those_of_the_whole_and_the_closing_line_says_how_many(capsys: pytest.CaptureFixture[str]) -> None:
    out, err = shown(capsys, "--json", "-Y", "name == Publish", AMQP)
    whole = [json.loads(line) for line in shown(capsys, "--json", AMQP)[0].splitlines()]
    assert [json.loads(line) for line in out.splitlines()] == [one for one in whole if one.get("name") == "Publish"]
    assert re.search(r"26 messages in 1 conversation; 1 record matches -Y\n", err)
    assert "; 0 records match -Y\n" in shown(capsys, "-q", "-Y", "name == Credit and size < 0", AMQP)[1]


def test_fields_that_lines_do_not_show_can_be_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    """The plain view leaves bodies undecoded, and the text of times unmade, unless a filter wants them."""
    for expression in ("chunk.epoch", "fields.chunk.entries.size > 0", "time matches '^20'"):
        lines = shown(capsys, "-Y", expression, LOST)[0].splitlines()
        made = shown(capsys, "--json", "-Y", expression, LOST)[0].splitlines()
        assert [int(line.split()[0]) for line in lines] == [json.loads(line)["number"] for line in made] != []


ASKED = (
    "name == Open",
    "protocol == rabbitmq-stream and name == Deliver and not size < 0",
    "name in {Publish, Tune} or latency > 1ms",
    "not (name == Publish or chunk.epoch)",
    "port == 8090 and kind == response",
)


@pytest.mark.parametrize("detail", [False, True])
def test_what_a_filter_leaves_out_changes_nothing_of_what_it_keeps(detail: bool) -> None:
    for path in (AMQP, LOST, PLAIN, EXPIRED, GOLDEN / "iggy" / "py090-errors.pcap", GOLDEN / "mewbase" / "py-flow.pcap"):
        whole = list(streamdump.read(path, detail=detail))
        for expression in ASKED:
            keeps = compile_filter(expression).keeps
            assert list(streamdump.read(path, where=expression, detail=detail)) == [one for one in whole if keeps(one)], (path, expression)


@pytest.mark.parametrize(("detail", "most"), [(False, 0.9), (True, 0.5)])
def test_what_a_filter_on_names_leaves_out_is_not_decoded(detail: bool, most: float) -> None:
    def work(where: str | None) -> int:
        return steps(lambda: list(streamdump.read(AMQP, where=where, detail=detail)))

    # Decoders are made for what comes often, once in a process
    for _ in range(3):
        work(None)
    assert work("protocol == rabbitmq-stream and name == Open") < most * work(None)


def test_a_wrong_filter_is_told_with_its_place_before_anything_is_read(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for command in ([], ["conversations"], ["-T", "fields", "-e", "name"], ["--json"], ["-i", "nosuch0"]):
        files = [] if "-i" in command else [tmp_path / "there is none"]
        out, err = shown(capsys, *command, "-Y", "name == Open and strem == x", *files, code=ExitCode.USAGE)
        assert out == ""
        assert err.splitlines() == [
            "streamdump: -Y: no field is named strem; did you mean stream?",
            "streamdump:   name == Open and strem == x",
            "streamdump:                    ^^^^^",
        ]


def test_a_filter_acts_on_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    _, err = shown(capsys, "-Y", "name == \x1b[31m\u202e(", AMQP, code=ExitCode.USAGE)
    assert "\x1b" not in err
    assert "\u202e" not in err
    _, err = shown(capsys, "-Y", "name == '\x1b[31m'", AMQP)
    assert r"is named \x1b[31m" in err


def test_a_probable_slip_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    out, err = shown(capsys, "-Y", "name == publish", AMQP)
    assert out == ""
    assert "-Y: no message is named publish; did you mean Publish?" in err


@pytest.mark.usefixtures("barrier")
@pytest.mark.parametrize("command", [["--json"], ["conversations", "--json"]])
def test_a_bug_in_a_filter_costs_the_record_with_which_it_comes(
    command: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def client(_: Any, record: Any) -> str:
        assert record.number != 5
        return str(record.src)

    monkeypatch.setattr("streamdump.filter.values.Earlier.client", client)
    out, err = shown(capsys, *command, "-Y", "client contains 127", AMQP, code=ExitCode.INTERNAL)
    assert len(out.splitlines()) == (1 if "conversations" in command else 26)
    assert err.count("internal error") == 1
    assert "record 5 is not shown" in err


def test_enough_counts_what_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    out, err = shown(capsys, "-Y", "kind == response", "-c", "3", AMQP)
    assert [line.split()[0] for line in out.splitlines()] == ["2", "4", "6"]
    assert "3 messages, stopped by -c" in err


def test_relative_times_count_from_the_first_packet_of_all(capsys: pytest.CaptureFixture[str]) -> None:
    (line,) = shown(capsys, "-Y", "number == 2", AMQP)[0].splitlines()
    assert line.split()[1] == "0.003886"
    code, text = on_terminal(["-Y", "number == 2", str(AMQP)], environment={"NO_COLOR": "1"})
    assert code == 0
    assert re.search(r"^ +2 +0\.003886 ", text, re.M)


def test_secrets_cannot_be_guessed_by_a_filter(capsys: pytest.CaptureFixture[str]) -> None:
    guess = "fields.sasl_opaque_data contains 6775657374"
    assert shown(capsys, "-Y", "sasl_opaque_data contains redacted", AMQP)[0]
    assert not shown(capsys, "-Y", guess, AMQP)[0]
    assert shown(capsys, "--show-secrets", "-Y", guess, AMQP)[0]


def test_conversations_with_a_match(capsys: pytest.CaptureFixture[str]) -> None:
    rows = shown(capsys, "conversations", "--json", TWO)[0].splitlines()
    assert len(rows) == 2
    out, err = shown(capsys, "conversations", "--json", "-Y", "name == Open and conversation == 1", TWO)
    assert out.splitlines() == rows[1:]
    assert "1 conversation matches -Y" in err
    assert shown(capsys, "conversations", "-Y", "name == Heartbeat and size == 0", TWO)[0] == ""


def test_verbs_that_are_named_can_be_asked_for(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    names = tmp_path / "verbs"
    verb = next(one.fields["verb"] for one in streamdump.read(EXPIRED) if isinstance(one, Message) and "verb" in one.fields)
    names.write_text(f"{verb} = SLEEP_LONG\n")
    out, _ = shown(capsys, "--verbs", names, "-Y", "verb == sleep_long", EXPIRED)
    assert len(out.splitlines()) == len(shown(capsys, "-Y", f"verb == {verb}", EXPIRED)[0].splitlines()) > 0


@needs_capture
def test_a_running_capture_is_filtered() -> None:
    ping, pong = bytes.fromhex("04000000 01000000"), bytes.fromhex("00000000 00000000")
    port = free_port()
    argv = ["-i", "lo", "-f", f"tcp port {port}", "-d", f"tcp.port=={port},iggy", "-Y", "kind == response"]
    with capturing(*argv, "--json") as capture:
        with Pair(port) as pair:
            pair.replay([(0, ping), (1, pong), (0, ping), (1, pong)])
        assert [json.loads(capture.line())["number"] for _ in range(2)] == [2, 4]
        code, out, err = capture.finish()
        assert (code, out) == (0, "")
        assert re.search(r"4 messages in 1 conversation.*; 2 records match -Y\n", err)
    # Each by its own last records: what is forgotten is looked at first
    for asked, rows in (("name == ping", 1), ("sender == server and size > 1k", 0)):
        with capturing("conversations", *argv[:-1], asked, "--json", "--closed-time", "0.2") as capture:
            with Pair(port) as pair:
                pair.replay([(0, ping), (1, pong)])
            if rows:
                assert json.loads(capture.line())["messages"] == 2
            code, out, err = capture.finish()
            assert (code, out) == (0, "")
            assert f"{rows} conversation{'' if rows == 1 else 's'} match" in err


# -T fields


def cells(text: str) -> list[list[str]]:
    return [line.split("\t") for line in text.splitlines()]


def test_chosen_fields_are_those_of_the_json(capsys: pytest.CaptureFixture[str]) -> None:
    names = ["number", "record", "time", "name", "latency", "id", "packets", "notes", "fault", "fields", "fields.stream", "client", "port"]
    for capture in (AMQP, EXPIRED, GOLDEN / "mewbase" / "java-types.pcap", GOLDEN / "iggy" / "seed-all.pcap"):
        out, _ = shown(capsys, "-T", "fields", *(part for name in names for part in ("-e", name)), capture)
        made = [json.loads(line) for line in shown(capsys, "--json", capture)[0].splitlines()]
        table = cells(out)
        assert len(table) == len(made)
        for row, record in zip(table, made, strict=True):
            told = dict(zip(names, row, strict=True))
            assert told["number"] == str(record["number"])
            assert told["latency"] == ("" if record.get("latency_ns") is None else str(record["latency_ns"]))
            for name in ("record", "time", "name"):
                assert told[name] == record.get(name, "")
            for name in ("packets", "notes", "fault", "fields"):
                assert (json.loads(told[name]) if told[name] else record.get(name) or None) == (record.get(name) or None)
            assert told["fields.stream"] == ((record.get("fields") or {}).get("stream") or "")
            assert told["client"] in (record["src"], record["dst"])
            assert json.loads(told["port"]) == [int(record[end].rpartition(":")[2]) for end in ("src", "dst")]
        assert len({row[names.index("client")] for row in table}) == 1


def test_values_behind_lists_are_lists_and_short_names_gather(capsys: pytest.CaptureFixture[str]) -> None:
    out, _ = shown(capsys, "-T", "fields", "-e", "entries.size", "-e", 'peer_properties["product"]', "-e", "stream", "-Y", "entries", PLAIN)
    assert all(type(json.loads(row[0])) is list for row in cells(out))
    (first, *_), *_ = cells(shown(capsys, "-T", "fields", "-e", 'peer_properties["product"]', "-c", "1", AMQP)[0])
    assert first == '["streamdump test client"]'


def test_a_header_and_csv(capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["-T", "fields", "-e", "number", "-e", "fields.peer_properties", "-e", "latency", "-E", "header=y"]
    assert cells(shown(capsys, *argv, AMQP)[0])[0] == ["number", "fields.peer_properties", "latency_ns"]
    out, _ = shown(capsys, *argv, "-E", "separator=,", "-E", "quote=d", AMQP)
    table = list(csv.DictReader(out.splitlines(), strict=True))
    plain = cells(shown(capsys, *argv, "-E", "separator=/t", "-E", "quote=n", AMQP)[0])[1:]
    assert [list(row.values()) for row in table] == plain
    assert json.loads(table[0]["fields.peer_properties"])[0]["key"] == "product"


def test_texts_keep_to_their_line_and_act_on_no_terminal() -> None:
    from streamdump.filter import compile_columns
    from streamdump.render.fields import FieldLines
    from tests.filter.test_language import message

    record = message(fields={"stream": "a\tb\nc\\d\x1b[31m\u202e\u2028\x7f", "properties": [{"key": "\u202ek", "value": "\t"}]})
    lines = FieldLines(compile_columns(["fields.stream", "fields.properties", "fault", "request"]))
    line = lines.lines([record])
    assert line == '"'.join([r"a\tb\nc\\d\x1b[31m\u202e\u2028\x7f" + "\t[{", "key", ":", r"\u202ek", ",", "value", ":", r"\t", "}]\t\t7\n"])


def test_every_listed_name_can_be_shown(capsys: pytest.CaptureFixture[str]) -> None:
    # The bytes of messages are for filters
    names = [name for name, _, _ in names_of().listed() if name != "raw"]
    chosen = [part for name in names for part in ("-e", name)]
    out, _ = shown(capsys, "-T", "fields", *chosen, "-E", "header=y", GOLDEN / "iggy" / "seed-all.pcap")
    header, *rows = cells(out)
    assert header == [HEADINGS.get(name, name) for name in names]
    assert {len(row) for row in rows} == {len(names)}


def test_findings_that_are_not_made_cannot_match(capsys: pytest.CaptureFixture[str]) -> None:
    capture = GOLDEN / "iggy" / "seed-failures.pcap"
    told = "-Y: only findings can match"
    for asked in ("severity == error", "record == finding", "protocol == iggy and rule contains bad"):
        assert told in shown(capsys, "-Y", asked, capture)[1]
        assert told not in shown(capsys, "diagnose", "-Y", asked, capture)[1]
        out, err = shown(capsys, "--findings", "-Y", asked, capture)
        assert out and told not in err
    assert told not in shown(capsys, "-Y", "severity == error or fault", capture)[1]


# Names


def test_all_names_are_listed_with_their_types(capsys: pytest.CaptureFixture[str]) -> None:
    lines = shown(capsys, "protocols", "--fields")[0].splitlines()
    told: dict[str, str] = {}
    for line in lines:
        told.setdefault(line.split()[0], line)
    assert len(told) > 400
    assert told["latency"].endswith("duration")
    assert "message, gap" in told["sender"]
    assert told["sender"].endswith("text: client, server")
    assert "rabbitmq-stream, rabbitmq-stream-draft" in told["fields.chunk.num_entries"]
    assert "access refused" in told["fields.response_code"]
    assert told["fields.frame.event"].endswith("anything")
    only = shown(capsys, "protocols", "--fields", "mewbase")[0].splitlines()
    assert all(line.startswith("fields.") and "mewbase" in line for line in only)
    _, text = on_terminal(["protocols", "--fields"], columns=80)
    assert all(len(re.sub(r"\x1b\[[0-9;]*m", "", line)) <= 80 for line in text.splitlines())


def test_names_and_values_are_completed() -> None:
    assert field_names("laten") == ["latency_ns", "latency"]
    assert field_names("fields.chunk.num_e") == ["fields.chunk.num_entries"]
    assert filter_words("not (resp") == ["not (response", "not (response_code", "not (response_code_label"]
    assert filter_words("size > 3 and rabb") == ["size > 3 and rabbitmq-stream", "size > 3 and rabbitmq-stream-draft"]
    assert filter_words("name == Publ") == ["name == Publish", "name == PublishConfirm", "name == PublishError"]
    assert filter_words("size > 3 and sender in {client, s") == ["size > 3 and sender in {client, server"]
    assert filter_words("response_code != access") == ["response_code != access_refused"]
    assert filter_words("outcome ")[:2] == ["outcome ==", "outcome !="] and filter_words("outcome c") == ["outcome contains"]
    assert filter_words("outcome == refused ") == ["outcome == refused and", "outcome == refused or"]
    assert filter_words("iggy ") == ["iggy and", "iggy or"] and filter_words("size > ") == []
    assert filter_words("nothing == x") == filter_words("name < O") == []


# The library


def test_the_library_takes_a_filter() -> None:
    published = [one for one in streamdump.read(AMQP) if isinstance(one, Message) and one.name == "Publish"]
    assert list(streamdump.read(AMQP, where="name == Publish")) == published != []
    with pytest.raises(FilterError, match="did you mean stream"):
        streamdump.read("there is none", where="strem")
    with pytest.raises(CaptureError):
        list(streamdump.read(GOLDEN / "seastar-rpc" / "stream_cut_file.pcap", where="name == Request"))


def test_bytes_that_stay_bytes_are_asked_as_hex() -> None:
    asked: dict[str, Any] = {"where": "fields.chunk.entries.body matches '^[0-9a-f]+$'"}
    raw = [one.number for one in streamdump.read(AMQP, bytes_as="raw", **asked)]
    assert raw == [one.number for one in streamdump.read(AMQP, **asked)] != []


def test_columns_show_bytes_as_they_are_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    capture = GOLDEN / "seastar-rpc" / "basic.pcap"
    said = [shown(capsys, "-T", "fields", "-e", "fields", "--bytes", how, capture)[0] for how in ("hex", "base64", "omit")]
    assert len(set(said)) == 3
