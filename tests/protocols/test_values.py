"""The limits on values: one count for a whole frame, whatever its lists are made of, and one for a conversation's values without bytes."""

from __future__ import annotations

import gzip
import struct
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import cramjam
import msgspec
import pytest

from streamdump import snapshot
from streamdump.capture.files import open_capture
from streamdump.inspector import Inspector
from streamdump.model import END, Limited, Message, Options, SideData, Verdict
from streamdump.protocols import PROTOCOLS
from streamdump.protocols.dissector import Dissector
from streamdump.protocols.parser import Parser
from streamdump.protocols.protocol import Context
from streamdump.protocols.rabbitmq.framing import is_sound
from tests.protocols.test_iggy import ONE
from tests.protocols.test_iggy import request as iggy_request
from tests.protocols.test_mewbase import CONNECT
from tests.protocols.test_mewbase import OK as CONNECTED
from tests.protocols.test_seastar import negotiation
from tests.support.frames import ACK, START_NS, SYN, Packet, ethernet, ip4, pcap, tcp
from tests.support.work import peak

BY_NAME = {protocol.name: protocol for protocol in PROTOCOLS}
LIMIT, BARE = 60, 20
SMALL = Options(values_limit=LIMIT, bare_limit=BARE)
SERVER = 1

# Frames of RabbitMQ Streams


def frame(key: int, body: bytes, version: int = 1) -> bytes:
    return struct.pack(">IHH", len(body) + 4, key, version) + body


def deliver(*entries: bytes, records: int | None = None) -> bytes:
    section = b"".join(entries)
    counts = len(entries), len(entries) if records is None else records
    head = struct.pack(">BBBHIqQQIIIB3s", 1, 0x50, 0, *counts, 0, 1, 0, zlib.crc32(section), len(section), 0, 0, bytes(3))
    return frame(8, head + section)


def entry(body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + body


PACK: dict[int, Any] = {
    0: lambda data: data,
    1: gzip.compress,
    2: lambda data: bytes(cramjam.snappy.compress(data)),
    3: lambda data: bytes(cramjam.lz4.compress(data)),
    4: lambda data: bytes(cramjam.zstd.compress(data)),
}


def sub_batch(kind: int, count: int, data: bytes) -> bytes:
    packed = PACK[kind](data)
    return bytes([0x80 | kind << 4]) + struct.pack(">HII", count, len(data), len(packed)) + packed


def amqp(value: bytes) -> bytes:
    return b"\x00\x53\x77" + value


def wide(code: int, body: bytes, count: int) -> bytes:
    return bytes([code]) + struct.pack(">II", len(body) + 4, count) + body


def array(constructor: bytes, count: int, items: bytes = b"") -> bytes:
    return wide(0xF0, constructor + items, count)


FIVE = b"\xc0\x06\x05" + b"\x43" * 5


def document(elements: bytes) -> bytes:
    return struct.pack("<i", len(elements) + 5) + elements + b"\0"


def received(elements: bytes) -> bytes:
    """A frame of mewbase with these elements."""
    return document(b"\x02type\0" + struct.pack("<i", 6) + b"RECEV\0" + b"\x03frame\0" + document(elements))


IGGY_MESSAGE, IGGY_HEADER = bytes(24), bytes(4) + b"\1" + bytes(4)
SENT_TO = ONE * 2 + b"\x01\x00"
STREAM_RIGHTS = struct.pack("<I", 1) + bytes(6) + b"\0"
PERMISSIONS = bytes(10) + b"\1" + b"\1".join([STREAM_RIGHTS] * 99) + b"\0"


class Case(NamedTuple):
    """A frame with more values than may be, and where it stops."""

    protocol: str
    frame: bytes
    field: str
    side: int = SERVER
    layout: str | None = None


def delivered(field: str, *entries: bytes, records: int | None = None) -> Case:
    return Case("rabbitmq-stream", deliver(*entries, records=records), f"chunk.entries{field}")


def sent(field: str, data: bytes, side: int = SERVER) -> Case:
    return Case("rabbitmq-stream", data, field, side)


CASES = {
    "AMQP list": delivered("[0].sections[0]", entry(amqp(wide(0xD0, b"\x43" * 99, 99)))),
    "AMQP map": delivered("[0].sections[0]", entry(amqp(wide(0xD1, b"\x43" * 98, 98)))),
    "AMQP array": delivered("[0].sections[0]", entry(amqp(array(b"\x50", 99, bytes(99))))),
    "AMQP lists in a list": delivered("[0].sections[0]", entry(amqp(wide(0xD0, FIVE * 19, 19)))),
    "AMQP described values": delivered("[0].sections[0]", entry(amqp(wide(0xD0, b"\x00\x43\x43" * 30, 30)))),
    "AMQP properties": delivered("[0].sections[0]", entry(b"\x00\x53\x74" + wide(0xD1, b"\xa1\x00\x43" * 47, 94))),
    "AMQP sections": delivered("[0].sections[58]", entry(b"\x00\x53\x75\xa0\x00" * 99)),
    "entries": delivered("[60]", *[entry(b"x")] * 99),
    "lists in entries": delivered("[8].sections[0]", *[entry(amqp(FIVE))] * 20),
    "messages": delivered("[0].messages[59]", sub_batch(0, 99, entry(b"") * 99), records=99),
    "packed messages": delivered("[0].messages[59]", sub_batch(4, 99, entry(b"x") * 99), records=99),
    "lists in packed messages": delivered("[2].messages[2].sections[0]", *[sub_batch(1, 3, entry(amqp(FIVE)) * 3)] * 9, records=27),
    "Publish": sent(
        "published_messages[60]", frame(2, struct.pack(">Bi", 1, 99) + b"".join(struct.pack(">QI", n, 1) + b"x" for n in range(99))), 0
    ),
    "publishing ids": sent("publishing_ids[60]", frame(3, struct.pack(">Bi99Q", 1, 99, *range(99)))),
    "publishing errors": sent("publishing_errors[60]", frame(4, struct.pack(">Bi", 1, 99) + struct.pack(">QH", 7, 2) * 99)),
    "streams": sent("streams[60]", frame(0xF, struct.pack(">Ii", 7, 99) + b"\x00\x01s" * 99), 0),
    "properties": sent("peer_properties[60]", frame(0x11, struct.pack(">Ii", 7, 99) + b"\x00\x01k\x00\x01v" * 99), 0),
    "BSON elements": Case("mewbase", received(b"".join(b"\x0a%d\0" % n for n in range(99))), "frame"),
    "BSON array": Case("mewbase", received(b"\x04event\0" + document((b"\x10\0" + bytes(4)) * 99)), "frame.event"),
    "BSON documents in an array": Case(
        "mewbase", received(b"\x04event\0" + document((b"\x03\0" + document(b"\x08a\0\1")) * 99)), "frame.event[28]"
    ),
    "Iggy messages": Case("iggy", iggy_request(101, SENT_TO + IGGY_MESSAGE * 99), "messages[60]", 0, "L0"),
    "Iggy headers": Case(
        "iggy",
        iggy_request(101, SENT_TO + (bytes(16) + struct.pack("<I", 81) + IGGY_HEADER * 9 + bytes(4)) * 9),
        "messages[6]",
        0,
        "L0",
    ),
    "Iggy permissions": Case(
        "iggy", iggy_request(36, ONE + b"\1" + struct.pack("<I", len(PERMISSIONS)) + PERMISSIONS), "permissions.streams[60]", 0, "L6"
    ),
    "Seastar records": Case("seastar-rpc", negotiation(*((number + 10, b"") for number in range(99))), "features[60]", 0),
}


AROUND: dict[str, tuple[list[tuple[int, bytes]], list[tuple[int, bytes]]]] = {
    "mewbase": ([(0, CONNECT), (1, CONNECTED)], []),
    "seastar-rpc": ([], [(1, negotiation())]),
}
"""What has to come before and after a frame."""


def told(events: list[tuple[int, bytes]], protocol: str, layout: str | None, options: Options) -> tuple[list[Message], Dissector]:
    """The messages of a conversation, and its dissector."""
    verdict = Verdict(protocol, 1.0, (), None, 0, layout)
    parser = Parser(BY_NAME[protocol], options, Context(0, ("192.0.2.1:1", "192.0.2.2:2"), (1, 2), 0, True, verdict, options))
    dissector = parser.dissector
    at = [0, 0]
    emitted = []
    for order, (side, data) in enumerate(events):
        emitted += parser.process([SideData(side, at[side], data, (order, order + 1, 0, order * 1000))], order)
        at[side] += len(data)
    emitted += parser.close((len(events), len(events) + 1, 0, len(events) * 1000), END)
    return [one.record for one in emitted], dissector


def decoded(case: Case, options: Options) -> tuple[Message, Dissector]:
    before, after = AROUND.get(case.protocol, ([], []))
    messages, dissector = told([*before, (case.side, case.frame), *after], case.protocol, case.layout, options)
    (message,) = [one for one in messages if one.size == len(case.frame)]
    return message, dissector


def made(value: Any, protocol: str) -> int:
    """The values in lists; the elements of documents and the keys and values of maps, descriptors and what they describe, among them."""
    if isinstance(value, list):
        return sum(1 + made(one, protocol) for one in value)
    if not isinstance(value, dict):
        return 0
    inner = sum(made(one, protocol) for name, one in value.items() if not name.endswith("_label"))
    if protocol == "mewbase":
        return inner + len(value)
    return inner + 2 * (set(value) in ({"key", "value"}, {"descriptor", "value"}) and protocol != "table")


@pytest.mark.parametrize("name", CASES)
def test_a_frame_stops_at_its_limit(name: str) -> None:
    case = CASES[name]
    message, stopped = decoded(case, SMALL)
    assert type(message.fault) is Limited
    assert message.fault.reason.endswith(f"of a frame no more than {LIMIT} values are made")
    assert case.field in message.fault.field
    kind = "table" if name == "properties" else case.protocol
    # The size of a document is no element, and a pair is made as a whole
    assert LIMIT - 2 <= made(message.fields, kind) - (kind == "mewbase") <= LIMIT
    assert stopped.parser.limit_hits == 1
    whole, free = decoded(case, Options())
    assert whole.fault is None
    assert made(whole.fields, kind) > LIMIT
    assert free.parser.limit_hits == 0


@pytest.mark.parametrize("name", CASES)
def test_it_stops_at_the_same_place_with_details(name: str) -> None:
    case = CASES[name]
    plain, _ = decoded(case, SMALL)
    detailed, stopped = decoded(case, replace(SMALL, detail=True))
    assert (detailed.fields, detailed.fault, list(detailed.notes)) == (plain.fields, plain.fault, list(plain.notes))
    assert type(detailed.fault) is Limited
    assert stopped.parser.limit_hits == 1
    for buffer, data in (detailed.raw or {}).items():
        at = 0
        for span in detailed.spans or []:
            if span.leaf and span.buffer == buffer:
                assert span.offset == at
                at += span.length
        assert at == len(data)


def test_each_frame_begins_anew() -> None:
    fits, too_many = deliver(entry(amqp(FIVE))), CASES["AMQP list"].frame
    messages, dissector = told([(SERVER, one) for one in (too_many, fits, too_many, fits)], "rabbitmq-stream", None, SMALL)
    assert [message.fault is None for message in messages] == [False, True, False, True]
    assert dissector.parser.limit_hits == 2


def nothings(count: int, kind: bytes = b"\x40") -> bytes:
    """A frame with an array of values that take no bytes."""
    return deliver(entry(amqp(array(kind, count))))


def lengths(messages: list[Message]) -> list[int]:
    return [len(message.fields["chunk"]["entries"][0]["sections"][0]["value"]["value"]) for message in messages]


@pytest.mark.parametrize("detail", [False, True])
def test_values_without_bytes_count_for_the_conversation(detail: bool) -> None:
    options = replace(SMALL, detail=detail)
    messages, dissector = told([(SERVER, nothings(9))] * 4, "rabbitmq-stream", None, options)
    assert lengths(messages) == [9, 9, 2, 0]
    assert [message.fault and message.fault.reason for message in messages] == [
        None,
        None,
        "count says 9, of a conversation no more than 20 values without bytes are made",
        "count says 9, of a conversation no more than 20 values without bytes are made",
    ]
    assert dissector.parser.limit_hits == 2


def test_another_process_goes_on_counting() -> None:
    _, dissector = told([(SERVER, nothings(9))] * 2, "rabbitmq-stream", None, SMALL)
    again = snapshot.decode(snapshot.encode(dissector), SMALL)
    assert again.values.empty == dissector.values.empty == 2


def test_an_array_of_very_many_values_without_bytes_takes_no_memory() -> None:
    frame = nothings(0xFFFF_FFFF)
    options = Options(bare_limit=1000)
    assert peak(lambda: told([(SERVER, frame)], "rabbitmq-stream", None, options)) < 1 << 20


@pytest.mark.parametrize("detail", [False, True])
def test_very_many_values_take_no_more_memory_than_their_limit(detail: bool) -> None:
    """2 Mi elements of an AMQP list in 2 kB, as a sub-batch."""
    frame = deliver(sub_batch(1, 1, entry(amqp(wide(0xD0, b"\x43" * (2 << 20), 2 << 20)))))
    options = Options(values_limit=1000, detail=detail)

    def read() -> None:
        ((message,), _) = told([(SERVER, frame)], "rabbitmq-stream", None, options)
        assert len(message.fields["chunk"]["entries"][0]["messages"][0]["sections"][0]["value"]) == 1000 - 3

    # What was unpacked is 2 MiB, once as it comes from zlib
    assert peak(read) < (14 if detail else 6) << 20


def test_a_frame_is_tried_as_a_layout_without_making_much() -> None:
    """Whatever looks like a frame is, on the way back into frames."""
    layout = next(one for one in BY_NAME["rabbitmq-stream"].loaded.dissector.language.heads if one.name == "Deliver")
    bomb = deliver(entry(amqp(array(b"\x40", 0xFFFF_FFFF))), sub_batch(1, 1, entry(bytes(8 << 20))))
    assert not is_sound(layout, bomb, 0, len(bomb))
    assert peak(lambda: is_sound(layout, bomb, 0, len(bomb))) < 2 << 20


def capture(frames: list[bytes]) -> bytes:
    """A conversation in which the server sends these frames, in segments of 1,000 bytes."""
    data = b"".join(frames)
    ends = {"src": bytes((192, 0, 2, 2)), "dst": bytes((192, 0, 2, 1))}
    segments = [tcp(data[at : at + 1000], sport=5552, dport=40000, seq=2000 + at, ack=1000) for at in range(0, len(data), 1000)]
    answer = tcp(sport=5552, dport=40000, seq=1999, ack=1000, flags=SYN | ACK)
    packets = [ip4(tcp(seq=999, flags=SYN)), *(ip4(one, **ends) for one in (answer, *segments))]
    return pcap([Packet(ethernet(one), START_NS + number) for number, one in enumerate(packets)])


def test_batches_do_not_show(tmp_path: Path) -> None:
    path = tmp_path / "c.pcap"
    names = ("AMQP list", "entries", "packed messages", "publishing ids")
    path.write_bytes(capture([*(CASES[name].frame for name in names), *[nothings(9)] * 3, *(CASES[name].frame for name in names)]))
    options = replace(SMALL, decode_as=((5552, "rabbitmq-stream", None),))
    told_by_batch = []
    for rows in (1, 7, None):
        inspector = Inspector([open_capture(path)], options, rows)
        records = [msgspec.json.encode(record) for record in inspector.records()]
        assert len(records) == 11
        (row,) = inspector.rows()
        assert (row.faults, row.limit_hits) == (9, 9)
        told_by_batch.append(records)
    assert told_by_batch[0] == told_by_batch[1] == told_by_batch[2]
