"""What filters find in captures, and what jq finds there when it is asked the same of `--json`."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from functools import cache
from pathlib import Path

import pytest

import streamdump
from streamdump.cli.app import main
from streamdump.errors import CaptureError
from streamdump.filter import compile_filter
from streamdump.model import Record
from tests.support.captures import GOLDEN

ASKED: tuple[tuple[str, str, str, int], ...] = (
    (
        "rabbitmq-stream/publish_amqp_sections_436.pcap",
        "name == Publish",
        '.name == "Publish"',
        1,
    ),
    (
        "rabbitmq-stream/publish_amqp_sections_436.pcap",
        "name != Publish",
        '.name != "Publish"',
        26,
    ),
    (
        "rabbitmq-stream/publish_amqp_sections_436.pcap",
        "name in {Open, Tune, Close}",
        '.name | IN("Open", "Tune", "Close")',
        6,
    ),
    (
        "rabbitmq-stream/publish_amqp_sections_436.pcap",
        "latency > 2ms",
        "(.latency_ns // 0) > 2000000",
        4,
    ),
    (
        "rabbitmq-stream/publish_amqp_sections_436.pcap",
        "latency_ns <= 150us",
        ".latency_ns != null and .latency_ns <= 150000",
        2,
    ),
    (
        "rabbitmq-stream/publish_amqp_sections_436.pcap",
        "not latency",
        ".latency_ns == null",
        15,
    ),
    (
        "rabbitmq-stream/publish_amqp_sections_436.pcap",
        "fields.published_messages.sections.section == properties",
        '[.fields.published_messages[]?.sections[]?.section] | index("properties") != null',
        1,
    ),
    (
        "rabbitmq-stream/publish_amqp_sections_436.pcap",
        "sections.section == application-properties",
        '[.. | .section?] | index("application-properties") != null',
        2,
    ),
    (
        "rabbitmq-stream/publish_amqp_sections_436.pcap",
        "fields.chunk.entries.sections.value.subject",
        "[.fields.chunk?.entries[]?.sections[]?.value | objects | .subject | values] | length > 0",
        1,
    ),
    (
        "rabbitmq-stream/access_refused_436.pcap",
        "response_code == access_refused",
        '[.. | .response_code_label?] | index("access refused") != null',
        7,
    ),
    (
        "rabbitmq-stream/access_refused_436.pcap",
        'response_code == "Access Refused"',
        '[.. | .response_code_label?] | index("access refused") != null',
        7,
    ),
    (
        "rabbitmq-stream/access_refused_436.pcap",
        "response_code == 0x10",
        "[.. | .response_code?] | index(16) != null",
        7,
    ),
    (
        "rabbitmq-stream/access_refused_436.pcap",
        "outcome == refused or fields.stream_metadata.response_code != ok and name == Metadata and kind == response",
        '.outcome == "refused" or (.name == "Metadata" and .request != null and ([.. | .response_code?] | index(1) == null))',
        6,
    ),
    (
        "rabbitmq-stream/create_bad_436.pcap",
        "outcome == refused",
        '.outcome == "refused"',
        3,
    ),
    (
        "rabbitmq-stream/create_bad_436.pcap",
        "response_code and not response_code in {ok, precondition_failed}",
        '.fields.response_code != null and (.fields.response_code_label | IN("OK", "precondition failed") | not)',
        2,
    ),
    (
        "rabbitmq-stream/create_bad_436.pcap",
        'fields.arguments["max-length-bytes"]',
        '[.fields.arguments[]? | select(.key == "max-length-bytes") | .value | values] | length > 0',
        1,
    ),
    (
        "rabbitmq-stream/create_bad_436.pcap",
        'arguments["max-age"] matches "^n.*e$"',
        '[.fields.arguments[]? | select(.key == "max-age").value | select(test("^n.*e$"))] | length > 0',
        1,
    ),
    (
        "rabbitmq-stream/handshake_close_405.pcap",
        'peer_properties["product"] == RabbitMQ',
        '[.fields.peer_properties[]? | select(.key == "product" and .value == "RabbitMQ")] | length > 0',
        1,
    ),
    (
        "rabbitmq-stream/handshake_close_405.pcap",
        "client == 127.0.0.1 and sender == server",
        '.sender == "server"',
        7,
    ),
    (
        "rabbitmq-stream/two_connections_310.pcap",
        "conversation == 1",
        ".conversation == 1",
        78,
    ),
    (
        "rabbitmq-stream/two_connections_310.pcap",
        "src == 127.0.0.1:5552",
        '.src == "127.0.0.1:5552"',
        81,
    ),
    (
        "rabbitmq-stream/lost_segments_405.pcap",
        "record == gap",
        '.record == "gap"',
        2,
    ),
    (
        "rabbitmq-stream/lost_segments_405.pcap",
        "reason == lost and size > 50",
        '.reason == "lost" and .size > 50',
        1,
    ),
    (
        "rabbitmq-stream/lost_segments_405.pcap",
        "chunk.num_entries >= 5",
        "(.fields.chunk.num_entries // 0) >= 5",
        16,
    ),
    (
        "rabbitmq-stream/subbatch_compressed_405.pcap",
        "compression in {gzip, zstd}",
        '[.. | .compression_label?] | (index("gzip") != null or index("zstd") != null)',
        6,
    ),
    (
        "rabbitmq-stream/subbatch_compressed_405.pcap",
        "compression > 1 and sender == client",
        '.sender == "client" and ([.. | .compression? | numbers | select(. > 1)] | length > 0)',
        4,
    ),
    (
        "rabbitmq-stream/tracking_chunks_405.pcap",
        "fields.chunk.chunk_type == tracking_delta",
        ".fields.chunk?.chunk_type == 1",
        1,
    ),
    (
        "rabbitmq-stream/tracking_chunks_405.pcap",
        "chunk.trailer.type in {offset, 0}",
        "[.fields.chunk?.trailer[]?.type | select(. < 2)] | length > 0",
        3,
    ),
    (
        "rabbitmq-stream/credit_flow_405.pcap",
        "credit > 1k or name == Credit",
        '.name == "Credit" or (.fields.credit // 0) > 1000',
        12,
    ),
    (
        "rabbitmq-stream/credit_flow_405.pcap",
        "(name == Deliver and size > 0.1KiB) or record == exchange",
        '(.name == "Deliver" and .size > 102.4) or .record == "exchange"',
        12,
    ),
    (
        "rabbitmq-stream/ipv6_436.pcap",
        "ip == ::1 and not dst == [::1]:5552",
        '.dst != "[::1]:5552"',
        16,
    ),
    (
        "rabbitmq-stream/ipv6_436.pcap",
        "dst == [::1]:5552 and ip == ::/64",
        '.dst == "[::1]:5552"',
        12,
    ),
    (
        "rabbitmq-stream/draft_exchange.pcap",
        "protocol == rabbitmq-stream-draft and fields.stream",
        "[.fields | .. | .stream? | values] | length > 0",
        10,
    ),
    (
        "rabbitmq-stream/draft_exchange.pcap",
        "protocol == rabbitmq-stream-draft and stream",
        '.stream != null and .stream != ""',
        25,
    ),
    (
        "rabbitmq-stream/publishers_310.pcap",
        "stream == pubs and name in {Publish, PublishConfirm}",
        '.stream == "pubs" and (.name | test("^Publish"))',
        5,
    ),
    ("iggy/py081-admin.pcap", 'stream == "adm/log" and kind == response', '.stream == "adm/log" and .kind == "response"', 18),
    ("mewbase/java-sub.pcap", "stream == orders and name == RECEV", '.stream == "orders" and .name == "RECEV"', 6),
    (
        "rabbitmq-stream/draft_wrong_password.pcap",
        "response_code == authentication_failure",
        '[.. | .response_code_label?] | map(select(. != null) | ascii_downcase) | index("authentication failure") != null',
        1,
    ),
    (
        "iggy/seed-all.pcap",
        "name == poll_messages and kind == response",
        '.name == "poll_messages" and .kind == "response"',
        8,
    ),
    (
        "iggy/seed-all.pcap",
        "messages.id == 135",
        '[.fields.messages[]?.id] | index("135") != null',
        2,
    ),
    (
        "iggy/seed-all.pcap",
        'fields.messages.headers["i8"] < 0',
        '[.fields.messages[]?.headers[]? | select(.key == "i8" and (.value < 0))] | length > 0',
        5,
    ),
    (
        "iggy/seed-all.pcap",
        "strategy in {first, next}",
        '[.. | .strategy_label?] | (index("first") != null or index("next") != null)',
        5,
    ),
    (
        "iggy/seed-all.pcap",
        "status != ok and kind == response",
        '.kind == "response" and .fields.status != 0',
        1,
    ),
    (
        "iggy/py090-errors.pcap",
        "status and not name contains message",
        '(.fields.status != null) and (.name | contains("message") | not)',
        11,
    ),
    (
        "iggy/py090-errors.pcap",
        "outcome == refused and port == 8090",
        '.outcome == "refused"',
        7,
    ),
    (
        "iggy/py080-errors.pcap",
        'status_label matches "not_found|already"',
        '(.fields.status_label // "") | test("not_found|already")',
        6,
    ),
    (
        "iggy/seed-headers.pcap",
        "headers.kind == string",
        '[.. | .headers? | arrays | .[] | .kind_label] | index("string") != null',
        24,
    ),
    (
        "iggy/py081-admin.pcap",
        "permissions.manage_servers == false",
        "[.. | .permissions? | objects | .manage_servers] | index(false) != null",
        4,
    ),
    (
        "iggy/py090-admin.pcap",
        "permissions.streams.topics.poll_messages == true or name == ping",
        '.name == "ping" or ([.. | .permissions? | objects | .streams[]?.topics[]?.poll_messages] | index(true) != null)',
        2,
    ),
    (
        "mewbase/java-auth-bad.pcap",
        "how == FIN and sender == server and quiet < 1s and refused",
        '.record == "ending" and .how == "FIN" and .quiet_ns < 1000000000 and .refused > 0',
        1,
    ),
    (
        "iggy/seed-lossy.pcap",
        "waited >= 0 and open != 1",
        ".waited_ns != null",
        3,
    ),
    (
        "iggy/seed-lossy.pcap",
        "record != message",
        '.record != "message"',
        5,
    ),
    (
        "iggy/py081-midstream.pcap",
        'notes contains "is not known" and not fault',
        '[.notes[]? | select(contains("is not known"))] | length > 0',
        2,
    ),
    (
        "iggy/py070-reorder.pcap",
        "number in {1, 2, 300, 999} or number >= 290",
        ".number | (. < 3 or . >= 290)",
        12,
    ),
    (
        "iggy/seed-pipelined.pcap",
        "time >= 2026-11-21T09:34:58.19+01:00 and time < 2026-11-21T08:34:59Z",
        '.time >= "2026-11-21T08:34:58.19"',
        43,
    ),
    (
        "seastar-rpc/multi_algo.pcap",
        "negotiated.compression == LZ4",
        '.fields.negotiated?.compression == "LZ4"',
        1,
    ),
    (
        "seastar-rpc/multi_algo.pcap",
        'features.algorithms contains "LZ4_FRAG"',
        '[.fields.features[]?.algorithms // "" | select(contains("LZ4_FRAG"))] | length > 0',
        1,
    ),
    (
        "seastar-rpc/lz4.pcap",
        "compression.packed_size < 1KiB and compression.unpacked_size > 100",
        "(.fields.compression // null) | . != null and .packed_size < 1024 and .unpacked_size > 100",
        8,
    ),
    (
        "seastar-rpc/scylla_v3_zstd.pcap",
        "compression.header.algorithm == zstd and verb == READ_DATA",
        '(.fields.compression.header?.algorithm_label // "") == "zstd" and .fields.verb_label == "READ_DATA"',
        3,
    ),
    (
        "seastar-rpc/scylla_v3_dictionary.pcap",
        "compression.control.sender.action == COMMIT and compression.dictionary contains a74055df",
        '.fields.compression.control?.sender?.action == 2 and (.fields.compression.dictionary | startswith("a74055df"))',
        2,
    ),
    (
        "seastar-rpc/exceptions.pcap",
        "exception_type == UNKNOWN_VERB",
        ".fields.exception_type == 1",
        2,
    ),
    (
        "seastar-rpc/exceptions.pcap",
        "exception_type != user and name == Exception",
        '.name == "Exception" and .fields.exception_type != 0',
        2,
    ),
    (
        "seastar-rpc/handler_duration.pcap",
        "handler_duration > 0 and handler_duration != not_measured",
        "(.fields.handler_duration // 0) > 0 and .fields.handler_duration_label == null",
        8,
    ),
    (
        "seastar-rpc/timeout_expiry.pcap",
        'reason == "deadline passed"',
        '.reason == "deadline passed"',
        7,
    ),
    (
        "seastar-rpc/timeout_expiry.pcap",
        "outcome == unanswered and client == 127.0.0.1",
        '.outcome == "unanswered"',
        7,
    ),
    (
        "seastar-rpc/inflight_lost.pcap",
        "in_frame == false or record == gap",
        '.record == "gap"',
        2,
    ),
    (
        "seastar-rpc/isolation.pcap",
        "cookie",
        '[.. | .cookie? | values | select(. != "")] | length > 0',
        2,
    ),
    (
        "mewbase/java-types.pcap",
        "fields.frame.event.int32 < 0",
        "(.fields.frame.event.int32 // 0) < 0",
        2,
    ),
    (
        "mewbase/java-types.pcap",
        'fields.frame.event.str contains "世界"',
        '(.fields.frame.event.str // "") | contains("世界")',
        2,
    ),
    (
        "mewbase/java-types.pcap",
        'fields.frame.event.arr.k == 2 and fields.frame.event["t"] == true',
        ".fields.frame.event.t == true",
        2,
    ),
    (
        "mewbase/py-types.pcap",
        "fields.frame.event.ts.$timestamp.t > 1k",
        '(.fields.frame.event.ts."$timestamp".t? // 0) > 1000',
        1,
    ),
    (
        "mewbase/java-types.pcap",
        "fields.frame.event.flt == 1.5",
        ".fields.frame.event.flt == 1.5",
        2,
    ),
    (
        "mewbase/java-query.pcap",
        "fields.frame.result.price > 10",
        "(.fields.frame.result.price? // 0) > 10",
        61,
    ),
    (
        "mewbase/java-query.pcap",
        "frame.last == true and name == QUERYRESULT",
        ".fields.frame.last == true",
        2,
    ),
    (
        "mewbase/java-auth-bad.pcap",
        "errCode == authentication_failed",
        '.fields.frame.errCode_label == "authentication failed"',
        1,
    ),
    (
        "mewbase/cut-snaplen120.pcap",
        'fault.reason matches "(?i)snap" or reason == cut',
        '((.fault.reason // "") | test("snap"; "i")) or .reason == "cut"',
        44,
    ),
    (
        "mewbase/bad-utf8.pcap",
        "notes or fault.field",
        "((.notes // []) | length > 0) or .fault != null",
        1,
    ),
    (
        "mewbase/java-dec2016.pcap",
        "not (name == PUB or name == RECEV) and not kind == response",
        '(.name | IN("PUB", "RECEV") | not) and .kind != "response"',
        424,
    ),
)
"""Capture, filter, the same for jq, and how many records that are."""

every_question = pytest.mark.parametrize(("capture", "expression", "program", "count"), ASKED, ids=[f"{one[0]}: {one[1]}" for one in ASKED])


@cache
def records(capture: str) -> list[Record]:
    """All records of a capture, as far as it can be read."""
    found: list[Record] = []
    with contextlib.suppress(CaptureError):
        found.extend(streamdump.read(GOLDEN / capture))
    return found


def test_every_family_is_asked() -> None:
    assert len(ASKED) >= 60
    assert {capture.partition("/")[0] for capture, *_ in ASKED} == {path.name for path in GOLDEN.iterdir() if path.is_dir()}


@every_question
def test_a_filter_finds_what_is_there(capture: str, expression: str, program: str, count: int) -> None:
    found = compile_filter(expression).select(records(capture))
    assert 0 < len(found) == count < len(records(capture))
    rest = compile_filter(f"not ({expression})").select(records(capture))
    assert len(rest) == len(records(capture)) - count


@pytest.mark.witness
@pytest.mark.skipif(shutil.which("jq") is None, reason="needs jq")
@every_question
def test_jq_finds_the_same(
    capture: str, expression: str, program: str, count: int, capfdbinary: pytest.CaptureFixture[bytes], tmp_path: Path
) -> None:
    main(["--json", str(GOLDEN / capture)])
    lines = capfdbinary.readouterr().out
    asked = ["jq", "-c", f"select({program}) | .number"]
    numbers = subprocess.run(asked, input=lines, capture_output=True, check=True).stdout.split()
    assert len(numbers) == count
    assert [record.number for record in compile_filter(expression).select(records(capture))] == [*map(int, numbers)]
