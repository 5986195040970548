"""`streamdump stats`: what it counts is what the records say, on every capture; its series, and its page."""

from __future__ import annotations

import csv
import json
import os
from collections import Counter
from io import StringIO
from itertools import pairwise
from pathlib import Path
from shutil import copyfile
from typing import Any

import pytest

from streamdump.capture.files import open_capture
from streamdump.cli.app import main
from streamdump.credit import CHANGES, SubscriptionRow
from streamdump.render.stats import STREAM_HEAD, SUBSCRIPTION_HEAD, Counted, text
from streamdump.render.terminal import PLAIN
from streamdump.stats import CONSUMERS, GROUPS, INTERVALS, OTHERS, FileRow, Stats, StreamRow, TotalRow
from tests.render.records import START, message, response
from tests.support.captures import GOLDEN, capture_name, every_family
from tests.support.schema import validate

CREDIT = GOLDEN / "rabbitmq-stream" / "credit_flow_405.pcap"
DELIVERED = GOLDEN / "rabbitmq-stream" / "deliver_v2_405.pcap"
SMALL = sorted(path for path in GOLDEN.glob("*/*.pcap*") if path.stat().st_size < 60_000)


def said(capsys: pytest.CaptureFixture[str], *argv: object) -> list[dict[str, Any]]:
    assert main([*map(str, argv)]) in (0, 3)
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


@every_family(SMALL, short=3)
def test_it_counts_what_the_records_say(paths: list[Path], subtests: pytest.Subtests, capsys: pytest.CaptureFixture[str]) -> None:
    for path in paths:
        with subtests.test(capture_name(path)):
            records = said(capsys, "--json", path)
            found = said(capsys, "stats", "--json", "--interval", "0.5", path)
            for one in found:
                validate(one)
            messages = [one for one in records if one["record"] == "message"]
            gaps = [one for one in records if one["record"] == "gap"]
            (total,) = [one for one in found if one["record"] == "total"]
            assert total["messages"] == len(messages)
            assert total["message_bytes"] == sum(one["size"] for one in messages)
            assert total["refused"] == sum(one["outcome"] == "refused" for one in messages)
            assert total["faults"] == sum(one["fault"] is not None for one in messages)
            assert (total["gaps"], total["gap_bytes"]) == (len(gaps), sum(one["size"] or 0 for one in gaps))
            counts = Counter((one["protocol"], one["name"], one["kind"], one["sender"]) for one in messages)
            told = {(one["protocol"], one["name"], one["kind"], one["sender"]): one["count"] for one in found if one["record"] == "command"}
            assert told == counts
            cells = [one for one in found if one["record"] == "count"]
            assert sum(one["messages"] for one in cells) == len(messages)
            assert sum((Counter(one["commands"]) for one in cells), Counter()) == Counter(one["name"] for one in messages)
            assert [one["time_ns"] for one in cells] == [cells[0]["time_ns"] + at * 500_000_000 for at in range(len(cells))]
            published = sum(len(one["fields"].get("published_messages", ())) for one in messages if one["name"] == "Publish")
            streams = [one for one in found if one["record"] == "stream"]
            if not any("num_records" in entry for one in messages for entry in one["fields"].get("published_messages", ())):
                assert sum(one["published"] for one in streams if one["protocol"].startswith("rabbitmq")) == published
            assert sum(one["published"] for one in streams) == sum(one["published"] for one in cells)
            assert sum(one["delivered"] for one in streams) == sum(one["delivered"] for one in cells)


def test_files_are_those_of_the_packets(capsys: pytest.CaptureFixture[str]) -> None:
    found = said(capsys, "stats", "--json", "--separate", CREDIT, DELIVERED)
    for row, path in zip(found, (CREDIT, DELIVERED), strict=False):
        packets = [packet for batch in open_capture(path).batches() for packet in batch]
        assert (row["record"], row["name"], row["packets"]) == ("file", str(path), len(packets))
        assert row["bytes"] == sum(packet.wire for packet in packets)
        assert row["duration_ns"] == packets[-1].time_ns - packets[0].time_ns
    total = next(one for one in found if one["record"] == "total")
    assert total["packets"] == sum(one["packets"] for one in found if one["record"] == "file")


def test_a_name_in_no_encoding_is_readable_in_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name = str(tmp_path / os.fsdecode(b"\xff.pcap"))
    copyfile(GOLDEN / "rabbitmq-stream" / "deliver_v2_405.pcap", name)
    assert main(["stats", "--json", name]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[0])["name"] == str(tmp_path / r"\xff.pcap")


def test_what_was_delivered_is_held_against_what_is_committed(capsys: pytest.CaptureFixture[str]) -> None:
    (row,) = [one for one in said(capsys, "stats", "--json", DELIVERED) if one["record"] == "stream"]
    delivered = said(capsys, "--json", "-Y", "name == Deliver", DELIVERED)
    chunks = [one["fields"]["chunk"] for one in delivered]
    assert row["delivered"] == sum(one["num_records"] for one in chunks)
    assert row["delivered_bytes"] == sum(one["size"] for one in delivered)
    assert row["offset"] == max(one["chunk_first_offset"] + one["num_records"] - 1 for one in chunks)
    assert row["committed"] == max(one["fields"]["committed_chunk_id"] for one in delivered)
    assert row["behind"] == max(0, row["committed"] - row["offset"])


def test_credit_is_what_a_server_may_still_send(capsys: pytest.CaptureFixture[str]) -> None:
    width = 100_000_000
    rows = [one for one in said(capsys, "stats", "--json", "--interval", "0.1", DELIVERED) if one["record"] == "count"]
    left: dict[int, int] = {}
    expected: dict[int, int] = {}
    for one in said(capsys, "--json", DELIVERED):
        if one["record"] != "message":
            continue
        fields, name = one["fields"], one["name"]
        subscription = fields.get("subscription_id")
        if name == "Subscribe" and one["kind"] == "request":
            left[subscription] = fields["credit"]
        elif name == "Credit" and "credit" in fields and subscription in left:
            left[subscription] += fields["credit"]
        elif name == "Deliver":
            left[subscription] -= 1
        elif name == "Unsubscribe":
            left.pop(subscription, None)
        elif name == "MetadataUpdate":
            # Their stream, the only one, was deleted
            left.clear()
        expected[one["time_ns"] // width * width] = sum(left.values())
    assert {one["time_ns"]: one["credit"] for one in rows if one["time_ns"] in expected} == expected
    assert 6 in expected.values() and rows[-1]["credit"] == 0


def test_the_lag_of_a_consumer_is_what_its_polls_lack(capsys: pytest.CaptureFixture[str]) -> None:
    path = GOLDEN / "iggy" / "py050-group.pcap"
    lags: dict[tuple[Any, ...], list[int]] = {}
    asked: dict[int, dict[str, Any]] = {}
    for one in said(capsys, "--json", "-Y", "name == poll_messages", path):
        if one["kind"] == "request":
            asked[one["number"]] = one["fields"]["consumer"]
        elif one["fields"].get("messages"):
            who, fields = asked[one["request"]], one["fields"]
            name = f"{who['kind_label']} {who['id']['value']}"
            last = max(each["offset"] for each in fields["messages"])
            key = one["conversation"], one["stream"], fields["partition_id"], name
            lags.setdefault(key, []).append(fields["current_offset"] - last)
    rows = [one for one in said(capsys, "stats", "--json", path) if one["record"] == "consumer"]
    found = {(one["conversation"], one["stream"], one["partition"], one["consumer"]): (one["lag"], one["largest_lag"]) for one in rows}
    assert found == {key: (each[-1], max(each)) for key, each in lags.items()}
    assert sorted(found.values()) == [(0, 2), (0, 2)]


def test_with_a_filter_nothing_is_said_of_credit(capsys: pytest.CaptureFixture[str]) -> None:
    """A filter may leave out a part of it."""
    for argv, rows in (((), 1), (("-Y", "not name == Credit"), 0)):
        assert sum(one["record"] == "subscription" for one in said(capsys, "stats", "--json", *argv, CREDIT)) == rows


def test_a_filter_chooses_what_is_counted(capsys: pytest.CaptureFixture[str]) -> None:
    every = said(capsys, "stats", "--json", "-Y", "name == Deliver", DELIVERED)
    assert [one["name"] for one in every if one["record"] == "command"] == ["Deliver"]
    assert next(one for one in every if one["record"] == "total")["packets"] == 46


def test_csv_and_text_say_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    found = said(capsys, "stats", "--json", "--interval", "1", DELIVERED)
    for argv, record in (((), "command"), (("--interval", "1"), "count")):
        assert main(["stats", "--csv", *argv, str(DELIVERED)]) == 0
        rows = list(csv.DictReader(StringIO(capsys.readouterr().out)))
        wanted = [one for one in found if one["record"] == record]
        assert [{name: str(one[name]) for name in row} for row, one in zip(rows, wanted, strict=True)] == rows
    assert main(["stats", str(DELIVERED)]) == 0
    text = capsys.readouterr().out
    assert any(line.split()[:2] == ["rabbitmq-stream", "Deliver"] for line in text.splitlines())
    assert "committed" in text


def test_nothing_is_kept_without_a_limit() -> None:
    stats = Stats(1)
    for number in range(3 * GROUPS):
        stats.add([message(number + 1, name=f"unknown {number}", stream=f"s{number}", time_ns=START + number * 10**6)])
    assert len(stats.commands(1)) == GROUPS + 1
    assert sum(one.count for one in stats.commands(1) if one.name == OTHERS) == 2 * GROUPS
    assert len(stats.series()) <= INTERVALS
    assert sum(one.messages for one in stats.series()) == 3 * GROUPS
    assert stats.interval_ns is not None and stats.interval_ns > 1


def test_consumers_beyond_the_limit_are_counted() -> None:
    stats = Stats()
    poll = {"name": "poll_messages", "protocol": "iggy", "stream": "1/1"}
    for at in range(CONSUMERS + 3):
        consumer = {"kind": 1, "kind_label": "consumer", "id": {"kind": 1, "value": at}}
        answer = {"partition_id": 1, "current_offset": 9, "messages": [{"offset": 4}]}
        stats.add(
            [message(2 * at + 1, fields={"consumer": consumer}, **poll), response(2 * at + 2, request=2 * at + 1, fields=answer, **poll)]
        )
    assert {one.lag for one in stats.consumers()} == {5}
    assert (len(stats.consumers()), stats.total([]).polls_left_out) == (CONSUMERS, 3)


def test_a_page_has_tables_and_courses_and_nothing_of_the_capture_as_markup(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "page.html"
    assert main(["stats", "--html", str(page), str(DELIVERED)]) == 0
    text = page.read_text()
    assert text.count("<svg") == 4 and "outstanding credit" in text
    assert "<td>dv2</td>" in text
    assert main(["stats", "--html", str(CREDIT), str(CREDIT)]) == 2


def test_a_page_draws_the_credit_of_a_subscription(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "page.html"
    assert main(["stats", "--html", str(page), str(CREDIT)]) == 0
    capsys.readouterr()
    text = page.read_text()
    records = said(capsys, "--json", CREDIT)
    delivered = sum(one.get("name") == "Deliver" for one in records)
    (row,) = [one for one in said(capsys, "stats", "--json", CREDIT) if one["record"] == "subscription"]
    assert (text.count('class="chunk"'), text.count('class="stall"')) == (delivered, row["stalls"]) == (12, 7)
    assert "subscription 1 (cred): outstanding credit in chunks" in text
    assert "12 granted, 12 used, 12 chunks delivered, 7 stalls of 1.405 s in total, the longest 702 ms" in text
    assert main(["stats", "--html", str(page), "-Y", "not name == Credit", str(CREDIT)]) == 0
    assert 'class="chunk"' not in page.read_text()


def test_subscriptions_and_consumers_have_tables(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    polls = GOLDEN / "iggy" / "py090-basic.pcap"
    page = tmp_path / "page.html"
    for path, title, expected in (
        (CREDIT, "Subscriptions", "0 1 cred chunks 12 0 12 7 1.405 0.702"),
        (polls, "Consumers", "0 consumer 1 orders/events 2 0 4 4 4"),
    ):
        assert main(["stats", str(path), "--html", str(page)]) == 0
        assert expected in [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
        assert f"<h2>{title}</h2>" in page.read_text()


@pytest.mark.parametrize("columns", [60, 80, 110])
def test_a_narrow_terminal_shows_every_column(columns: int) -> None:
    name = "captures/golden/rabbitmq-stream/js_publish_consume_405.pcap"
    streams = [StreamRow(1, "rabbitmq-stream", "js-basic", None, 25, 553, 25, 405, 24, 27, 3)]
    subscriptions = [
        SubscriptionRow(1, "", 0, 2, "rabbitmq-stream", "js-basic", 0, "chunks", 20, 1, 19, 1, True, 4, 31_002_000_000, 7_000_000_000, [])
    ]
    files, total = [FileRow(1, 0, name, "", START, 1_530_000_000, 113, 12_582)], TotalRow(1, "", 0, *[0] * 12, {})
    counted = Counted(files, total, [], streams, subscriptions, [], [])
    printed = text(counted, columns, PLAIN)
    assert max(map(len, printed.splitlines())) <= columns
    for values in (STREAM_HEAD, SUBSCRIPTION_HEAD, ("js-basic", "553", "27", "31.002", "7.0", "consume_405.pcap", "12,582", "1.530")):
        for one in values:
            assert one in printed


def test_a_subscription_that_is_the_last_message_of_its_conversation_has_its_credit() -> None:
    stats = Stats()
    stats.add([message(1, name="Subscribe", fields={"subscription_id": 0, "version": 1, "credit": 7})])
    (row,) = stats.subscriptions()
    assert (row.complete, row.outstanding) == (True, 7)


def test_a_course_has_a_limit_of_places() -> None:
    stats = Stats(draws=True)
    fields = {"subscription_id": 0, "version": 1, "credit": 1}
    stats.add([message(1, name="Subscribe", fields=fields)])
    stats.add([message(at, name="Credit", kind="one_way", fields=fields) for at in range(2, 5 * CHANGES)])
    (course,) = stats.courses()
    assert CHANGES // 2 <= len(course.places) < CHANGES
    assert {after[1] - before[1] for before, after in pairwise(course.places)} == {course.every}


@pytest.mark.parametrize("argv", [["--interval", "0"], ["--json", "--csv"]])
def test_wrong_calls(argv: list[str]) -> None:
    assert main(["stats", *argv, str(CREDIT)]) == 2
