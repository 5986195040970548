"""RabbitMQ Streams, the protocol in use and its draft: every command as captured, and every trap of the protocol by hand."""

from __future__ import annotations

import gzip
import json
import struct
import sys
import zlib
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import cramjam
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import streamdump
from streamdump.layout import Layout
from streamdump.model import END, Gap, Message, Options, SideData, StreamGap, Verdict
from streamdump.protocols import BY_NAME
from streamdump.protocols.parser import Parser
from streamdump.protocols.protocol import Context, DetectionView, SideView
from streamdump.protocols.rabbitmq import chunk as chunks
from streamdump.protocols.rabbitmq import compression, layouts, layouts_draft
from streamdump.protocols.rabbitmq import info as words
from streamdump.protocols.rabbitmq.chunk_docs import PARTS
from streamdump.protocols.rabbitmq.dissector import (
    Phase,
    RabbitmqStreamDissector,
    RabbitmqStreamDraftDissector,
    StreamDissector,
)
from streamdump.protocols.rabbitmq.frame_redaction import HIDDEN
from streamdump.protocols.rabbitmq.framing import CURRENT_LANGUAGE, DRAFT_LANGUAGE, UNSOUND, word_of
from streamdump.protocols.rabbitmq.heuristic import probe_current, probe_draft
from streamdump.protocols.rabbitmq.info import info
from streamdump.protocols.rabbitmq.meaning import NULL_REFERENCE
from streamdump.protocols.rabbitmq.sasl_redaction import HandshakePlace
from streamdump.protocols.records import NONE, OPTIONAL_RESPONSE, REQUEST, REQUESTS, RESPONSE, RESPONSES, Damage, Decoded
from streamdump.protocols.records import Frame as Cut
from streamdump.protocols.work_budget import WorkBudget
from tests.protocols.rabbitmq_frames import FRAMES, Frame
from tests.support.layout_properties import check_agreement, check_tiles, check_truncations

CAPTURES = Path(__file__).parents[2] / "captures" / "golden" / "rabbitmq-stream"

CLIENT, SERVER = 0, 1


def context(syn: bool = False, client: int | None = 0, **options: Any) -> Context:
    verdict = Verdict("rabbitmq-stream", 1.0, ())
    return Context(0, ("10.0.0.1:4000", "10.0.0.2:5552"), (4000, 5552), client, syn, verdict, Options(**options))


def made(context: Context, name: str) -> Any:
    """The dissector of a parser."""
    return Parser(BY_NAME[name], context.options, context).dissector


def current(**options: Any) -> RabbitmqStreamDissector:
    """One of a connection that is open, unless its beginning was captured."""
    return opened(made(context(**options), "rabbitmq-stream"))


def draft(**options: Any) -> RabbitmqStreamDraftDissector:
    return opened(made(context(**options), "rabbitmq-stream-draft"))


def opened(dissector: Any) -> Any:
    if not dissector.context.from_start:
        dissector.guard.place = HandshakePlace.OUTSIDE
        dissector._choose_layouts()
    return dissector


def cut(side: int, data: bytes, start: int, end: int, damage: Damage | None = None) -> Cut:
    """A frame that one packet brought."""
    return Cut(side, 0, data, start, end, damage, 0, 0, 1, 1, 0, 0, 0)


def decode(data: bytes | str, side: int = CLIENT, dissector: StreamDissector | None = None, damage: Damage | None = None) -> dict[str, Any]:
    """What one frame says, with another behind it in the buffer."""
    if isinstance(data, str):
        data = bytes.fromhex(data)
    dissector = dissector or current()
    buffer, end = b"\xff\x00" + data + data, 2 + len(data)
    found = None if damage else dissector.decode_fast(side, buffer, 2, end)
    said = Decoded(*(found or dissector.decode(cut(side, buffer, 2, end, damage))))._asdict()
    said["notes"] = list(said["notes"])
    return said


def frame(key: int, *parts: bytes, version: int = 1) -> bytes:
    body = b"".join(parts)
    return struct.pack(">IHH", 4 + len(body), key, version) + body


def string(text: str | bytes | None) -> bytes:
    if text is None:
        return b"\xff\xff"
    data = text.encode() if isinstance(text, str) else text
    return struct.pack(">h", len(data)) + data


def plain(body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + body


def sub_batch(kind: int, bodies: list[bytes], packed: bytes | None = None, size: int | None = None, count: int | None = None) -> bytes:
    unpacked = b"".join(map(plain, bodies))
    data = unpacked if packed is None else packed
    declared = len(unpacked) if size is None else size
    return struct.pack(">BHII", 0x80 | kind << 4, len(bodies) if count is None else count, declared, len(data)) + data


def chunk(
    *entries: bytes, first: int = 40, records: int | None = None, crc: int | None = None, kind: int = 0, trailer: int = 0, bloom: int = 0
) -> bytes:
    data = b"".join(entries)
    head = struct.pack(
        ">BBHIqQQIIIB3s",
        0x50,
        kind,
        len(entries),
        len(entries) if records is None else records,
        1_700_000_000_000,
        3,
        first,
        zlib.crc32(data) if crc is None else crc,
        len(data),
        trailer,
        bloom,
        bytes(3),
    )
    return head + data


def deliver(*entries: bytes, **header: Any) -> bytes:
    return frame(8, b"\x07", chunk(*entries, **header))


def publish(*entries: bytes, count: int | None = None) -> bytes:
    return frame(2, b"\x01", struct.pack(">i", len(entries) if count is None else count), *entries)


def entries_of(said: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = said["fields"]["chunk"]["entries"]
    return found


# As captured


def test_a_frame_as_captured(subtests: pytest.Subtests) -> None:
    for expected in FRAMES:
        with subtests.test(f"{'draft ' if expected.draft else ''}{expected.name} {expected.kind} by {expected.sender}"):
            dissector = draft() if expected.draft else current()
            if expected.draft and expected.hex[8:12] == "0002" and expected.name == "Unsubscribe":
                decode("0000000c 0005 0000 00000008 00000001", CLIENT, dissector)
            elif expected.draft and (expected.name, expected.kind) == ("Subscribe", "response"):
                asked = next(one for one in FRAMES if one.draft and (one.name, one.kind) == ("Subscribe", "request"))
                decode(asked.hex, CLIENT, dissector)
            said = decode(expected.hex, SERVER if expected.sender == "server" else CLIENT, dissector)
            head = struct.unpack(">IHH", bytes.fromhex(expected.hex[:16]))
            assert said["fields"] == {"size": head[0], "key": head[1], "version": head[2], **expected.fields}
            assert list(said["fields"]) == ["size", "key", "version", *expected.fields]
            assert (said["name"], said["kind"], said["id"], said["notes"], said["fault"]) == (
                expected.name,
                expected.kind,
                expected.id,
                expected.notes,
                None,
            )


def test_details_say_the_same_and_tile_the_frame(subtests: pytest.Subtests) -> None:
    for expected in FRAMES:
        with subtests.test(f"{'draft ' if expected.draft else ''}{expected.name} {expected.kind} by {expected.sender}"):
            side = SERVER if expected.sender == "server" else CLIENT
            fast = decode(expected.hex, side, draft() if expected.draft else current())
            slow = decode(expected.hex, side, draft(detail=True) if expected.draft else current(detail=True))
            spans = slow.pop("spans")
            fast.pop("spans")
            assert slow == fast
            at = 0
            for span in spans:
                if span.leaf and span.buffer == "frame":
                    assert span.offset == at
                    at += span.length
            assert at == len(bytes.fromhex(expected.hex))


def test_every_layout_was_captured() -> None:
    """Those that no server of the captures sends are tested by hand below."""
    by_hand = {layouts.SASL_AUTHENTICATE_RESPONSE_32, layouts.TUNE_RESPONSE_MARKED, layouts.SUBSCRIBE_2, layouts.CREDIT_2}
    seen: set[Layout] = set()
    for one in FRAMES:
        language = DRAFT_LANGUAGE if one.draft else CURRENT_LANGUAGE
        table = language.server if one.sender == "server" else language.client
        data = bytes.fromhex(one.hex)
        for layout in table.get(int.from_bytes(data[4:8], "big"), ()):
            if layout.kind == one.kind and not check_agreement(layout, data, 0, len(data)).notes:
                seen.add(layout)
                break
    seen.add(layouts_draft.UNSUBSCRIBE_SUCCESS)
    assert {*layouts.LAYOUTS, *layouts_draft.LAYOUTS} - seen == by_hand


SOME = [path.name for path in sorted(CAPTURES.glob("*.pcap*"))[::3]]
OTHERS = [path.name for path in CAPTURES.glob("*.pcap*") if path.name not in SOME]


def captured(*names: str) -> Iterator[Message]:
    for path in sorted(CAPTURES.glob("*.pcap*")):
        if not names or path.name in names:
            for record in streamdump.read(path, detail=True):
                if isinstance(record, Message):
                    yield record


@pytest.mark.parametrize("names", [SOME, pytest.param(OTHERS, marks=pytest.mark.sweep)], ids=["every third capture", "others"])
def test_every_captured_frame_agrees_with_its_table(names: list[str]) -> None:
    """Decoder and walk; each shape of frame once with every truncation."""
    known: set[tuple[Any, ...]] = set()
    for message in captured(*names):
        assert message.raw is not None
        data = message.raw["frame"]
        language = DRAFT_LANGUAGE if message.protocol.endswith("draft") else CURRENT_LANGUAGE
        table = language.client if message.sender == "client" else language.server
        choices = table.get(int.from_bytes(data[4:8], "big"), ())
        for layout in choices:
            if layout.kind != message.kind or message.fault is not None or len(data) > 3000:
                continue
            check_agreement(layout, data, 0, len(data))
            shape = (id(layout), len(data) // 16)
            if shape not in known and len(data) < 300:
                known.add(shape)
                check_truncations(layout, data)


def test_no_capture_of_a_sound_conversation_has_faults_or_notes() -> None:
    ours = {"overlapping_405.pcap", "snaplen_96_310.pcap", "sasl_before_peerprops_310.pcap", "server_close_frame_too_large_436.pcap"}
    damaged = {*(path.name for path in CAPTURES.glob("sasl_*_damaged*.pcap")), "sasl_data_in_mechanism.pcap", "sasl_null_mechanism.pcap"}
    ours |= {"server_close_unknown_frame_310.pcap", "server_close_bad_frame_405.pcap", "same_ids_lost_405.pcap", "abrupt_end_405.pcap"}
    ours |= {"byte_credit_hostile_made.pcap", "byte_credit_refused_made.pcap", "newer_release_made.pcap"}
    odd = ours | damaged
    sound = sorted({path.name for path in CAPTURES.glob("*.pcap*")} - odd)
    for message in captured(*sound):
        assert message.fault is None, message
        assert list(message.notes) == [], message


def test_the_frame_counts_of_the_captures() -> None:
    """What an independent reader of the captures counted: messages, and bytes in them."""
    counted = {
        "consumer_update_sac_436.pcap": (64, 3167),
        "draft_exchange.pcap": (41, 1575),
        "duplicated_310.pcap": (126, 15332),
        "js_subentries_436.pcap": (66, 4488),
        "midframe_start_436.pcap": (68, 162787),
        "midstream_310.pcap": (16, 3648),
        "overlapping_405.pcap": (48, 10749),
        "pipelined_requests_405.pcap": (617, 22746),
        "reordered_310.pcap": (126, 15332),
        "seq_wrap_405.pcap": (27, 111693),
        "snaplen_96_310.pcap": (29, 14311),
        "tiny_segments_405.pcap": (21, 803),
        "tls_405.pcap": (0, 0),
        "tls_keys_310.pcapng": (144, 6404),
    }
    for name, expected in counted.items():
        messages = list(captured(name))
        assert (len(messages), sum(message.size for message in messages)) == expected, name


# Traps


def test_an_offset_is_there_only_where_its_type_has_one() -> None:
    subscribe = "00000015 0007 0001 00000001 00 0003 61 62 63 {} 000a"
    for kind, value, offset in (
        ("0001", "", None),
        ("0002", "", None),
        ("0003", "", None),
        ("0004", "ffffffffffffffff", 2**64 - 1),
        ("0005", "ffffffffffffffff", -1),
    ):
        data = bytes.fromhex(subscribe.format(kind + value))
        fields = decode(struct.pack(">I", len(data) - 4) + data[4:])["fields"]
        assert fields.get("offset") == offset
        assert fields["credit"] == 10
        assert "properties" not in fields


def test_eight_surplus_bytes_of_a_consumer_update_answer() -> None:
    said = decode("00000014 801a 0001 00000000 0001 0003 0000000000000000")
    assert said["fields"]["surplus"] == "0000000000000000"
    assert (said["fault"], said["notes"], said["outcome"]) == (None, [], "answered")
    said = decode("00000010 801a 0001 00000000 0001 0003 00000000")
    assert said["fault"].field == "surplus"


def test_a_trailer_that_is_announced_and_not_sent() -> None:
    said = decode(deliver(plain(b"abc"), trailer=44, bloom=255), SERVER)
    assert (said["fault"], said["notes"]) == (None, [])
    assert said["fields"]["chunk"]["trailer_length"] == 44
    assert "trailer" not in said["fields"]["chunk"]
    assert entries_of(said) == [{"offset": 40, "size": 3, "body": "616263"}]


def test_a_trailer_that_is_sent() -> None:
    trailer = bytes.fromhex("00 02 7731 000000000000000501 01 61 000000000000000202 01 61 ffffffffffffffff")
    said = decode(frame(8, b"\x07", chunk(plain(b"abc"), trailer=len(trailer)), trailer), SERVER)
    assert (said["fault"], said["notes"]) == (None, [])
    assert said["fields"]["chunk"]["trailer"] == [
        {"type": 0, "type_label": "sequence", "id": "w1", "sequence": 5},
        {"type": 1, "type_label": "offset", "id": "a", "offset": 2},
        {"type": 2, "type_label": "timestamp", "id": "a", "timestamp": -1},
    ]


def test_a_trailer_that_is_no_tracking() -> None:
    said = decode(frame(8, b"\x07", chunk(plain(b"abc"), trailer=3), b"\x09\x01a"), SERVER)
    assert said["fields"]["chunk"]["trailer_data"] == "090161"
    assert said["notes"] == ["trailer is no list of tracking blocks"]


def test_a_tracking_snapshot_has_a_chunk_id_for_each_sequence() -> None:
    block = bytes.fromhex("00 02 7731 0000000000000028 0000000000000005")
    said = decode(deliver(plain(block), kind=2), SERVER)
    assert entries_of(said)[0]["tracking"] == [{"type": 0, "type_label": "sequence", "id": "w1", "chunk_id": 40, "sequence": 5}]
    assert said["fields"]["chunk"]["chunk_type_label"] == "tracking snapshot"


def test_a_wrong_checksum_is_noted() -> None:
    for options in ({}, {"detail": True}):
        said = decode(deliver(plain(b"abc"), crc=0x1234), SERVER, current(**options))
        assert said["notes"] == [f"checksum of the chunk is 0x00001234, its data gives 0x{zlib.crc32(plain(b'abc')):08x}"]
        assert said["fault"] is None


def test_offsets_count_the_records_before() -> None:
    said = decode(deliver(plain(b"a"), sub_batch(0, [b"x", b"y", b"z"]), plain(b"b"), records=5), SERVER)
    assert (said["fault"], said["notes"]) == (None, [])
    first, batch, last = entries_of(said)
    assert (first["offset"], batch["offset"], last["offset"]) == (40, 41, 44)
    assert batch == {
        "offset": 41,
        "compression": 0,
        "compression_label": "none",
        "reserved": 0,
        "num_records": 3,
        "uncompressed_size": 15,
        "size": 15,
        "messages": [
            {"offset": 41, "size": 1, "body": "78"},
            {"offset": 42, "size": 1, "body": "79"},
            {"offset": 43, "size": 1, "body": "7a"},
        ],
    }


def test_a_wrong_number_of_records_is_noted() -> None:
    assert decode(deliver(plain(b"a"), records=7), SERVER)["notes"] == ["chunk header counts 7 records, 1 are there"]


def test_more_data_than_entries() -> None:
    data = plain(b"a") + plain(b"b")
    said = decode(deliver(data), SERVER)
    assert said["fields"]["chunk"]["trailing"] == "0000000162"
    assert said["notes"] == ["5 bytes left over after the entries"]


def test_fewer_data_than_entries() -> None:
    data = plain(b"abc")
    whole = struct.pack(">BBHIqQQIIIB3s", 0x50, 0, 2, 2, 0, 1, 40, zlib.crc32(data), len(data), 0, 0, bytes(3)) + data
    said = decode(frame(8, b"\x07", whole), SERVER)
    assert entries_of(said) == [{"offset": 40, "size": 3, "body": "616263"}]
    assert (said["fault"].field, said["fault"].offset, said["fault"].reason) == ("chunk.entries[1].size", 64, "needs 4 bytes, 0 left")


def test_an_entry_that_is_longer_than_the_chunk() -> None:
    said = decode(deliver(struct.pack(">I", 0x7FFFFFFF) + b"abc"), SERVER)
    assert said["fault"].reason == "size says 2147483647 bytes, 3 left"
    assert entries_of(said) == [{"offset": 40, "size": 0x7FFFFFFF}]


def test_a_chunk_that_says_it_is_longer_than_its_frame() -> None:
    data = bytearray(deliver(plain(b"abc")))
    data[45:49] = struct.pack(">I", 0xFFFFFFFF)
    said = decode(bytes(data), SERVER)
    assert entries_of(said) == [{"offset": 40, "size": 3, "body": "616263"}]
    assert said["fault"].reason == "data length says 4294967295 bytes, 7 left"


def test_publish_counts_a_sub_batch_once_and_is_read_to_its_end() -> None:
    data = publish(struct.pack(">Q", 5) + sub_batch(0, [b"x", b"y"]), struct.pack(">Q", 6) + plain(b""))
    said = decode(data)
    assert (said["fault"], said["notes"]) == (None, [])
    first, second = said["fields"]["published_messages"]
    assert [one["body"] for one in first["messages"]] == ["78", "79"]
    assert second == {"publishing_id": 6, "size": 0, "body": ""}
    assert (said["role"], said["key"]) == (REQUESTS, [1 << 64 | 5, 1 << 64 | 6])
    said = decode(publish(struct.pack(">Q", 5) + plain(b"x"), count=3))
    assert said["notes"] == ["count says 3 messages, 1 are there"]
    assert said["fault"] is None


def test_a_filter_value_may_be_null_or_empty() -> None:
    entries = [struct.pack(">Q", number) + string(value) + plain(b"x") for number, value in ((1, None), (2, ""), (3, "de"), (4, b"\xff\\"))]
    said = decode(frame(2, b"\x00", struct.pack(">i", 4), *entries, version=2))
    assert [one["filter_value"] for one in said["fields"]["published_messages"]] == [None, "", "de", "\\xff\\\\"]
    assert said["notes"] == ["filter_value is not UTF-8"]


@pytest.mark.parametrize("detail", [False, True])
def test_one_byte_of_a_property_that_is_not_utf8_leaves_the_sections(detail: bool) -> None:
    body = bytes.fromhex("005374 c10f02 a1046e616d65 a1064dfc6c6c6572 005375 a00568656c6c6f")
    said = decode(publish(struct.pack(">Q", 5) + plain(body), struct.pack(">Q", 6) + plain(body)), dissector=current(detail=detail))
    sections = [{"section": "application-properties", "value": [{"key": "name", "value": "M\\xfcller"}]}]
    sections.append({"section": "data", "value": "68656c6c6f"})
    assert [one["sections"] for one in said["fields"]["published_messages"]] == [sections, sections]
    assert (said["fault"], said["notes"]) == (None, ["string in application-properties is not UTF-8 (2 times)"])
    # What reads as none behind that is none, of which no text is told
    said = decode(publish(struct.pack(">Q", 5) + plain(body + b"\1")))
    assert said["notes"] == ["body begins like an AMQP message but is not one: a section begins with another byte than 0"]


def test_a_sub_batch_with_filter_values_is_noted() -> None:
    entry = struct.pack(">Q", 9) + string(None) + sub_batch(0, [b"a", b"b"])
    said = decode(frame(2, b"\x01\0\0\0\1", entry, version=2))
    assert said["notes"] == ["a sub-batch in Publish version 2, which servers do not accept"]
    assert [one["body"] for one in said["fields"]["published_messages"][0]["messages"]] == ["61", "62"]


def test_null_strings_and_text_that_is_not_utf8() -> None:
    assert decode(frame(0xE, b"\0\0\0\1", string(None)))["fields"]["stream"] is None
    said = decode(frame(0xE, b"\0\0\0\1", string(b"a\xff\\b")))
    assert said["fields"]["stream"] == "a\\xff\\\\b"
    assert said["notes"] == ["stream is not UTF-8"]
    said = decode(frame(0xE, b"\0\0\0\1", b"\xff\xfeab"))
    assert said["fault"].field == "stream"


def test_the_answer_to_credit_has_no_correlation_id() -> None:
    credit, answer = decode("00000007 0009 0001 2c 0001"), decode("00000007 8009 0001 0004 2c", SERVER)
    assert (credit["kind"], credit["role"]) == ("one_way", OPTIONAL_RESPONSE)
    assert (answer["kind"], answer["role"], answer["outcome"], answer["id"]) == ("response", RESPONSE, "refused", None)
    assert credit["key"] == answer["key"]
    inactive = decode("00000007 8009 0001 0011 2c", SERVER)
    assert (inactive["role"], inactive["outcome"], inactive["key"]) == (RESPONSE, "answered", credit["key"])
    assert decode("00000007 0009 0001 2c ffff")["fields"]["credit"] == -1


def test_tune_is_asked_by_the_server_and_answered_under_the_same_key() -> None:
    dissector = current()
    asked = decode("0000000c 0014 0001 00100000 0000003c", SERVER, dissector)
    answered = decode("0000000c 0014 0001 00001000 00000000", CLIENT, dissector)
    assert (asked["kind"], asked["role"], answered["kind"], answered["role"]) == ("request", REQUEST, "response", RESPONSE)
    assert asked["key"] == answered["key"]
    assert dissector.facts == {"frame_max": 4096, "heartbeat": 0}
    marked = decode("0000000c 8014 0001 00001000 00000000", CLIENT, dissector)
    assert (marked["name"], marked["kind"], marked["key"]) == ("Tune", "response", asked["key"])


def test_a_frame_over_the_negotiated_maximum_is_noted_for_the_client_only() -> None:
    dissector = current()
    decode("0000000c 0014 0001 00000040 00000000", CLIENT, dissector)
    big = publish(struct.pack(">Q", 5) + plain(bytes(80)))
    assert decode(big, CLIENT, dissector)["notes"] == [f"frame of {len(big) - 4} bytes is over the negotiated maximum of 64 bytes"]
    assert decode(deliver(plain(bytes(80))), SERVER, dissector)["notes"] == []
    decode("0000000c 0014 0001 00000000 00000000", CLIENT, dissector)
    assert decode(big, CLIENT, dissector)["notes"] == []


def test_ids_of_client_and_server_do_not_meet() -> None:
    by_client, by_server = decode("0000000c 0016 0001 00000001 0001 0000"), decode("0000000c 0016 0001 00000001 0001 0000", SERVER)
    assert by_client["key"] != by_server["key"]
    assert decode("0000000a 8016 0001 00000001 0001", SERVER)["key"] == by_client["key"]
    assert decode("0000000a 8016 0001 00000001 0001", CLIENT)["key"] == by_server["key"]
    for ident in ("00000000", "ffffffff"):
        asked, answered = decode(f"0000000c 000e 0001 {ident} 0002 7065"), decode(f"0000000a 800e 0001 {ident} 0001", SERVER)
        assert asked["key"] == answered["key"] < 0


def test_metadata_is_answered_without_a_code() -> None:
    said = decode("00000010 800f 0001 00000005 00000000 00000000", SERVER)
    assert (said["outcome"], said["role"]) == ("answered", RESPONSE)
    assert "response_code" not in said["fields"]


def test_old_servers_answer_route_and_partitions_without_the_response_bit() -> None:
    for key in ("0018", "0019"):
        said = decode(f"0000000e {key} 0001 0000000a 0002 00000000", SERVER)
        assert (said["kind"], said["outcome"], said["fields"]["streams"]) == ("response", "refused", [])
    said = decode("0000000e 0018 0001 0000000a 0002 7573 0000", CLIENT)
    assert (said["kind"], said["fields"]["routing_key"]) == ("request", "us")


def test_a_sasl_challenge_has_a_length_of_16_bits_and_may_have_32() -> None:
    for length in ("0003", "00000003"):
        data = bytes.fromhex(f"00000000 8013 0001 00000003 000a {length} 414243")
        data = struct.pack(">I", len(data) - 4) + data[4:]
        said = decode(data, SERVER, current(show_secrets=True))
        assert said["fields"]["sasl_opaque_data"] == "414243"
        assert (said["fault"], said["notes"], said["outcome"]) == (None, [], "answered")
        assert decode(data, SERVER)["fields"]["sasl_opaque_data"] == "<redacted 3 bytes>"


@pytest.mark.parametrize("code", ["000a", "0001", "0063", "00ff"])
def test_data_behind_a_code_that_nobody_knows_has_the_length_that_fills_the_frame(code: str) -> None:
    for length, data in (("0003", "414243"), ("00000003", "414243"), ("00000000", ""), ("0000", ""), ("0002", "0000")):
        raw = bytes.fromhex(f"00000000 8013 0001 00000003 {code} {length} {data}")
        raw = struct.pack(">I", len(raw) - 4) + raw[4:]
        said = decode(raw, SERVER, current(show_secrets=True))
        assert (said["fields"]["sasl_opaque_data"], said["fault"], "trailing" in said["fields"]) == (data, None, False)
        assert data[:4] not in json.dumps(decode(raw, SERVER)["fields"].get("sasl_opaque_data")) or not data


def test_a_null_reference_of_a_publisher_is_noted() -> None:
    for reference, told, notes in (
        (None, "  reference null", [NULL_REFERENCE]),
        ("", "", []),
        ("ref", "  reference ref", []),
    ):
        data = frame(1, b"\0\0\0\1\x05", string(reference), string("s"))
        said = decode(data)
        assert (said["fields"]["publisher_reference"], said["notes"]) == (reference, notes)
        assert info(message_of(said)) == f"#1  publisher 5  s{told}"
        # and by the quick way, as messages come
        (record,) = feed(current(), segments(CLIENT, 0, [data]))
        assert isinstance(record, Message)
        assert list(record.notes) == notes


@pytest.mark.parametrize(("over", "word"), [(0, "captured"), (1, "sent"), (2, "captured"), (3, "sent")])
def test_a_frame_that_its_sender_cut_off_was_not_sent(over: int, word: str) -> None:
    dissector = current()
    dissector.parser.ended_sides = over
    (record,) = feed(dissector, segments(CLIENT, 0, [HEARTBEAT + frame(1, b"\0\0\0\1\x05", string("ref"), string("s"))[:16]]))[1:]
    assert isinstance(record, Message)
    assert record.fault is not None
    assert record.fault.reason == f"16 of 21 bytes {word}"


def test_error_answers_keep_their_fields_except_open() -> None:
    said = decode("00000012 800b 0001 00000007 0013 0000000000000000", SERVER)
    assert (said["fields"]["response_code_label"], said["fields"]["offset"], said["outcome"]) == ("no offset", 0, "refused")
    said = decode("0000000a 8015 0001 00000007 000c", SERVER)
    assert (said["fault"], said["outcome"]) == (None, "refused")


def test_unknown_keys_versions_and_codes() -> None:
    said = decode("00000008 0777 0001 deadbeef")
    assert (said["name"], said["kind"], said["fields"]["body"]) == ("unknown 0x0777", "one_way", "deadbeef")
    assert said["notes"] == ["command 0x0777 is not known"]
    for key, name in (
        (0x8002, "Publish"),
        (0x8003, "PublishConfirm"),
        (0x8008, "Deliver"),
        (0x8010, "MetadataUpdate"),
        (0x8017, "Heartbeat"),
    ):
        for side in (CLIENT, SERVER):
            said = decode(frame(key, b"\xde\xad"), side)
            assert (said["name"], said["kind"], said["role"]) == (name, "response", NONE)
            assert said["notes"] == [f"the response bit is set on {name}, which is never sent with it"]
    said = decode("00000008 8777 0001 deadbeef", SERVER)
    assert (said["name"], said["kind"]) == ("unknown 0x0777", "response")
    said = decode("00000008 0002 0009 deadbeef")
    assert (said["name"], said["notes"], said["fields"]["body"]) == ("Publish", ["version 9 of Publish is not known"], "deadbeef")
    said = decode("0000000a 800e 0001 00000001 0099", SERVER)
    assert (said["fields"]["response_code"], said["fields"]["response_code_label"], said["outcome"]) == (0x99, None, "refused")
    assert said["fault"] is None


def test_a_message_from_the_wrong_side() -> None:
    said = decode(frame(3, b"\x00", struct.pack(">iQ", 1, 5)), CLIENT)
    assert said["notes"] == ["PublishConfirm response sent by the client"]
    assert (said["fields"]["publishing_ids"], said["role"], said["outcome"]) == ([5], NONE, None)


def test_bytes_left_over_and_bytes_missing() -> None:
    said = decode("0000000c 800e 0001 00000001 0001 beef", SERVER)
    assert (said["fields"]["trailing"], said["fault"]) == ("beef", None)
    assert said["notes"] == ["2 bytes left over"]
    said = decode("00000006 800e 0001 0001", SERVER)
    assert said["fault"].field == "correlation_id"
    assert said["fields"] == {"size": 6, "key": 0x800E, "version": 1}


def test_a_damaged_frame_keeps_what_came_before() -> None:
    whole = frame(7, b"\0\0\0\5", b"\x02", string("orders"), struct.pack(">HQH", 4, 40, 10), b"\0\0\0\0")
    for cut in range(8, len(whole)):
        said = decode(whole[:cut], CLIENT, damage=Damage(len(whole), "77 bytes lost"))
        assert said["fault"].reason == "77 bytes lost"
        assert list(said["fields"].items()) == list(decode(whole)["fields"].items())[: len(said["fields"])]
    assert said["id"] == 5
    assert said["fields"]["credit"] == 10


def test_a_damaged_deliver_keeps_its_entries() -> None:
    whole = deliver(*(plain(b"message %d" % number) for number in range(4)))
    complete = entries_of(decode(whole, SERVER))
    for options in ({}, {"detail": True}):
        for cut in range(8, len(whole)):
            said = decode(whole[:cut], SERVER, current(**options), Damage(len(whole), "9 bytes lost"))
            assert said["fault"].reason == "9 bytes lost"
            entries = said["fields"].get("chunk", {}).get("entries", [])
            assert all(one == two for one, two in zip(entries, complete, strict=False) if "body" in one)
            if options:
                assert sum(span.length for span in said["spans"] if span.leaf) == cut


# Handshake


def test_an_unexpected_order_is_noted() -> None:
    dissector = current(syn=True)
    heard = []
    for side, data in (
        (CLIENT, "00000008 0012 0001 00000001"),
        (CLIENT, "0000000c 0011 0001 00000001 00000000"),
        (SERVER, "0000000e 8011 0001 00000001 0001 00000000"),
        (CLIENT, "00000004 0017 0001"),
        (CLIENT, "0000000c 000e 0001 00000002 0002 7065"),
        (CLIENT, "00000008 0012 0001 00000003"),
        (CLIENT, "00000013 0013 0001 00000003 0005 504c41494e ffffffff"),
        (SERVER, "0000000c 0014 0001 00100000 0000003c"),
        (CLIENT, "0000000c 0014 0001 00100000 0000003c"),
        (CLIENT, "0000000b 0015 0001 00000004 0001 2f"),
        (CLIENT, "0000000c 000e 0001 00000005 0002 7065"),
    ):
        heard.append(decode(data, side, dissector)["notes"])
    assert heard[0] == ["SaslHandshake while the connection is fresh"]
    assert heard[4] == [HIDDEN, "Delete while the connection is greeted"]
    assert [notes for notes in heard if notes] == [heard[0], heard[4]]


def test_three_properties_are_all_that_a_line_shows() -> None:
    three = [{"key": name, "value": "1"} for name in "abc"]
    assert words._pairs(three) == "a=1 b=1 c=1"
    assert words._pairs([*three, {"key": "d", "value": "1"}]) == "a=1 b=1 c=1 ..."


def test_what_is_asked_again_is_noted_though_it_was_answered() -> None:
    dissector = current(syn=True)
    ask, answer = "0000000c 0011 0001 00000001 00000000", "0000000e 8011 0001 00000001 0001 00000000"
    heard = [decode(data, side, dissector)["notes"] for side, data in ((CLIENT, ask), (SERVER, answer), (CLIENT, ask))]
    assert heard == [[], [], ["PeerProperties while the connection is greeted"]]


@pytest.mark.parametrize("captured_side", [CLIENT, SERVER])
def test_one_side_of_a_handshake_is_as_expected_as_both(captured_side: int) -> None:
    dissector = current(syn=True)
    for side, data in (
        (CLIENT, "0000000c 0011 0001 00000001 00000000"),
        (SERVER, "0000000e 8011 0001 00000001 0001 00000000"),
        (CLIENT, "00000008 0012 0001 00000002"),
        (SERVER, "0000000e 8012 0001 00000002 0001 00000000"),
        (CLIENT, "00000013 0013 0001 00000003 0005 504c41494e ffffffff"),
        (SERVER, "0000000a 8013 0001 00000003 0001"),
        (SERVER, "0000000c 0014 0001 00100000 0000003c"),
        (CLIENT, "0000000c 0014 0001 00100000 0000003c"),
        (CLIENT, "0000000b 0015 0001 00000004 0001 2f"),
        (SERVER, "0000000a 8015 0001 00000004 0001"),
        (CLIENT, "0000000c 000e 0001 00000005 0002 7065"),
        (SERVER, "0000000a 0010 0001 0006 0002 7065"),
    ):
        if side == captured_side:
            assert decode(data, side, dissector)["notes"] == []
    assert dissector.phase is Phase.OPEN


def test_the_short_way_begins_behind_the_handshake() -> None:
    dissector = current(syn=True)
    hello, confirm = frame(0x11, struct.pack(">II", 1, 0)), frame(3, b"\x00", struct.pack(">iQ", 1, 5))
    assert dissector.decode_fast(CLIENT, hello, 0, len(hello)) is None
    assert dissector.decode_fast(SERVER, confirm, 0, len(confirm)) is None
    assert dissector.phase is Phase.FRESH
    assert decode(hello, CLIENT, dissector)["notes"] == []
    assert decode(hello, CLIENT, dissector)["notes"] == ["PeerProperties while the connection is greeted"]
    dissector = current()
    assert dissector.decode_fast(CLIENT, hello, 0, len(hello)) is None, "it may change what is shown"
    assert dissector.decode_fast(SERVER, confirm, 0, len(confirm)) is not None


def test_a_request_captured_behind_its_answer_is_not_unexpected() -> None:
    dissector = current(syn=True)
    hello = "0000000c 0011 0001 00000001 00000000"
    for side, data in ((SERVER, "0000000e 8011 0001 00000001 0001 00000000"), (CLIENT, hello)):
        assert decode(data, side, dissector)["notes"] == []
    assert decode(hello, CLIENT, dissector)["notes"] == ["PeerProperties while the connection is greeted"]


def test_a_capture_that_begins_in_the_middle_expects_nothing() -> None:
    assert decode("0000000c 000e 0001 00000005 0002 7065", CLIENT, current(syn=False))["notes"] == []


# Secrets


def message_of(said: dict[str, Any]) -> Message:
    names = ("name", "kind", "id", "fields", "outcome", "fault")
    name, kind, ident, fields, outcome, fault = (said[one] for one in names)
    return Message(1, 0, "", 0, 0, "", "", None, "", name, kind, ident, None, 0, (1, 1), 0, 0, fields, None, outcome, None, [], fault)


def passwords(said: Any) -> bool:
    text = json.dumps(said, default=lambda one: one.hex() if isinstance(one, bytes) else str(one))
    return "s3cret" in text or b"s3cret".hex() in text or "czNjcmV0" in text


@pytest.mark.parametrize("bytes_as", ["hex", "base64", "text", "omit"])
@pytest.mark.parametrize("key", [0x0013, 0x8013])
def test_no_password_is_ever_shown(bytes_as: Any, key: int) -> None:
    secret = b"\0user\0s3cret-s3cret"
    request = frame(key, b"\0\0\0\1", string("PLAIN"), struct.pack(">i", len(secret)), secret)
    answer = frame(key, b"\0\0\0\1\0\x0a", struct.pack(">H", len(secret)), secret)
    for whole in (request, answer, request + b"s3cret", answer[:-3]):
        data = struct.pack(">I", len(whole) - 4) + whole[4:]
        for version in (1, 2):
            data = data[:6] + struct.pack(">H", version) + data[8:]
            for side in (CLIENT, SERVER):
                for options in ({}, {"detail": True}):
                    for cut in range(8, len(data) + 1):
                        dissector = current(bytes_as=bytes_as, **options)
                        assert not passwords(decode(data[:cut], side, dissector))
                        said = decode(data[:cut], side, dissector, Damage(len(data) + 9, "9 bytes lost"))
                        assert not passwords(said)
                        assert not passwords(info(message_of(said)))


@pytest.mark.parametrize("bytes_as", ["hex", "text"])
@pytest.mark.parametrize("mechanism", [21, 27, 34])
def test_a_mechanism_that_is_too_long_hides_the_password_in_it(bytes_as: Any, mechanism: int) -> None:
    request = frame(0x13, b"\0\0\0\1", struct.pack(">h", mechanism), b"PLAIN", struct.pack(">i", 19), b"\0user\0s3cret-s3cret", b"1234567")
    said = decode(request, CLIENT, current(bytes_as=bytes_as, detail=True))
    assert said["fault"] is not None
    assert said["fields"]["mechanism"] == f"<redacted {mechanism} bytes>"
    assert said["fault"].reason == "cannot be read", "it would tell bytes of the password as a length"
    assert not passwords({**said, "spans": [span.value for span in said["spans"]]})
    assert all(span.secret for span in said["spans"] if span.offset >= 12)


@pytest.mark.parametrize("key", [0x0777, 0x000A])
@pytest.mark.parametrize("place", HandshakePlace)
def test_what_is_not_known_is_hidden_where_a_password_is_expected(place: HandshakePlace, key: int) -> None:
    unknown = frame(key, b"\0\0\0\2", b"s3cret-s3cret", version=9)
    dissector = current()
    dissector.guard.place = place
    dissector.guard.until = 1 if place is HandshakePlace.LEAVING else 0
    assert passwords(decode(unknown, CLIENT, dissector)) == (place is HandshakePlace.OUTSIDE)


@pytest.mark.parametrize("key", [0x0777, 0x000A, 0x0002, 0x0017])
def test_what_looks_like_a_login_is_hidden_everywhere(key: int) -> None:
    login = frame(key, b"\0\0\0\2", string("PLAIN"), struct.pack(">i", 13), b"\0u\0s3cret-s3cr")
    dissector = current(detail=True)
    assert not passwords(decode(login, CLIENT, dissector))
    assert dissector.guard.place is HandshakePlace.INSIDE, "it may be SaslAuthenticate, and what follows the rest of it"


def test_passwords_are_shown_when_asked_for() -> None:
    data = frame(0x13, b"\0\0\0\1", string("PLAIN"), struct.pack(">i", 7), b"\0s3cret")
    assert decode(data, CLIENT, current(show_secrets=True, bytes_as="text"))["fields"]["sasl_opaque_data"] == "\0s3cret"


# Compression

BODIES = [b"first", b"second " * 20, b""]
UNPACKED = b"".join(map(plain, BODIES))

PACKED = {
    "gzip": (1, gzip.compress(UNPACKED)),
    "snappy framed": (2, bytes(cramjam.snappy.compress(UNPACKED))),
    "snappy raw": (2, bytes(cramjam.snappy.compress_raw(UNPACKED))),
    "lz4": (3, bytes(cramjam.lz4.compress(UNPACKED))),
    "zstd": (4, bytes(cramjam.zstd.compress(UNPACKED))),
}


@pytest.mark.parametrize("name", PACKED)
def test_a_packed_sub_batch(name: str) -> None:
    kind, packed = PACKED[name]
    dissector = current(detail=True)
    said = decode(deliver(sub_batch(kind, BODIES, packed), plain(b"next"), records=4), SERVER, dissector)
    assert (said["fault"], said["notes"]) == (None, [])
    batch, following = entries_of(said)
    assert [bytes.fromhex(one["body"]) for one in batch["messages"]] == BODIES
    assert [one["offset"] for one in batch["messages"]] == [40, 41, 42]
    assert following["offset"] == 43
    assert dissector.details == {"unpacked": UNPACKED}
    inner = [span for span in said["spans"] if span.leaf and span.buffer == "unpacked"]
    assert [span.offset for span in inner] == [0, 4, 9, 13, 153]
    assert sum(span.length for span in inner) == len(UNPACKED)
    assert decode(publish(struct.pack(">Q", 1) + sub_batch(kind, BODIES, packed)))["notes"] == []


@pytest.mark.parametrize("name", PACKED)
def test_a_bomb_is_not_unpacked(name: str) -> None:
    """A sub-batch that would unpack to more than it declares stays as it is."""
    kind, packed = PACKED[name]
    said = decode(deliver(sub_batch(kind, BODIES, packed, size=20), plain(b"next"), records=4), SERVER)
    batch, following = entries_of(said)
    assert batch["body"] == packed.hex()
    assert "messages" not in batch
    assert (following["offset"], following["body"]) == (43, b"next".hex())
    assert len(said["notes"]) == 1
    assert "unpacks to more than the 20 bytes declared" in said["notes"][0]
    assert said["fault"] is None


def test_what_is_unpacked_from_a_frame_has_a_limit() -> None:
    half = compression.UNPACKED_LIMIT // 2 + 1
    batches = [sub_batch(1, [], gzip.compress(b""), size=half, count=1)] * 3
    said = decode(deliver(*batches, records=3), SERVER)
    assert said["fault"] is None
    assert any("over the limit" in note and "(2 times)" in note for note in said["notes"])


@pytest.mark.parametrize("kind", [1, 2, 3, 4])
def test_bytes_that_do_not_unpack_stay(kind: int) -> None:
    said = decode(deliver(sub_batch(kind, [], b"garbage garbage", size=100, count=2), records=2), SERVER)
    assert entries_of(said)[0]["body"] == b"garbage garbage".hex()
    assert said["notes"][0].startswith("sub-batch left as it is: ")
    assert said["fault"] is None


def test_a_compression_that_is_not_known() -> None:
    said = decode(deliver(sub_batch(6, [], b"zz", size=2, count=1)), SERVER)
    assert entries_of(said)[0]["compression_label"] is None
    assert said["notes"] == ["sub-batch left as it is: compression 6 is not known"]


def test_a_codec_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cramjam", None)
    for name, (kind, packed) in PACKED.items():
        said = decode(deliver(sub_batch(kind, BODIES, packed), records=3), SERVER)
        if name == "gzip":
            assert said["notes"] == []
        else:
            assert said["notes"] == [f"sub-batch left as it is: {name.split()[0]}: no codec is installed"]
            assert entries_of(said)[0]["body"] == packed.hex()


def test_a_sub_batch_that_holds_no_messages() -> None:
    said = decode(deliver(sub_batch(0, [], b"\0\0\0\x09abc", size=7, count=1)), SERVER)
    assert entries_of(said)[0]["body"] == "00000009616263"
    assert said["notes"] == ["sub-batch holds no 1 messages: size says 9 bytes, 3 left"]
    assert said["fault"] is None
    said = decode(deliver(sub_batch(0, [b"ab"], plain(b"ab") + b"zz")), SERVER)
    assert entries_of(said)[0]["trailing"] == "7a7a"


# Draft


def test_the_draft_answers_unsubscribe_with_the_key_of_subscribe() -> None:
    dissector = draft()
    answer = "0000000a 0002 0000 00000008 0000"
    assert decode(answer, SERVER, dissector)["name"] == "Subscribe"
    asked = decode("0000000c 0005 0000 00000008 00000001", CLIENT, dissector)
    said = decode(answer, SERVER, dissector)
    assert (said["name"], said["key"], said["outcome"]) == ("Unsubscribe", asked["key"], "answered")
    assert decode(answer, SERVER, dissector)["name"] == "Subscribe"


def test_a_key_of_the_draft_that_answers_either_of_two_is_noted() -> None:
    answer = "0000000a 0002 0000 00000008 0000"
    note = "this may as well answer Unsubscribe, whose success has the same key"
    assert decode(answer, SERVER, draft())["notes"] == [note]
    assert decode("0000000a 0002 0000 00000008 0001", SERVER, draft())["notes"] == [], "an error of Unsubscribe has a key of its own"
    dissector = draft()
    decode("00000019 0002 0000 00000008 00000001 0001 61 0000000000000000 000a", CLIENT, dissector)
    assert decode(answer, SERVER, dissector)["notes"] == []
    assert decode(answer, SERVER, dissector)["notes"] == [note]


def test_close_of_the_draft_is_told_by_its_size() -> None:
    for side in (CLIENT, SERVER):
        asked = decode("0000000c 000d 0000 00000001 0000 0000", side, draft())
        answered = decode("0000000a 000d 0000 00000001 0000", side, draft())
        assert (asked["kind"], answered["kind"]) == ("request", "response")
        assert asked["key"] == decode("0000000a 000d 0000 00000001 0000", 1 - side, draft())["key"]


def test_the_chunk_of_the_draft_with_a_timestamp() -> None:
    data = plain(b"abc")
    short = struct.pack(">BHIQQII", 0x50, 1, 1, 3, 40, zlib.crc32(data), len(data)) + data
    long = struct.pack(">BHIqQQII", 0x50, 1, 1, 77, 3, 40, zlib.crc32(data), len(data)) + data
    for body, timestamp in ((short, None), (long, 77)):
        for options in ({}, {"detail": True}):
            said = decode(frame(3, b"\0\0\0\1", body, version=0), SERVER, draft(**options))
            assert (said["fault"], said["notes"]) == (None, [])
            assert said["fields"]["chunk"].get("timestamp") == timestamp
            assert entries_of(said) == [{"offset": 40, "size": 3, "body": "616263"}]


def test_the_timestamp_of_a_draft_chunk_tells_where_its_length_does_not() -> None:
    time, data = 1_600_000_000_000, plain(b"abc")
    same = len(data) + 8
    for counts, body in (
        # The first offset is as large as the data length of the other header would be
        ((time, 3, same), data),
        # Bytes are missing
        ((time, 3, 40), data[:5]),
        ((time, 3, 8 + 5), data[:5]),
    ):
        whole = struct.pack(">BHIqQQII", 0x50, 1, 1, *counts, zlib.crc32(data), len(data)) + body
        for options in ({}, {"detail": True}):
            chunk = decode(frame(3, b"\0\0\0\1", whole, version=0), SERVER, draft(**options))["fields"]["chunk"]
            assert (chunk["timestamp"], chunk["epoch"], chunk["chunk_first_offset"]) == counts
    # A body that begins with a length of its own, as large as the data length of the other header would be
    nested = plain(struct.pack(">I", 8) + bytes(8))
    whole = struct.pack(">BHIQQII", 0x50, 1, 1, 3, 40, zlib.crc32(nested), len(nested)) + nested
    said = decode(frame(3, b"\0\0\0\1", whole, version=0), SERVER, draft())
    assert (said["fault"], said["fields"]["chunk"]["epoch"]) == (None, 3)


def test_a_sub_batch_of_the_draft_has_no_uncompressed_size() -> None:
    packed = gzip.compress(UNPACKED)
    for kind, body in ((0, UNPACKED), (1, packed)):
        data = struct.pack(">BHI", 0x80 | kind << 4, 3, len(body)) + body
        whole = struct.pack(">BHIQQII", 0x50, 1, 3, 3, 40, zlib.crc32(data), len(data)) + data
        said = decode(frame(3, b"\0\0\0\1", whole, version=0), SERVER, draft())
        assert said["notes"] == []
        assert [bytes.fromhex(one["body"]) for one in entries_of(said)[0]["messages"]] == BODIES


def test_codes_of_the_draft() -> None:
    said = decode("0000000a 03e6 0000 00000001 0004", SERVER, draft())
    assert (said["name"], said["fields"]["response_code_label"], said["outcome"]) == ("Create", "stream already exists", "refused")
    assert decode("0000000a 03e6 0000 00000001 0000", SERVER, draft())["outcome"] == "answered"


# Pairing keys


def test_confirms_and_errors_answer_what_was_published() -> None:
    published = decode(publish(struct.pack(">Q", 2**64 - 1) + plain(b"x"), struct.pack(">Q", 0) + plain(b"y")))
    confirmed = decode(frame(3, b"\x01", struct.pack(">iQ", 1, 2**64 - 1)), SERVER)
    refused = decode(frame(4, b"\x01", struct.pack(">iQH", 1, 0, 0x12)), SERVER)
    assert (confirmed["role"], refused["role"]) == (RESPONSES, RESPONSES)
    assert (confirmed["outcome"], refused["outcome"]) == ("answered", "refused")
    assert sorted([*confirmed["key"], *refused["key"]]) == sorted(published["key"])
    other = decode(frame(3, b"\x02", struct.pack(">iQ", 1, 0)), SERVER)
    assert not set(other["key"]) & set(published["key"])


def asked_and_answered(dissector: StreamDissector, key: int, ident: int, publisher: int, code: int = 1) -> None:
    fields = [string(""), string("orders")] if key == 1 else []
    decode(frame(key, struct.pack(">IB", ident, publisher), *fields), CLIENT, dissector)
    decode(frame(0x8000 | key, struct.pack(">IH", ident, code)), SERVER, dissector)


def key_of_publish(dissector: StreamDissector) -> Any:
    (key,) = decode(publish(struct.pack(">Q", 7) + plain(b"x")), CLIENT, dissector)["key"]
    return key


def key_of_confirm(dissector: StreamDissector) -> Any:
    (key,) = decode(frame(3, b"\x01", struct.pack(">iQ", 1, 7)), SERVER, dissector)["key"]
    return key


@pytest.mark.parametrize("detail", [False, True])
def test_a_publisher_that_was_dropped_with_its_stream_waits_for_nothing_more(detail: bool) -> None:
    """The server drops publishers when their stream is deleted; clients declare them again and publish the same ids again."""
    dissector = current(syn=True, detail=detail)
    dissector.phase = Phase.OPEN
    asked_and_answered(dissector, 1, 1, 1)
    first = key_of_publish(dissector)
    assert key_of_confirm(dissector) == first
    asked_and_answered(dissector, 1, 2, 1, code=0x11)
    assert key_of_confirm(dissector) == first, "refused: it is the same publisher"
    asked_and_answered(dissector, 1, 3, 2)
    assert key_of_publish(dissector) == first, "another publisher"
    asked_and_answered(dissector, 1, 4, 1)
    second = key_of_publish(dissector)
    assert second != first
    assert key_of_confirm(dissector) == second
    refused = decode(frame(4, b"\x01", struct.pack(">iQH", 1, 7, 0x12)), SERVER, dissector)
    assert refused["key"] == [second]
    asked_and_answered(dissector, 1, 5, 1)
    assert key_of_publish(dissector) not in (first, second)


def test_what_a_deleted_publisher_published_may_still_be_confirmed() -> None:
    dissector = current(syn=True)
    dissector.phase = Phase.OPEN
    asked_and_answered(dissector, 1, 1, 1)
    first = key_of_publish(dissector)
    asked_and_answered(dissector, 6, 2, 1)
    asked_and_answered(dissector, 1, 3, 1)
    assert key_of_confirm(dissector) == first


def test_a_publisher_that_does_not_wait_for_the_answer_to_its_declaration() -> None:
    dissector = current()
    decode(frame(1, b"\0\0\0\1\x01", string(""), string("orders")), CLIENT, dissector)
    published = key_of_publish(dissector)
    decode(ANSWER_OK, SERVER, dissector)
    assert key_of_confirm(dissector) == published


@pytest.mark.parametrize("code", [1, 0x11])
def test_a_dropped_publisher_that_publishes_before_the_answer_to_its_declaration_is_captured(code: int) -> None:
    """A capture may have neighbours in the other order."""
    dissector = current(syn=True)
    dissector.phase = Phase.OPEN
    asked_and_answered(dissector, 1, 1, 1)
    before = key_of_publish(dissector)
    decode(frame(1, struct.pack(">IB", 2, 1), string(""), string("orders")), CLIENT, dissector)
    published = key_of_publish(dissector)
    assert published != before == key_of_confirm(dissector), "the server answers in its own order"
    decode(frame(0x8001, struct.pack(">IH", 2, code)), SERVER, dissector)
    assert key_of_confirm(dissector) == published
    assert not dissector.publishers.unconfirmed
    decode(frame(1, struct.pack(">IB", 3, 1), string(""), string("orders")), CLIENT, dissector)
    published = key_of_publish(dissector)
    dissector.on_gap(SERVER)
    assert key_of_confirm(dissector) == published


def test_a_declaration_that_was_captured_behind_its_answer() -> None:
    """A gap may hold the client's side back."""
    dissector = current(syn=True)
    dissector.phase = Phase.OPEN
    asked_and_answered(dissector, 1, 1, 1)
    before = key_of_publish(dissector)
    decode(frame(0x8001, struct.pack(">IH", 2, 1)), SERVER, dissector)
    decode(frame(1, struct.pack(">IB", 2, 1), string(""), string("orders")), CLIENT, dissector)
    published = key_of_publish(dissector)
    assert key_of_confirm(dissector) == published != before


def test_a_publisher_that_is_deleted_and_declared_at_once() -> None:
    """It was not dropped, so what it published is still confirmed."""
    dissector = current(syn=True)
    dissector.phase = Phase.OPEN
    asked_and_answered(dissector, 1, 1, 1)
    first = key_of_publish(dissector)
    decode(frame(6, struct.pack(">IB", 2, 1)), CLIENT, dissector)
    decode(frame(1, struct.pack(">IB", 3, 1), string(""), string("orders")), CLIENT, dissector)
    assert key_of_publish(dissector) == first
    decode(frame(0x8006, struct.pack(">IH", 2, 1)), SERVER, dissector)
    decode(frame(0x8001, struct.pack(">IH", 3, 1)), SERVER, dissector)
    assert key_of_confirm(dissector) == first


def test_a_publisher_in_a_capture_that_began_later() -> None:
    dissector = current()
    before = key_of_publish(dissector)
    asked_and_answered(dissector, 1, 1, 1)
    assert key_of_publish(dissector) == key_of_confirm(dissector) != before


def test_requests_that_are_never_answered_do_not_add_up() -> None:
    dissector = current(open_limit=8)
    for ident in range(100):
        decode(frame(1, struct.pack(">IB", ident, 1), string(""), string("orders")), CLIENT, dissector)
    assert len(dissector.publishers.waiting) == 8
    dissector.on_gap(CLIENT)
    assert not dissector.publishers.waiting


# Framing


def feed(dissector: StreamDissector, *parts: list[SideData] | StreamGap) -> list[Any]:
    """The records of what came, a packet after the other, and the end."""
    items = [item for part in parts for item in (part if isinstance(part, list) else [part])]
    emitted = []
    for order, together in groupby(items, lambda item: item.order):
        emitted += dissector.parser.process([*together], order)
    return [one.record for one in emitted + dissector.parser.close((99, 99, 0, 99), END)]


def segments(side: int, position: int, parts: list[bytes], first: int = 0) -> list[SideData]:
    starts = [position + sum(map(len, parts[:index])) for index in range(len(parts))]
    return [SideData(side, at, data, (order, order, 0, order)) for order, (at, data) in enumerate(zip(starts, parts, strict=True), first)]


def brief(records: list[Any]) -> list[tuple[Any, ...]]:
    return [("gap", one.position, one.size, one.reason) if isinstance(one, Gap) else (one.name, one.position, one.size) for one in records]


HEARTBEAT = bytes.fromhex("00000004 0017 0001")
CONFIRM = bytes.fromhex("00000011 0003 0001 00 00000001 0000000000000005")
ANSWER_OK = bytes.fromhex("0000000a 8001 0001 00000001 0001")


def test_it_starts_in_the_middle_of_a_frame() -> None:
    tail = deliver(plain(b"x" * 100))[50:]
    said = brief(feed(current(), segments(SERVER, 0, [tail + CONFIRM + ANSWER_OK])))
    at = len(tail)
    assert said == [("gap", 0, at, "skipped"), ("PublishConfirm", at, 21), ("DeclarePublisher", at + 21, 14)]


def test_one_frame_that_ends_with_the_segment_is_enough() -> None:
    assert brief(feed(current(), segments(SERVER, 0, [b"???" + CONFIRM]))) == [("gap", 0, 3, "skipped"), ("PublishConfirm", 3, 21)]
    assert brief(feed(current(), segments(CLIENT, 0, [HEARTBEAT]))) == [("Heartbeat", 0, 8)]


def test_a_large_frame_is_told_by_the_header_of_its_chunk() -> None:
    data = deliver(plain(b"x" * 5000))
    parts = [b"yy" + data[:1000], data[1000:3000], data[3000:]]
    assert brief(feed(current(), segments(SERVER, 0, parts))) == [("gap", 0, 2, "skipped"), ("Deliver", 2, len(data))]


LARGE = b"x" * 1_100_000


def numbered(number: int, body: bytes = LARGE, filter_value: bytes = b"") -> bytes:
    return struct.pack(">Q", number) + filter_value + plain(body)


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (publish(numbered(9)), True),
        (frame(2, b"\x01", struct.pack(">i", 1), numbered(9, filter_value=string("f")), version=2), True),
        (publish(struct.pack(">Q", 9) + sub_batch(0, [b"x" * 1_000] * 1_100)), True),
        (publish(*(numbered(number, b"x" * 600) for number in range(2_000))), True),
        (publish(numbered(9, b"x"), numbered(8, b"x"), numbered(10)), False),
        (publish(numbered(9), count=2), False),
        (publish(numbered(9) + b"more"), False),
        (publish(numbered(9, b"x"), numbered(10), count=100_000), False),
        (publish(count=0) + LARGE, False),
    ],
)
def test_a_frame_that_is_never_looked_at_as_a_whole_is_told_by_its_first_messages(data: bytes, told: bool) -> None:
    data = struct.pack(">I", len(data) - 4) + data[4:]
    parts = [b"yy" * 500, *(data[at : at + 60_000] for at in range(0, len(data), 60_000))]
    said = brief(feed(current(), segments(CLIENT, 0, parts)))
    assert said == ([("gap", 0, 1_000, "skipped"), ("Publish", 1_000, len(data))] if told else [("gap", 0, 1_000 + len(data), "skipped")])


@pytest.mark.parametrize(("stream", "told"), [(string("s"), True), (struct.pack(">h", -7), False), (string(b"\xff"), False)])
def test_so_is_a_frame_of_the_draft(stream: bytes, told: bool) -> None:
    data = frame(0, stream, struct.pack(">i", 2), numbered(8, b"x"), numbered(9), version=0)
    parts = [b"yy" * 500, *(data[at : at + 60_000] for at in range(0, len(data), 60_000))]
    said = brief(feed(draft(), segments(CLIENT, 0, parts)))
    assert said == ([("gap", 0, 1_000, "skipped"), ("Publish", 1_000, len(data))] if told else [("gap", 0, 1_000 + len(data), "skipped")])


def test_bytes_in_a_message_that_look_like_frames() -> None:
    """Frames inside a body, in a conversation that begins with that body's frame: what holds it wins."""
    data = publish(struct.pack(">Q", 1) + plain(b"ab" + HEARTBEAT + CONFIRM + bytes(400)))
    parts = [data[:60], data[60:300], data[300:] + HEARTBEAT]
    assert brief(feed(current(), segments(CLIENT, 0, parts))) == [("Publish", 0, len(data)), ("Heartbeat", len(data), 8)]


def test_nothing_is_invented_in_noise() -> None:
    noise = bytes((index * 7 + index // 3) & 0xFF for index in range(3000))
    assert brief(feed(current(), segments(SERVER, 0, [noise[:1000], noise[1000:]]))) == [("gap", 0, 3000, "skipped")]
    zeros = bytes(3000)
    assert brief(feed(current(), segments(SERVER, 0, [zeros]))) == [("gap", 0, 3000, "skipped")]
    assert brief(feed(draft(), segments(SERVER, 0, [zeros]))) == [("gap", 0, 3000, "skipped")]


def test_after_a_gap_that_hides_a_header_it_begins_again() -> None:
    dissector = current(syn=True)
    records = feed(
        dissector,
        segments(SERVER, 0, [CONFIRM + ANSWER_OK[:5]]),
        StreamGap(SERVER, 26, 9, "lost", 6, 6, 0, 6),
        segments(SERVER, 35, [CONFIRM + CONFIRM], 6),
    )
    assert brief(records) == [
        ("PublishConfirm", 0, 21),
        ("gap", 21, 5, "skipped"),
        ("gap", 26, 9, "lost"),
        ("PublishConfirm", 35, 21),
        ("PublishConfirm", 56, 21),
    ]


def test_sizes_that_cannot_be_true() -> None:
    said = feed(current(syn=True), segments(CLIENT, 0, [b"\xff\xff\xff\xff" + bytes(40) + HEARTBEAT + HEARTBEAT]))
    assert brief(said)[0] == ("gap", 0, 44, "skipped")
    assert brief(said)[1:] == [("Heartbeat", 44, 8), ("Heartbeat", 52, 8)]
    said = feed(current(syn=True), segments(CLIENT, 0, [bytes.fromhex("7fffffff 0001 0001") + bytes(100)]))
    assert (said[0].name, said[0].fields["size"]) == ("DeclarePublisher", 0x7FFFFFFF)
    assert said[0].fault.reason == "108 of 2147483651 bytes captured"


def test_the_client_is_told_by_what_it_sends() -> None:
    dissector = current(client=None)
    records = feed(dissector, segments(CLIENT, 0, [CONFIRM + ANSWER_OK]))
    assert dissector.client == SERVER
    assert [one.sender for one in records] == ["server", "server"]


# Detection


def view(client: bytes, server: bytes, syn: bool = True) -> DetectionView:
    sides = [SideView([(0, data)] if data else [], syn, [0]) for data in (client, server)]
    return DetectionView((sides[0], sides[1]), (4000, 4001), syn, False)


def test_a_first_frame_is_enough() -> None:
    hello = next(one for one in FRAMES if one.name == "PeerProperties" and one.kind == "request")
    verdict = probe_current(view(bytes.fromhex(hello.hex), b""))
    assert verdict is not None
    assert verdict.confidence >= 0.9
    assert verdict.client == 0
    assert verdict.evidence[0] == "client: PeerProperties request, 1 property fills the frame"
    assert probe_draft(view(bytes.fromhex(hello.hex), b"")) is None


def test_a_peer_may_call_itself_what_it_likes() -> None:
    hello = frame(0x11, b"\0\0\0\1", struct.pack(">i", 2), string("product"), string("\x1b[31mred\x07"), string("id"), string("\0\1"))
    verdict = probe_current(view(hello, b""))
    assert verdict is not None
    assert verdict.confidence >= 0.9


def test_the_first_frames_may_be_lost_although_the_beginning_was_captured() -> None:
    frames = {(one.name, one.kind): bytes.fromhex(one.hex) for one in FRAMES}
    client = frames["SaslHandshake", "request"] + HEARTBEAT
    server = frames["SaslHandshake", "response"] + HEARTBEAT
    sides = [SideView([(200, data)], True, [200]) for data in (client, server)]
    verdict = probe_current(DetectionView((sides[0], sides[1]), (4000, 4001), True, True))
    assert verdict is not None
    assert verdict.confidence > 0.5


def test_the_version_alone_tells_the_draft() -> None:
    hello, answer = "00000008 0009 0000 00000001", "00000015 0009 0000 00000001 0000 00000001 0005 504c41494e"
    alone = probe_draft(view(bytes.fromhex(hello), b""))
    assert alone is not None
    assert alone.confidence < 0.9
    both = probe_draft(view(bytes.fromhex(hello), bytes.fromhex(answer)))
    assert both is not None
    assert both.confidence >= 0.9
    assert probe_current(view(bytes.fromhex(hello), bytes.fromhex(answer))) is None


def test_one_heartbeat_is_not_enough() -> None:
    one = probe_current(view(HEARTBEAT, b"", syn=False))
    assert one is not None
    assert one.confidence < 0.5
    many = probe_current(view(HEARTBEAT * 3, HEARTBEAT * 2, syn=False))
    assert many is not None
    assert many.confidence >= 0.9
    assert many.client is None


def test_the_port_tells_the_server_where_frames_do_not() -> None:
    one = view(HEARTBEAT * 3, HEARTBEAT * 2, syn=False)
    for ports, client in (((5552, 4000), 1), ((4000, 5552), 0), ((5552, 5551), None)):
        one.ports = ports
        verdict = probe_current(one)
        assert verdict is not None
        assert verdict.client == client
        assert ("the port tells the server" in verdict.evidence) == (client is not None)
    tune = "0000000c 0014 0001 00100000 0000003c" * 2
    one = view(bytes.fromhex(tune), b"", syn=False)
    one.ports = (5552, 4000)
    verdict = probe_current(one)
    assert verdict is not None
    assert verdict.client == 1
    subscribe = next(one for one in FRAMES if one.name == "Subscribe" and one.kind == "request")
    one = view(bytes.fromhex(subscribe.hex) * 2, b"", syn=False)
    one.ports = (5552, 4000)
    verdict = probe_current(one)
    assert verdict is not None
    assert verdict.client == 0, "what is sent counts more than a port"


@pytest.mark.parametrize(
    "request_",
    [
        # ApiVersions, SaslHandshake with PLAIN, Metadata, and Delete's look-alike SyncGroup, as Kafka's clients send them
        "0000001c 0012 0001 00000001 000e 6b61666b612d707974686f6e2d32",
        "00000017 0011 0001 00000002 0006 636c69656e74 0005 504c41494e",
        "00000018 0003 0001 00000003 000e 6b61666b612d707974686f6e2d32",
        "0000002a 000e 0001 00000004 0006 636c69656e74 0005 67726f7570 00000001 0006 6d656d626572 00000000",
    ],
)
def test_kafka_is_not_taken_for_it(request_: str) -> None:
    data = bytes.fromhex(request_)
    data = struct.pack(">I", len(data) - 4) + data[4:]
    for syn in (True, False):
        for heuristic in (probe_current, probe_draft):
            verdict = heuristic(view(data, b"", syn))
            assert verdict is None or verdict.confidence < 0.5


@pytest.mark.parametrize("name", ["rstream_publish_consume_310.pcap", "draft_exchange.pcap", "consumer_update_sac_436.pcap"])
def test_one_side_alone_is_enough(name: str) -> None:
    sides: dict[tuple[int, str], bytes] = {}
    for message in captured(name):
        assert message.raw is not None
        assert message.sender is not None
        side = (message.conversation, message.sender)
        sides[side] = sides.get(side, b"") + message.raw["frame"]
    heuristic = probe_draft if name.startswith("draft") else probe_current
    for (_, sender), data in sides.items():
        verdict = heuristic(view(data, b"", syn=False))
        assert verdict is not None
        assert verdict.confidence >= 0.9
        assert verdict.client == (0 if sender == "client" else 1)


# Both paths


def samples() -> list[tuple[bytes, int, bool]]:
    """Frames with their side, and whether they are the draft's."""
    found = [(bytes.fromhex(one.hex), SERVER if one.sender == "server" else CLIENT, one.draft) for one in FRAMES]
    sections = bytes.fromhex("005373c00702a10161a10162 005375a00161")
    batches = [sub_batch(kind, BODIES, packed) for kind, packed in PACKED.values()]
    found.append((deliver(plain(sections), *batches, plain(b"last"), records=17), SERVER, False))
    found.append((publish(*(struct.pack(">Q", number) + one for number, one in enumerate([plain(sections), *batches]))), CLIENT, False))
    trailer = bytes.fromhex("00 01 61 0000000000000005")
    found.append((frame(8, b"\x07", chunk(plain(b"abc"), trailer=11), trailer), SERVER, False))
    found.append((deliver(plain(trailer), kind=1), SERVER, False))
    return found


@given(
    st.sampled_from(samples()), st.lists(st.tuples(st.integers(0, 2000), st.integers(0, 255)), max_size=3), st.none() | st.integers(8, 400)
)
def test_details_change_nothing(sample: tuple[bytes, int, bool], places: list[tuple[int, int]], cut: int | None) -> None:
    """The fast path, the close look and the one with details say the same of any bytes, and spans tile every buffer."""
    frame_, side, is_draft = sample
    data = bytearray(frame_)
    for place, byte in places:
        data[4 + place % (len(data) - 4)] = byte
    damage = None if cut is None or cut >= len(data) else Damage(len(data), "9 bytes lost")
    data = data[:cut]
    fast = decode(bytes(data), side, draft() if is_draft else current(), damage)
    dissector = draft(detail=True) if is_draft else current(detail=True)
    slow = decode(bytes(data), side, dissector, damage)
    spans = slow.pop("spans")
    fast.pop("spans")
    assert slow == fast
    reached: dict[str, int] = {"frame": 0}
    for span in spans:
        if span.leaf:
            assert span.offset == reached.get(span.buffer, 0), span
            reached[span.buffer] = span.offset + span.length
    sizes = {"frame": len(data), **{name: len(content) for name, content in dissector.details.items() if content}}
    assert reached == sizes
    assert json.dumps(fast["fields"], allow_nan=False) == json.dumps(slow["fields"], allow_nan=False), "in the same order"


# What a line says


def test_what_messages_say() -> None:
    said = {(one.name, one.kind): info(one) for one in captured("subbatch_compressed_405.pcap", "access_refused_436.pcap")}
    assert said["PeerProperties", "response"].startswith("#1  OK  product=RabbitMQ version=4.")
    assert said["Deliver", "one_way"] == "subscription 1  offsets 60-85  4 entries  26 records"
    assert said["Create", "response"] in ("#5  access refused", "#5  OK")
    assert said["PublishConfirm", "response"] == "publisher 1  ids 50-53"


def test_what_a_chunk_says_that_was_cut_by_the_snap_length() -> None:
    whole = deliver(*(plain(b"message") for _ in range(3)))
    for cut, text in (
        (8, ""),
        (9, "subscription 7"),
        (12, "subscription 7"),
        (13, "subscription 7  3 entries"),
        (40, "subscription 7  3 entries"),
        (41, "subscription 7  offsets 40-42  3 entries"),
        (70, "subscription 7  offsets 40-42  3 entries"),
    ):
        assert info(message_of(decode(whole[:cut], SERVER, damage=Damage(len(whole), "9 bytes lost")))) == text


def test_what_a_list_says_that_ends_in_damage() -> None:
    whole = publish(*(struct.pack(">Q", at) + plain(b"message") for at in range(1, 14)))
    cut = 8 + 5 + 2 * 19 + 15
    said = message_of(decode(whole[:cut], damage=Damage(len(whole), "9 bytes lost")))
    assert info(said) == "publisher 1  ids 1-3  3 messages  21 bytes  before the damage"
    confirmed = frame(3, b"\x01", struct.pack(">iQQQ", 3, 4, 5, 6))
    said = message_of(decode(confirmed[:-8], SERVER, damage=Damage(len(confirmed), "8 bytes lost")))
    assert info(said) == "publisher 1  ids 4-5  before the damage"
    versions = frame(0x801B, b"\0\0\0\1\0\1" + struct.pack(">iHHHHHH", 2, 1, 1, 1, 2, 1, 2))
    said = message_of(decode(versions[:-2], SERVER, damage=Damage(len(versions), "2 bytes lost")))
    assert info(said) == "#1  OK  2 commands  before the damage"


def test_null_is_no_word_of_python() -> None:
    said = message_of(decode(frame(0x0B, b"\0\0\0\1", string(None), string("s"))))
    assert info(said) == "#1  reference null  s"
    said = message_of(decode(frame(0x0D, b"\0\0\0\1", string(None), struct.pack(">i", 1), string("max-age"), string(None))))
    assert info(said) == "#1  null  max-age=null"


def test_metadata_says_where_leaders_are() -> None:
    brokers = struct.pack(">iH", 1, 3) + string("b1") + struct.pack(">I", 5552)
    streams = (("one", 1, 3), ("two", 1, 0xFFFF), ("three", 6, 0xFFFF), ("four", 1, 9))
    each = b"".join(string(name) + struct.pack(">HHi", code, leader, 0) for name, code, leader in streams)
    said = decode(frame(0x800F, b"\0\0\0\1", brokers, struct.pack(">i", 4), each), SERVER)
    assert said["fault"] is None
    assert info(message_of(said)) == "#1  1 broker  one on b1:5552, four on broker 9  two: no leader  three: stream not available"


def test_a_chunk_says_how_far_the_stream_is_ahead_of_it() -> None:
    for committed, text in ((40, ""), (99, "  committed 99")):
        data = frame(8, b"\x07", struct.pack(">Q", committed), chunk(plain(b"message")), version=2)
        assert info(message_of(decode(data, SERVER))) == f"subscription 7  offset 40  1 entry{text}"


@pytest.mark.parametrize("key", layouts.COMMANDS)
def test_what_messages_of_an_unknown_version_say(key: int) -> None:
    for one in (key, key | layouts.RESPONSE):
        said = decode(frame(one, b"\0\0\0\1", version=9))
        hidden = [HIDDEN] if said["name"] == "SaslAuthenticate" else []
        by_number = one != key and said["name"] in layouts.ANSWERED_BY_ID
        how = ": the number behind it is read as that of its request" if by_number else ""
        assert said["notes"] == [f"version 9 of {said['name']} is not known{how}", *hidden]
        assert info(message_of(said)) in ("body=00000001", "body=<redacted 4 bytes>", "")


@given(st.sampled_from(FRAMES), st.integers(8, 400))
def test_what_messages_say_of_which_only_the_beginning_is_there(one: Frame, cut: int) -> None:
    data = bytes.fromhex(one.hex)[:cut]
    side = SERVER if one.sender == "server" else CLIENT
    said = decode(data, side, draft() if one.draft else current(), Damage(len(data) + 9, "9 bytes lost"))
    assert isinstance(info(message_of(said)), str)


def test_the_tables_name_every_command() -> None:
    assert {layout.name for layout in layouts.LAYOUTS} == set(layouts.COMMANDS.values())
    assert {layout.name for layout in layouts_draft.LAYOUTS} == set(layouts_draft.COMMANDS.values())
    for layout in (*layouts.LAYOUTS, *layouts_draft.LAYOUTS):
        second = (layouts.PUBLISH_2, layouts.DELIVER_2, layouts.SUBSCRIBE_2, layouts.CREDIT_2)
        assert word_of(layout) & 0xFFFF == (0 if layout in layouts_draft.LAYOUTS else 2 if layout in second else 1)


def test_every_field_of_an_entry_is_documented() -> None:
    tables = {part.name: {name.partition("[")[0] for name, _, _ in part.rows()} for part in PARTS}
    plain_entry = struct.pack(">Q", 9) + string("eu") + plain(b"x")
    (entry,) = decode(frame(2, b"\x01\0\0\0\1", plain_entry, version=2))["fields"]["published_messages"]
    assert set(entry) <= tables["Entry"]
    (entry,) = decode(publish(struct.pack(">Q", 9) + sub_batch(0, [b"x"])))["fields"]["published_messages"]
    assert {name for name in entry if not name.endswith("_label")} <= tables["Sub-batch"]
    (entry,) = entries_of(decode(deliver(plain(b"x")), SERVER))
    assert set(entry) <= tables["Entry"]


def test_the_custom_parts_agree_on_made_up_chunks() -> None:
    for data in (
        deliver(plain(b"abc"), sub_batch(0, [b"x", b"y"]), sub_batch(1, BODIES, gzip.compress(UNPACKED)), records=6),
        deliver(plain(bytes.fromhex("005375a00161"))),
        frame(8, b"\x07", chunk(plain(b"abc"), trailer=11), bytes.fromhex("00 01 61 0000000000000005")),
    ):
        walked = check_agreement(layouts.DELIVER, data, 0, len(data))
        check_tiles(walked, len(data))
        assert (walked.fault, walked.notes) == (None, [])
        check_truncations(layouts.DELIVER, data)
    assert chunks.CURRENT.header.size == 48
    assert chunks.DRAFT.header.size == 31
    assert chunks.DRAFT_TIMED.header.size == 39


def test_a_label_that_is_not_known_is_noted() -> None:
    said = decode("0000000a 800d 0001 00000005 0063", SERVER)
    assert (said["fields"]["response_code_label"], said["notes"], said["fault"]) == (None, ["response_code 99 is not known"], None)


def test_a_conversation_cannot_unpack_without_end() -> None:
    body = bytes(7 << 20)
    bomb = deliver(sub_batch(1, [body], gzip.compress(plain(body))))
    assert len(bomb) < 10_000
    dissector = current()
    notes = [decode(bomb, SERVER, dissector)["notes"] for _ in range(8)]
    assert notes[0] == notes[1] == []
    refused = [said[0] for said in notes if said]
    # A frame pays for less than a quarter of what it unpacks to
    assert len(refused) == 4 and all("bytes that may still be unpacked" in text for text in refused)


def test_lines_of_publishers_name_the_stream_that_they_were_declared_with() -> None:
    found = [one for one in streamdump.read(CAPTURES / "publishers_310.pcap") if isinstance(one, Message)]
    said = [(one.stream, info(one), info(msgspec.structs.replace(one, stream=None))) for one in found if one.name == "Publish"]
    assert said
    for stream, text, without in said:
        publisher, rest = without.split("  ", 1)
        assert stream == "pubs" and text == f"{publisher}  {stream}  {rest}"


@pytest.mark.parametrize(("frames", "found"), [(2, False), (3, True)])
def test_three_sound_frames_are_certain_whatever_follows(frames: int, found: bool) -> None:
    data = ANSWER_OK * frames + b"\xff" * 20
    work_budget = WorkBudget()
    work_budget.pay(len(data))
    assert CURRENT_LANGUAGE.search(False, data, 0, len(data), True, work_budget)[0] == found


@pytest.mark.parametrize(("key", "found"), [(0x0011, True), (0x000D, False)])
def test_a_handshake_with_other_text_than_utf_8_is_found_behind_a_loss(key: int, found: bool) -> None:
    """In PeerProperties, which an application may fill as it likes, and not in Create."""
    stream = b"" if key == 0x0011 else struct.pack(">H", 1) + b"s"
    body = struct.pack(">HHI", key, 1, 7) + stream + struct.pack(">iH", 1, 7) + b"product" + struct.pack(">H", 3) + b"\xff\xfea"
    data = b"\xff" * 20 + struct.pack(">I", len(body)) + body
    work_budget = WorkBudget()
    work_budget.pay(len(data))
    assert CURRENT_LANGUAGE.search(True, data, 0, len(data), True, work_budget)[:2] == (found, 20 if found else len(data))


def test_a_published_message_of_no_bytes_fills_its_frame() -> None:
    data = struct.pack(">IHHBiQIQI", 33, 2, 1, 7, 2, 1, 0, 2, 0)
    work_budget = WorkBudget()
    found = CURRENT_LANGUAGE.read_sound(layouts.PUBLISH, data, 0, len(data), work_budget)
    assert found is not None and found["published_messages"] == [{"publishing_id": 1, "size": 0}, {"publishing_id": 2, "size": 0}]
    assert CURRENT_LANGUAGE.read_sound(layouts.PUBLISH, data, 0, len(data) - 1, work_budget) is UNSOUND


@pytest.mark.parametrize(("limit", "short"), [(176, True), (175, False)])
def test_the_short_way_counts_entries_with_what_is_in_them(limit: int, short: bool) -> None:
    """8 of them with a section and a list of 20 values each; what is too much is left to `decode`, which says so."""
    body = bytes.fromhex("005377 c015 14" + "40" * 20)
    published = frame(2, struct.pack(">Bi", 1, 8), *(struct.pack(">Q", number) + plain(body) for number in range(8)))
    delivered = deliver(*[plain(body)] * 8)
    for side, data in ((CLIENT, published), (SERVER, delivered)):
        dissector = current(values_limit=limit)
        assert (dissector.decode_fast(side, data, 0, len(data)) is not None) == short
        assert (decode(data, side, dissector)["fault"] is None) == short
