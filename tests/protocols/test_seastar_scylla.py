"""ScyllaDB's SCYLLA_V3: frames by an independent encoder, dictionaries, control blocks, captures that begin late or have holes."""

from __future__ import annotations

import gc
import random
from collections import Counter
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from struct import pack
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import streamdump
from streamdump.crc32c import crc32c
from streamdump.errors import UsageError
from streamdump.model import Gap, Message, Options, Record
from streamdump.protocols.seastar import PROTOCOLS, dictionaries, scylla
from streamdump.protocols.seastar.dictionaries import load_dictionaries
from streamdump.protocols.seastar.heuristic import heuristic
from streamdump.protocols.seastar.verbs import load_verbs
from streamdump.protocols.seastar.verbs_scylla import NAMES
from streamdump.quota import UnpackPool, UnpackQuota
from streamdump.scrub.run import ScrubOptions, scrub
from tests.protocols.test_seastar import CAPTURES, DEFAULT, Sent, items, negotiation, opened, parser, read, request, response, stream, view
from tests.support.frames import pcap
from tests.support.scylla import COMMIT, LZ4, RAW, UPDATE, ZSTD, crc, frame, half, history, lz4, lz4_block, trained, varint, zstandard
from tests.support.secrets import CLIENT, SERVER, conversation
from tests.support.work import peak

TERMS = ((0, b"SCYLLA_V3"), *DEFAULT)
OFFER = ((0, b"SCYLLA_V3,LZ4_FRAGMENTED,LZ4"), *DEFAULT)
METHODS = ("raw", "lz4", "zstd")
FIRST, SECOND = history(1), trained(2)
BY_HAND = request(1, b"a" * 15, timeout=2000)


def named(dictionary: bytes) -> str:
    return sha256(dictionary).hexdigest()


def agreed(*more: Sent) -> list[Sent]:
    return opened(*more, client=OFFER, server=TERMS)


def messages(events: Sequence[Sent], **how: Any) -> list[Message]:
    return [record for record in read(events, **how) if isinstance(record, Message)]


def behind(*more: Sent, **how: Any) -> list[Message]:
    """The messages behind the negotiation."""
    return messages(agreed(*more), **how)[2:]


def commit(dictionary: bytes, allowed: int = 1 << LZ4, epoch: int = 4) -> bytes:
    return half(COMMIT, epoch, allowed, dictionary) + half()


def row(ident: int, size: int = 300, dictionary: bytes = FIRST) -> bytes:
    """A request whose payload is a piece of a dictionary, so that packed bytes refer to it."""
    at = max(0, len(dictionary) - 4_000) + 8 * ident
    return request(ident, dictionary[at : at + size], verb=1 + ident % 5)


# By hand


@pytest.mark.parametrize(
    ("packed", "method", "size"),
    [
        ("30000000 40 f350a396" + BY_HAND.hex(), "raw", 48),
        (
            "24000000 41 f350a396 3d 31d00700010011090600330000010800550f00000061010050 6161616161".replace(" ", ""),
            "lz4",
            36,
        ),
        ("20000000 42 f350a396 0038b5000060d0070009000100 0f00000061041000 52633cf81a02", "zstd", 32),
    ],
)
def test_a_request_by_hand(packed: str, method: str, size: int) -> None:
    (message,) = behind((0, bytes.fromhex(packed)))
    assert (message.name, message.id, message.fault, message.notes) == ("Request", 1, None, [])
    assert message.fields == {
        "compression": {
            "algorithm": "SCYLLA_V3",
            "packed_size": size,
            "unpacked_size": 43,
            "dictionary": None,
            "header": {"control_block": 0, "checksum": 1, "algorithm": METHODS.index(method), "algorithm_label": method},
            "checksum": 0x96A350F3,
        },
        "timeout": 2000,
        "verb": 9,
        "verb_label": "GOSSIP_ECHO",
        "msg_id": 1,
        "len": 15,
        "payload": "61" * 15,
    }


def test_a_control_block_by_hand() -> None:
    first = bytes.fromhex("89000000 c0 00000000 01 0300000000000000 01" + "00" * 56 + "01 0000000000000000 07" + "00" * 56)
    (message,) = behind((0, first))
    assert (message.name, message.kind, message.notes, message.fault) == ("Empty", "one_way", [], None)
    packed = message.fields["compression"]
    nothing = {"origin": "00000000-0000-0000-0000-000000000000", "timestamp": 0, "dictionary": "00" * 32}
    assert packed["control"] == {
        "sender": {"action": 1, "action_label": "UPDATE", "epoch": 3, "algorithms": 1, "algorithms_label": "raw", **nothing},
        "receiver": {"action": 1, "action_label": "UPDATE", "epoch": 0, "algorithms": 7, "algorithms_label": "raw+lz4+zstd", **nothing},
    }
    assert (packed["packed_size"], packed["unpacked_size"], packed["checksum"]) == (137, 0, 0)


def test_the_origin_of_a_dictionary_is_shown_as_the_table_has_it() -> None:
    origin = "1b4e28ba-2fa1-11d2-883f-0016d3cca427"
    block = half(COMMIT, 9, 2, FIRST, origin, 1_700_000_000_123) + half()
    (message,) = behind((0, frame(b"", control=block)))
    sender = message.fields["compression"]["control"]["sender"]
    assert sender["origin"] == origin
    assert (sender["timestamp"], sender["dictionary"], sender["algorithms_label"]) == (1_700_000_000_123, named(FIRST), "lz4")


def test_the_checksum_by_hand() -> None:
    assert crc32c(b"123456789") == crc(b"123456789") == 0x58E3FA20
    assert crc32c(b"") == 0


@given(st.integers(0, 150_000), st.integers(0, 255))
def test_the_checksum_of_any_size(size: int, seed: int) -> None:
    data = random.Random(seed).randbytes(size)
    assert crc32c(data) == crc(data)


# Each way to pack


@pytest.mark.parametrize("checksum", [True, False])
@pytest.mark.parametrize("method", [RAW, LZ4, ZSTD])
@pytest.mark.parametrize("size", [0, 5, 1_500, 65_507, 65_508, 200_000])
def test_every_method_in_both_directions(method: int, size: int, checksum: bool) -> None:
    payload = (history(3, 900) * 300)[:size]
    asked, answered = behind(
        (0, frame(request(1, payload, verb=3), method, checksum=checksum)), (1, frame(response(1, payload), method, checksum=checksum))
    )
    assert (asked.name, answered.name, answered.outcome) == ("Request", "Response", "answered")
    for one in (asked, answered):
        assert one.fields["payload"] == payload.hex()
        assert not one.notes and one.fault is None
        assert one.fields["compression"]["header"]["algorithm_label"] == METHODS[method]
    assert asked.fields["compression"]["unpacked_size"] == 28 + size


@pytest.mark.parametrize("sizes", [(1,), (65_535,), (7, 40, 1), (65_535, 1)])
def test_lz4_blocks_may_end_anywhere(sizes: Sequence[int]) -> None:
    message = request(1, history(3, 500) * 3, verb=3)
    (found,) = behind((0, frame(message, LZ4, packed=lz4(message, sizes=sizes))))
    assert found.fields["payload"] == (history(3, 500) * 3).hex()
    assert not found.notes


@pytest.mark.parametrize("value", [1, 13, 127, 128, 16_383, 16_384, 2_097_151, 2_097_152, (1 << 35) - 1])
def test_sizes_of_blocks(value: int) -> None:
    data = varint(value) + b"x" * min(value, 1_000)
    if value <= 1_000:
        assert list(scylla.blocks(data, 0, 0, len(data))) == [(0, len(data) - value, len(data))]
    else:
        with pytest.raises(scylla.Unreadable, match=f"LZ4 block of {value} bytes, 1000 left"):
            list(scylla.blocks(data, 0, 0, len(data)))


@given(st.binary(max_size=300), st.binary(max_size=200), st.lists(st.integers(1, 80), min_size=1, max_size=4))
def test_any_message_comes_back(message: bytes, dictionary: bytes, sizes: list[int]) -> None:
    packed = frame(message, LZ4, packed=lz4(message, dictionary, sizes))
    head = scylla.head_of(packed, 0, len(packed))
    assert head is not None
    known = dictionaries.Dictionary(dictionary)
    assert scylla.unpack(head, packed, 0, len(packed), known, 1_000, UnpackQuota(UnpackPool())) == message


def test_a_stream_connection() -> None:
    client = ((0, b"SCYLLA_V3"), (3, pack("<Q", 65_536)), (5, b""))
    server = ((0, b"SCYLLA_V3"), (2, pack("<Q", 131_072)), (5, b""))
    end = b"\xff\xff\xff\xff"
    events: list[Sent] = [
        (0, frame(stream(b"row" * 100), LZ4)),
        (1, frame(stream(b""), RAW)),
        (0, frame(end, LZ4)),
        (1, frame(end)),
    ]
    found = messages(opened(*events, client=client, server=server))[2:]
    assert [one.name for one in found] == ["Stream", "Stream", "EndOfStream", "EndOfStream"]
    assert not any(one.notes for one in found)


# Dictionaries


@pytest.mark.parametrize("method", [LZ4, ZSTD])
@pytest.mark.parametrize("dictionary", [FIRST, SECOND, FIRST[-900:]], ids=["history", "trained", "short"])
def test_the_frame_with_the_commit_uses_its_dictionary(method: int, dictionary: bytes) -> None:
    sent: list[Sent] = [
        (0, frame(row(1, 300, dictionary[-900:]), method, control=commit(dictionary), dictionary=dictionary)),
        (0, frame(row(2, 300, dictionary[-900:]), method, dictionary=dictionary)),
    ]
    for given_ in ((dictionary,), (b"another dictionary", dictionary)):
        found = behind(*sent, dictionaries=given_)
        assert [(one.name, one.notes, one.fields["compression"]["dictionary"]) for one in found] == [("Request", [], named(dictionary))] * 2
    for wrong in ((), (b"another dictionary",)):
        found = behind(*sent, dictionaries=wrong)
        assert [(one.name, one.fault) for one in found] == [("Compressed", None)] * 2
        assert [one.notes for one in found] == [[f"needs the dictionary with SHA-256 {named(dictionary)}: --dict FILE"]] * 2
        assert found[0].fields["compression"]["control"]["sender"]["action_label"] == "COMMIT"
        assert found[1].fields["compression"]["dictionary"] == named(dictionary)


def test_lz4_takes_the_end_of_a_dictionary() -> None:
    message = request(1, FIRST[:400], verb=1)
    tail = frame(message, LZ4, control=commit(FIRST), packed=lz4(message, FIRST[:65_535]))
    (found,) = behind((0, tail), dictionaries=(FIRST,))
    assert found.fault is not None or "the checksum is" in found.notes[0]


def test_an_update_and_a_receivers_commit_change_nothing() -> None:
    update = half(UPDATE, 4, 2, FIRST) + half()
    other = half() + half(COMMIT, 4, 7, FIRST)
    plain = row(1)
    for block in (update, other):
        (found,) = behind((0, frame(plain, LZ4, control=block)), dictionaries=(FIRST,))
        assert (found.name, found.notes, found.fields["compression"]["dictionary"]) == ("Request", [], None)
        packed = frame(plain, LZ4, control=block, dictionary=FIRST)
        (found,) = behind((0, packed))
        assert found.name == "Compressed"
        assert found.fault is not None and found.fault.reason == "not an LZ4 block of up to 65535 bytes"
        # the checksum is proof, whatever was agreed on
        (found,) = behind((0, packed), dictionaries=(SECOND, FIRST))
        assert (found.name, found.fields["compression"]["dictionary"]) == ("Request", named(FIRST))
        assert found.notes == ["the checksum shows another dictionary than control blocks agree on"]


def test_a_dictionary_that_is_not_the_agreed_one() -> None:
    sent: list[Sent] = [
        (0, frame(row(1, 300, SECOND), LZ4, control=commit(SECOND), dictionary=SECOND)),
        (0, frame(row(2), LZ4, dictionary=FIRST)),
        (0, frame(row(3), LZ4, dictionary=FIRST, checksum=False)),
        (0, frame(row(4), LZ4, dictionary=FIRST, checksum=9)),
    ]
    found = behind(*sent, dictionaries=(FIRST, SECOND))
    assert [one.fields["compression"]["dictionary"] for one in found] == [named(SECOND), named(FIRST), named(SECOND), named(SECOND)]
    assert found[1].notes == ["the checksum shows another dictionary than control blocks agree on"]
    assert found[3].fault is not None or "the checksum is 0x00000009" in found[3].notes[0]
    # only the agreed one is named as the one that is needed
    lacking = behind(*sent, dictionaries=(b"unrelated",))
    assert {note for one in lacking for note in one.notes} == {f"needs the dictionary with SHA-256 {named(SECOND)}: --dict FILE"}


def test_each_direction_has_its_own_dictionary_which_may_change() -> None:
    sent: list[Sent] = [
        (0, frame(b"", control=commit(FIRST))),
        (1, frame(b"", control=commit(SECOND))),
        (0, frame(row(1), LZ4, dictionary=FIRST)),
        (1, frame(response(1, SECOND[-300:]), ZSTD, dictionary=SECOND)),
        (0, frame(row(2, 300, SECOND), LZ4, control=commit(SECOND, epoch=5), dictionary=SECOND)),
        (1, frame(response(2, FIRST[-300:]), LZ4, control=commit(FIRST, epoch=5), dictionary=FIRST)),
        (0, frame(row(3), LZ4, control=commit(b"", epoch=6))),
        (1, frame(response(3, FIRST[-200:]), LZ4, dictionary=FIRST)),
    ]
    found = behind(*sent, dictionaries=(SECOND, FIRST))
    assert [one.name for one in found] == ["Empty", "Empty", *["Request", "Response"] * 3]
    assert not any(one.notes or one.fault for one in found)
    used = [one.fields["compression"]["dictionary"] for one in found]
    first, second = named(FIRST), named(SECOND)
    assert used == [first, second, first, second, second, first, None, first]
    # with one of two, exactly the frames of that one are read
    found = behind(*sent, dictionaries=(FIRST,))
    assert [one.name for one in found] == ["Empty", "Empty", "Request", "Compressed", "Compressed", "Response", "Request", "Response"]


def test_frames_that_refer_to_no_dictionary_are_read_without_it() -> None:
    asked = request(1, b"\x01\x02\x03\x04", verb=3)
    (found,) = behind((0, frame(asked, LZ4, control=commit(FIRST), packed=lz4(asked))))
    assert (found.name, found.notes, found.fields["payload"]) == ("Request", [], "01020304")


# Captures that begin late or have holes


def middle(*more: Sent, syn: bool = False, **how: Any) -> list[Record]:
    return read(more, syn=syn, **how)


@pytest.mark.parametrize("method", [RAW, LZ4, ZSTD])
def test_a_capture_that_begins_later(method: int) -> None:
    sent: list[Sent] = []
    for ident in range(1, 5):
        sent += [(0, frame(row(ident), method)), (1, frame(response(ident, b"x" * 200), method))]
    found = middle(*sent)
    assert Counter(one.name for one in found if isinstance(one, Message)) == {"Request": 4, "Response": 4}
    for one in found:
        assert isinstance(one, Message)
        assert one.fields["compression"]["header"]["algorithm_label"] == METHODS[method]
        assert "framing inferred: no negotiation was captured" in one.notes
    assert found[0].fields["verb_label"] == "MUTATION_DONE"  # type: ignore[union-attr]
    assert "verbs are named as by --verbs scylla" in found[0].notes[-1]  # type: ignore[union-attr]


@pytest.mark.parametrize("method", [LZ4, ZSTD])
def test_a_capture_that_begins_later_with_a_dictionary(method: int) -> None:
    sent: list[Sent] = []
    for ident in range(1, 5):
        sent += [
            (0, frame(row(ident), method, dictionary=FIRST)),
            (1, frame(response(ident, FIRST[-400:-50]), method, dictionary=FIRST)),
        ]
    found = middle(*sent, dictionaries=(SECOND, FIRST))
    assert Counter(one.name for one in found if isinstance(one, Message)) == {"Request": 4, "Response": 4}
    assert {one.fields["compression"]["dictionary"] for one in found if isinstance(one, Message)} == {named(FIRST)}
    # without it nothing is claimed
    assert all(isinstance(one, Gap) for one in middle(*sent, dictionaries=(SECOND,)))


def test_after_a_hole_any_dictionary_may_be_in_force() -> None:
    sent: list[Sent] = [
        (0, frame(row(1), LZ4, control=commit(FIRST), dictionary=FIRST)),
        (0, 777),
        *((0, frame(row(ident, 300, SECOND), LZ4, dictionary=SECOND)) for ident in range(5, 8)),
    ]
    found = behind(*sent, dictionaries=(FIRST, SECOND))
    assert [one.fields["compression"]["dictionary"] for one in found] == [named(FIRST), *[named(SECOND)] * 3]
    assert not any(one.notes for one in found)
    # not "needs the first": a COMMIT may be lost
    lacking = behind(*sent, dictionaries=(FIRST,))
    assert [one.name for one in lacking] == ["Request", *["Compressed"] * 3]
    assert "which one is in force was not captured, none of the 1 given fits" in lacking[1].notes[0]


def test_without_a_checksum_a_dictionary_is_inferred() -> None:
    sent: list[Sent] = [(0, 500), *((0, frame(row(n), LZ4, dictionary=FIRST, checksum=False)) for n in range(2, 5))]
    found = behind(*sent, dictionaries=(SECOND, FIRST))
    assert [one.name for one in found] == ["Request"] * 3
    assert all("dictionary inferred" in one.notes[-1] for one in found)


def test_a_hole_in_a_packed_frame_costs_that_frame() -> None:
    long = request(2, history(5, 9_000), verb=1)
    for method in (RAW, LZ4, ZSTD):
        packed = frame(long, method)
        sent: list[Sent] = [
            (0, frame(row(1), LZ4)),
            (0, packed[:600]),
            (0, 400),
            (0, packed[1_000:]),
            (0, frame(row(3), LZ4)),
        ]
        found = behind(*sent)
        assert [one.id for one in found if one.name == "Request"] == ([1, 3] if method == ZSTD else [1, 2, 3])
        assert found[1].fault is not None and "lost" in found[1].fault.reason
        assert found[2].fault is None


def test_a_hole_over_a_commit() -> None:
    """Where the head of a frame is incomplete, it may have held one."""
    packed = frame(row(2, 300, SECOND), LZ4, control=commit(SECOND), dictionary=SECOND)
    sent: list[Sent] = [
        (0, frame(row(1), LZ4, control=commit(FIRST), dictionary=FIRST)),
        (0, packed[:20]),
        (0, 60),
        (0, packed[80:]),
        (0, frame(row(3, 300, SECOND), LZ4, dictionary=SECOND)),
    ]
    found = behind(*sent, dictionaries=(FIRST, SECOND))
    assert [one.name for one in found] == ["Request", "Compressed", "Request"]
    assert found[2].fields["compression"]["dictionary"] == named(SECOND)


# Damage


def test_a_wrong_checksum() -> None:
    for method in (RAW, LZ4, ZSTD):
        (found,) = behind((0, frame(row(1), method, checksum=0xDEADBEEF)))
        assert found.name == "Request" and found.fault is None
        text = f"the checksum is 0xdeadbeef, computed {crc(row(1)):#010x}: the receiver closes the connection"
        assert found.notes == [text]
    (found,) = behind((0, frame(b"", checksum=1)))
    assert found.name == "Empty" and "computed 0x00000000" in found.notes[0]


@pytest.mark.parametrize(
    ("packed", "field", "offset", "reason"),
    [
        (b"\x43" + bytes(20), "header", 4, "algorithm 3 is unknown"),
        (b"\xff" + bytes(200), "header", 4, "algorithm 63 is unknown"),
        (b"\x40\x01\x02", "checksum", 5, "2 left"),
        (b"\xc0" + bytes(100), "control.receiver.timestamp", None, "left"),
        (b"\x01" + b"\x00", "compression", 5, "no size of an LZ4 block"),
        (b"\x01" + b"\x80", "compression", 5, "no size of an LZ4 block"),
        (b"\x01" + varint(5) + b"\x00", "compression", 5, "LZ4 block of 5 bytes, 1 left"),
        (b"\x01" + varint(0) + b"\x00", "compression", 5, "LZ4 block of 0 bytes, 1 left"),
        (b"\x01" + varint(4) + b"\xf0\xff\xff\xff", "compression", 6, "not an LZ4 block"),
        (b"\x02" + b"\x00", "compression", None, "the zstd data ends early"),
        (b"\x02" + b"\x01\x02\x03\x04\x05\x06\x07\x08", "compression", 5, "not zstd data"),
        (b"\x02" + zstandard(BY_HAND)[:-3], "compression", None, "the zstd data ends early"),
        (b"\x02" + zstandard(BY_HAND) + b"more", "compression", 32, "bytes behind the zstd data"),
        # a window of 2^41
        (b"\x02" + b"\x00\xf8" + bytes(8), "compression", 5, "not zstd data"),
    ],
)
def test_damaged_frames(packed: bytes, field: str, offset: int | None, reason: str) -> None:
    first, then = behind((0, stream(packed)), (0, frame(row(2))))
    assert first.name == "Compressed" and first.fault is not None
    assert reason in first.fault.reason
    assert first.fault.field == field
    assert offset is None or first.fault.offset == offset
    assert (then.name, then.fault) == ("Request", None)


def test_an_empty_frame_without_a_header() -> None:
    first, then = behind((0, bytes(4)), (0, frame(row(2))))
    assert first.fault is not None and first.fault.field == "header"
    assert then.name == "Request"


def test_an_inner_frame_of_the_wrong_size() -> None:
    (short,) = behind((0, frame(row(1)[:-5], LZ4)))
    assert short.fault is not None and short.fault.buffer == "unpacked"
    (raw,) = behind((0, frame(row(1)[:-5])))
    assert raw.fault is not None and (raw.fault.field, raw.fault.offset, raw.fault.buffer) == ("payload", 9 + 28, "frame")
    (surplus,) = behind((0, frame(row(1) + b"zz", ZSTD)))
    assert surplus.fields["trailing"] == b"zz".hex()


# Details


@pytest.mark.parametrize("method", [RAW, LZ4, ZSTD])
def test_spans_cover_the_frame_and_what_is_inside(method: int) -> None:
    sent: list[bytes] = [
        frame(row(1, 3_000), method, control=commit(FIRST), dictionary=FIRST),
        frame(row(2), method, checksum=False, dictionary=FIRST),
        frame(b"", method, control=commit(b"")),
        frame(row(3), method, checksum=5),
        frame(b"", method),
        stream(b"\x45" + bytes(9)),
        stream(b"\x01\x00\x00"),
        stream(b"\xc1" + bytes(60)),
    ]
    for known in ((FIRST,), ()):
        for one in behind(*((0, data) for data in sent), detail=True, dictionaries=known):
            assert one.raw is not None and one.spans is not None
            for buffer, data in one.raw.items():
                at = 0
                for span in one.spans:
                    if span.leaf and span.buffer == buffer:
                        assert span.offset == at, (one.name, span)
                        at += span.length
                assert at == len(data), (one.name, buffer, one.spans)


def test_details_change_nothing_else() -> None:
    sent: list[Sent] = [(0, frame(row(n, 400), n % 3, control=commit(b"") if n == 2 else b"")) for n in range(1, 9)]
    brief, detailed = behind(*sent), behind(*sent, detail=True)
    assert [(one.fields, one.notes) for one in brief] == [(one.fields, one.notes) for one in detailed]


@given(st.integers(0, 10_000))
def test_any_bytes_in_any_pieces(seed: int) -> None:
    source = random.Random(seed)
    data = bytearray()
    for number in range(1, 7):
        message = source.choice((row(number, source.randrange(400)), b"", source.randbytes(30)))
        control = source.choice((b"", commit(FIRST), commit(b""), source.randbytes(132)))
        data += frame(message, source.randrange(3), control=control, checksum=source.choice((True, False, 5)))
    for _ in range(source.randrange(6)):
        data[source.randrange(len(data))] = source.randrange(256)
    known = (FIRST,) if seed % 2 else ()
    complete = read(agreed((0, bytes(data))), dictionaries=known)
    cuts = sorted(source.sample(range(1, len(data)), 5))
    pieces = [(0, bytes(data[a:b])) for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True)]
    parts = read(agreed(*pieces), dictionaries=known)
    assert sum(one.size or 0 for one in complete) == sum(one.size or 0 for one in parts)  # type: ignore[union-attr]
    if not any(isinstance(one, Gap) for one in (*complete, *parts)):
        kept = [[(one.name, one.fields) for one in some if isinstance(one, Message)] for some in (complete, parts)]
        assert kept[0] == kept[1]


# Limits


def test_what_unpacks_to_too_much() -> None:
    bomb = bytes(1_200_000)
    for packed in (b"\x02" + zstandard(bomb), b"\x01" + lz4(bomb, sizes=(65_535,))):
        (found,) = behind((0, stream(packed)), frame_limit=1 << 20)
        assert found.fault is not None and "over the limit of 1048576 bytes" in found.fault.reason


def test_a_conversation_unpacks_no_more_than_its_quota(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(UnpackQuota, "FREE", 1 << 20)
    monkeypatch.setattr(UnpackQuota, "FOR_EACH", 0)
    monkeypatch.setattr(UnpackPool.__init__, "__defaults__", (0,))
    packed = stream(b"\x02" + zstandard(request(1, bytes(400_000), verb=1)))
    found = behind(*((0, packed) for _ in range(4)))
    assert [one.fault is None for one in found] == [True, True, False, False]


def test_memory_of_bombs() -> None:
    message = request(1, bytes(16 << 20), verb=1)
    sent = items(agreed(*((0, stream(b"\x02" + zstandard(message))) for _ in range(8))))
    one = parser()

    def feed() -> None:
        for item in sent:
            one.process([item])

    # the payload, its hex digits, and what was unpacked
    assert peak(feed) < 5 * len(message)


def test_an_error_does_not_keep_what_was_unpacked() -> None:
    """A decompressor has buffers of its own size; the error of one refers to it, and a frame to itself would keep it for long."""
    damaged = agreed(*((0, stream(b"\x02\x00\x38\x01\x02")) for _ in range(50)))
    gc.collect()
    gc.disable()
    try:
        assert len(messages(damaged)) == 52
        assert not [one for one in gc.get_objects() if isinstance(one, scylla.Unpackable)]
    finally:
        gc.enable()


# Detection


def seen(sides: tuple[Sequence[bytes], Sequence[bytes]], known: tuple[bytes, ...] = ()) -> Any:
    one = view(*sides, syn=False)
    one.dictionaries = known
    return heuristic(one)


def test_detection_without_the_negotiation() -> None:
    for method in (RAW, LZ4, ZSTD):
        client = [frame(row(n), method) for n in range(1, 5)]
        server = [frame(response(n, b"y" * 100), method) for n in range(1, 5)]
        verdict = seen((client, server))
        assert verdict.client == 0
        assert "chain as request with timeout in SCYLLA_V3" in verdict.evidence[0]
        packed = [frame(row(n), method or LZ4, dictionary=FIRST) for n in range(1, 5)]
        assert seen((packed, [])) is None
        assert seen((packed, []), (FIRST,)).client == 0


def test_other_traffic_is_not_claimed() -> None:
    source = random.Random(4)
    zipped = [zstandard(source.randbytes(300) * 4) for _ in range(8)]
    for sent in (
        [b"\x28\xb5\x2f\xfd" + one for one in zipped],
        zipped,
        [stream(b"\x02" + one) for one in zipped],
        [stream(b"\x00" + source.randbytes(40)) for _ in range(9)],
        [stream(b"\x01" + varint(8) + lz4_block(source.randbytes(7))) for _ in range(9)],
        [stream(bytes(41)) for _ in range(9)],
        [frame(b"", control=half(UPDATE, 3, 1) + half(UPDATE, 0, 7)) for _ in range(9)],
        [frame(b"hello, is anybody there? %d" % n) for n in range(9)],
    ):
        assert seen((sent, [])) is None
        assert seen((sent, sent)) is None


# Verbs


def test_verbs_up_to_93_have_names() -> None:
    assert sorted(NAMES) == list(range(94))


def test_verbs_are_named_where_an_offer_shows_that_it_is_scylladb() -> None:
    for client, server, expected in (
        (OFFER, TERMS, True),
        (OFFER, DEFAULT, True),
        (DEFAULT, DEFAULT, False),
        (((0, b"LZ4"), (4, b"gossip"), *DEFAULT), DEFAULT, False),
        (((0, b"SCYLLA_V33"), *DEFAULT), DEFAULT, False),
    ):
        pack_ = frame if server is TERMS else bytes
        found = messages(opened((0, pack_(request(1, verb=47))), (0, pack_(request(2, verb=94))), client=client, server=server))
        assert found[2].fields.get("verb_label") == ("RAFT_APPEND_ENTRIES" if expected else None)
        assert found[2].kind == ("one_way" if expected else "request")
        assert found[3].fields.get("verb_label") is None
        assert ["verbs are named as" in " ".join(one.notes) for one in found] == [expected, False, False, False]


def test_verbs_that_were_asked_for_stay() -> None:
    mine = load_verbs("scylla").__class__({47: "mine"})
    found = messages(agreed((0, frame(request(1, verb=47)))), verbs=mine)
    assert found[2].fields["verb_label"] == "mine"
    assert not found[0].notes


# Files


def test_dictionaries_of_files(tmp_path: Path) -> None:
    raw, digits, cql = tmp_path / "raw", tmp_path / "digits", tmp_path / "cql"
    raw.write_bytes(FIRST)
    digits.write_text(FIRST.hex("\n", 40))
    cql.write_text(f"  0x{SECOND.hex()}\n")
    assert load_dictionaries(map(str, (raw, digits, cql, raw))) == (FIRST, SECOND)


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (b"", "0 bytes are no dictionary"),
        (b"1234567", "7 bytes are no dictionary"),
        (b"0x" + b"00" * 7, "7 bytes are no dictionary"),
        (bytes(dictionaries.LARGEST + 1), "a dictionary has 4 MiB at most"),
        (None, "No such file or directory"),
    ],
)
def test_files_that_are_no_dictionary(content: bytes | None, error: str, tmp_path: Path) -> None:
    path = tmp_path / "general"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UsageError, match=f"--dict {path}: {error}"):
        load_dictionaries([str(path)])
    with pytest.raises(UsageError, match="Is a directory"):
        load_dictionaries([str(tmp_path)])


def test_too_many_dictionaries(tmp_path: Path) -> None:
    paths = [tmp_path / str(number) for number in range(65)]
    for number, path in enumerate(paths):
        path.write_bytes(pack("<Q", number) * 2)
    with pytest.raises(UsageError, match="65 dictionaries were given, 64 can be used"):
        load_dictionaries(map(str, paths))


def test_layouts_that_can_be_forced() -> None:
    assert "rpc+timeout+duration+scylla_v3" in PROTOCOLS[0].loaded.forced
    sent: list[Sent] = [(0, frame(row(1), LZ4)), (1, frame(response(1, b"ok")))]
    found = messages(sent, syn=False, layout="rpc+timeout+duration+scylla_v3", client=0)
    assert [one.name for one in found] == ["Request", "Response"]


def test_options_are_the_contents() -> None:
    assert Options().dictionaries == ()
    assert negotiation()[:8] == b"SSTARRPC"


# Copies without what is confidential


def test_scrub_corrects_the_checksum_of_raw_frames_and_overwrites_packed_ones(tmp_path: Path) -> None:
    words = b"the balance of account 4711"
    sent = [
        (CLIENT, negotiation(*OFFER)),
        (SERVER, negotiation(*TERMS)),
        (CLIENT, frame(request(1, words, verb=1))),
        (CLIENT, frame(request(2, words, verb=1), checksum=7)),
        (CLIENT, frame(request(3, words * 9, verb=1), LZ4)),
        (CLIENT, frame(request(4, words * 9, verb=1), ZSTD)),
    ]
    source, target = tmp_path / "source.pcap", tmp_path / "target.pcap"
    source.write_bytes(pcap(conversation(sent, 7000)))
    scrub(source, target, ScrubOptions(payloads=True), Options())
    assert words[4:20] not in target.read_bytes()
    raw, wrong, *packed = [one for one in streamdump.read(str(target)) if isinstance(one, Message)][2:]
    assert (raw.name, raw.notes, raw.fields["verb"], raw.fields["len"]) == ("Request", [], 1, len(words))
    assert wrong.notes[0].startswith("the checksum is 0x00000007")
    assert [one.name for one in packed] == ["Compressed"] * 2


# The golden captures, as their README describes them

KNOWN = load_dictionaries([str(CAPTURES / f"scylla_v3_{name}.dict") for name in ("first", "second")])

COUNTS: dict[str, dict[str, int]] = {
    "raw": {"Empty": 2, "Request": 11, "Response": 8},
    "lz4": {"Empty": 7, "Request": 11, "Response": 8},
    "zstd": {"Empty": 7, "Request": 11, "Response": 9},
    "dictionary": {"Empty": 13, "Request": 17, "Response": 14},
    "stream": {"Empty": 12, "Request": 2, "Response": 1, "Stream": 8, "EndOfStream": 2},
    "midstream": {"Request": 8, "Response": 8},
    "dictionary_midstream": {"Empty": 9, "Request": 12, "Response": 11},
    "lost": {"Empty": 12, "Request": 16, "Response": 11},
}


@pytest.mark.parametrize("name", COUNTS)
def test_golden_captures(name: str) -> None:
    found = [one for one in streamdump.read(str(CAPTURES / f"scylla_v3_{name}.pcap"), dictionaries=KNOWN) if isinstance(one, Message)]
    assert Counter(one.name for one in found if one.name != "Negotiation") == COUNTS[name]
    for one in found:
        assert one.fault is None
        assert all(note.startswith(("framing inferred", "SCYLLA_V3 is ScyllaDB's")) for note in one.notes)
        if one.name == "Request":
            # 94 and above are numbers, and not in these
            assert one.fields["verb_label"] == NAMES[one.fields["verb"]]


def test_the_story_of_the_dictionaries() -> None:
    found = [one for one in streamdump.read(str(CAPTURES / "scylla_v3_dictionary.pcap"), dictionaries=KNOWN) if isinstance(one, Message)]
    used: dict[str, list[str]] = {"client": [], "server": []}
    for one in found[2:]:
        named_ = one.fields["compression"]["dictionary"]
        who = used[str(one.sender)]
        if named_ is not None and named_ not in who[-1:]:
            who.append(named_)
    first, second = (named(one) for one in KNOWN)
    assert used == {"client": [first, second], "server": [first, second]}
    packed = [one for one in streamdump.read(str(CAPTURES / "scylla_v3_dictionary.pcap")) if isinstance(one, Message)]
    needed = Counter(one.notes[0] for one in packed if one.name == "Compressed")
    assert needed == {f"needs the dictionary with SHA-256 {one}: --dict FILE": times for one, times in ((first, 16), (second, 10))}


def test_dictionaries_as_an_option_of_the_library() -> None:
    with pytest.raises(UsageError, match="dictionaries is a tuple of bytes"):
        list(streamdump.read(str(CAPTURES / "scylla_v3_raw.pcap"), dictionaries=("general",)))
