"""Scrubbing packet by packet: formats, repeated bytes, gaps, fragments, checksums, addresses, and what stops it."""

from __future__ import annotations

import gzip
import io
import os
import random
import shutil
import signal
import struct
import subprocess
import sys
from array import array
from base64 import b64encode
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import streamdump
from streamdump.cli.app import main
from streamdump.errors import CaptureError, UsageError
from streamdump.model import Message, Options
from streamdump.scrub.packets import _pseudo, _sum
from streamdump.scrub.replace import AddressReplacements, NameReplacements, prose
from streamdump.scrub.run import ScrubOptions, ScrubResult, SecretLeft, scrub
from streamdump.scrub.search import SecretSearch, _Side, pieces
from tests.golden.rebuild import GOLDEN, Frame, frames, rebuilt
from tests.scrub.test_golden_captures import bad_checksums, needs_tshark
from tests.support.frames import (
    ACK,
    FIN,
    PSH,
    SYN,
    A,
    B,
    Packet,
    block,
    enhanced,
    ethernet,
    interface,
    ip4,
    ip6,
    pcap,
    pcapng,
    section,
    simple,
    tcp,
)
from tests.support.waiting import PATIENCE

PASSWORD = b"correct-horse-battery"
USER = b"some-user"
SASL = b"\0" + USER + b"\0" + PASSWORD


def framed(body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + body


def text(value: bytes) -> bytes:
    return struct.pack(">h", len(value)) + value


AUTHENTICATE = framed(struct.pack(">HHI", 0x13, 1, 3) + text(b"PLAIN") + struct.pack(">i", len(SASL)) + SASL)
HANDSHAKE = [
    (0, framed(struct.pack(">HHII", 0x11, 1, 1, 0))),
    (1, framed(struct.pack(">HHIHI", 0x8011, 1, 1, 1, 0))),
    (0, framed(struct.pack(">HHI", 0x12, 1, 2))),
    (1, framed(struct.pack(">HHIHI", 0x8012, 1, 2, 1, 1) + text(b"PLAIN"))),
    (0, AUTHENTICATE),
    (1, framed(struct.pack(">HHIH", 0x8013, 1, 3, 1))),
    (1, framed(struct.pack(">HHII", 0x14, 1, 1 << 20, 60))),
    (0, framed(struct.pack(">HHII", 0x14, 1, 1 << 20, 60))),
    (0, framed(struct.pack(">HHI", 0x15, 1, 4) + text(b"/"))),
    (1, framed(struct.pack(">HHIHI", 0x8015, 1, 4, 1, 0))),
]


def declare(stream: bytes, number: int = 5) -> tuple[int, bytes]:
    return 0, framed(struct.pack(">HHIB", 1, 1, number, 1) + text(b"") + text(stream))


def publish(body: bytes) -> tuple[int, bytes]:
    return 0, framed(struct.pack(">HHBiQI", 2, 1, 1, 1, 1, len(body)) + body)


def right(segment: bytes, src: bytes = A, dst: bytes = B) -> bytes:
    """A TCP segment with its checksum filled in."""
    bare = segment[:16] + bytes(2) + segment[18:]
    total = (_sum(bare) + _pseudo((src, dst), 6, len(bare))) % 0xFFFF
    return bare[:16] + struct.pack(">H", 0xFFFF - total) + bare[18:]


def right_ip(packet: bytes) -> bytes:
    head = packet[:10] + bytes(2) + packet[12:20]
    return head[:10] + struct.pack(">H", 0xFFFF - _sum(head)) + head[12:] + packet[20:]


class Talk:
    """Packets of one conversation as they are made."""

    def __init__(self, port: int = 40_000, start: int = 1_000, good: bool = True) -> None:
        self.port = port
        self.numbers = [start, 9_000]
        self.packets: list[bytes] = []
        self.good = good

    def segment(self, side: int, payload: bytes, flags: int = PSH | ACK, back: int = 0) -> bytes:
        ends = (A, self.port), (B, 5552)
        (src, sport), (dst, dport) = ends[side], ends[1 - side]
        seq = (self.numbers[side] - back) & 0xFFFF_FFFF
        made = tcp(payload, sport=sport, dport=dport, seq=seq, ack=self.numbers[1 - side], flags=flags)
        packet = ip4(right(made, src, dst) if self.good else made, src=src, dst=dst)
        return ethernet(right_ip(packet) if self.good else packet)

    def send(self, side: int, payload: bytes = b"", flags: int = PSH | ACK, back: int = 0) -> None:
        """`back`: how many bytes of before are sent again."""
        self.packets.append(self.segment(side, payload, flags, back))
        if not back:
            self.numbers[side] = self.numbers[side] + len(payload) + bool(flags & (SYN | FIN)) & 0xFFFF_FFFF

    def greet(self) -> Talk:
        self.send(0, flags=SYN)
        self.send(1, flags=SYN | ACK)
        return self

    def say(self, frames: Sequence[tuple[int, bytes]]) -> Talk:
        for side, data in frames:
            self.send(side, data)
        return self

    def pcap(self, **more: Any) -> bytes:
        return pcap([Packet(one) for one in self.packets], **more)


def scrubbed(data: bytes, tmp_path: Path, wanted: ScrubOptions = ScrubOptions(), name: str = "in.pcap") -> tuple[bytes, ScrubResult]:  # noqa: B008
    source, target = tmp_path / name, tmp_path / "out"
    source.write_bytes(data)
    done = scrub(str(source), target, wanted, Options())
    return target.read_bytes(), done


def messages(data: bytes, **options: Any) -> list[Message]:
    return [one for one in streamdump.read(io.BytesIO(data), **options) if isinstance(one, Message)]


def names(data: bytes) -> list[tuple[str, str, str | None]]:
    return [(one.name, one.kind, one.outcome) for one in messages(data)]


def test_the_password_goes_and_the_user_stays(tmp_path: Path) -> None:
    data = Talk().greet().say(HANDSHAKE).pcap()
    out, done = scrubbed(data, tmp_path)
    assert (done.packets, done.messages, done.parts) == (12, 10, {"secret": 1})
    assert out == data.replace(PASSWORD, b"x" * len(PASSWORD)).replace(*_sums(data, out))
    assert names(out) == names(data)


def test_where_the_user_is_not_known_all_of_a_login_goes(tmp_path: Path) -> None:
    """A NUL that is damaged, and one that ends the data, would make the password a name."""
    for sasl in (b"\0" + USER + b"@" + PASSWORD[:-1] + b"\0", b"\x08" + USER + b"\0" + PASSWORD[:-1] + b"\0"):
        said = [(side, one.replace(SASL, sasl)) for side, one in HANDSHAKE]
        out, done = scrubbed(Talk().greet().say(said).pcap(), tmp_path)
        assert done.parts == {"secret": 1}
        assert PASSWORD[:6] not in out


def test_an_authorization_id_goes_with_the_password(tmp_path: Path) -> None:
    said = [(side, one.replace(SASL, b"boss" + b"\0" + USER + b"\0" + PASSWORD[:-4])) for side, one in HANDSHAKE]
    out, done = scrubbed(Talk().greet().say(said).pcap(), tmp_path)
    assert done.parts == {"secret": 2}
    assert b"boss" not in out and PASSWORD[:6] not in out
    assert {one.fields["sasl_username"] for one in messages(out) if one.name == "SaslAuthenticate" and one.kind == "request"} == {
        USER.decode()
    }


def _sums(before: bytes, after: bytes) -> tuple[bytes, bytes]:
    """The checksum of the one packet that was changed, before and after."""
    at = before.index(AUTHENTICATE) - 4
    return before[at : at + 4 + len(AUTHENTICATE) - len(PASSWORD)], after[at : at + 4 + len(AUTHENTICATE) - len(PASSWORD)]


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("nano", [False, True])
def test_pcap_of_both_byte_orders_and_resolutions(order: str, nano: bool, tmp_path: Path) -> None:
    data = Talk().greet().say(HANDSHAKE).pcap(order=order, nano=nano)
    out, _ = scrubbed(data, tmp_path)
    assert out[:24] == data[:24]
    assert len(out) == len(data)
    assert PASSWORD not in out
    assert [one.time_ns for one in messages(out)] == [one.time_ns for one in messages(data)]


@pytest.mark.parametrize("order", ["<", ">"])
def test_pcapng_loses_comments_names_and_keys(order: str, tmp_path: Path) -> None:
    def option(code: int, value: bytes) -> bytes:
        return struct.pack(order + "HH", code, len(value)) + value + bytes(-len(value) & 3)

    packets = [Packet(one) for one in Talk().greet().say(HANDSHAKE).packets]
    start = struct.pack(order + "IHHq", 0x1A2B3C4D, 1, 0, 4_000) + option(2, b"my machine") + option(1, b"a comment") + bytes(4)
    described = struct.pack(order + "HHI", 1, 0, 262144) + option(2, b"eth-secret") + option(9, b"\x09") + option(3, b"office") + bytes(4)
    blocks = [block(0x0A0D0D0A, start, order), block(1, described, order)]
    for number, packet in enumerate(packets):
        more = option(1, b"look here: " + PASSWORD) + option(2, bytes(4)) + option(3, b"hash") + bytes(4) if number % 3 else b""
        blocks.append(enhanced(packet, ticks=packet.time_ns, order=order, options=more))
        if number == 4:
            blocks.append(block(4, struct.pack(order + "HH", 1, 12) + A + b"host.co\0" + bytes(4), order))
            blocks.append(block(0xA, struct.pack(order + "II", 0x544C534B, 8) + b"CLIENT_R", order))
            blocks.append(block(0xBAD, struct.pack(order + "I", 7) + PASSWORD, order))
            blocks.append(block(5, struct.pack(order + "III", 0, 0, 1) + option(1, b"a comment") + option(4, bytes(8)) + bytes(4), order))
    out, done = scrubbed(b"".join(blocks), tmp_path)
    assert done.left_out > 10
    for gone in (b"my machine", b"comment", b"eth-secret", b"office", b"look here", b"host.co", b"CLIENT_R", b"hash", PASSWORD):
        assert gone not in out
    assert [(one.name, one.time_ns, one.packets) for one in messages(out)] == [
        (one.name, one.time_ns, one.packets) for one in messages(b"".join(blocks))
    ]


def test_pcapng_of_several_sections_with_simple_and_old_packets(tmp_path: Path) -> None:
    packets = [Packet(one) for one in Talk().greet().say(HANDSHAKE).packets]
    little = [section(), interface(), *(simple(one) for one in packets[:5])]
    big = [section(">"), interface(order=">"), *(enhanced(one, order=">") for one in packets[5:])]
    data = b"".join([*little, *big])
    out, _ = scrubbed(data, tmp_path)
    assert names(out) == names(data)
    assert PASSWORD not in out


def test_packed_input_is_written_unpacked(tmp_path: Path) -> None:
    data = Talk().greet().say(HANDSHAKE).pcap()
    plain, _ = scrubbed(data, tmp_path)
    out, _ = scrubbed(gzip.compress(data), tmp_path, name="in.pcap.gz")
    assert out == plain
    with pytest.raises(UsageError, match="captures are written unpacked"):
        scrub(str(tmp_path / "in.pcap"), tmp_path / "out.pcap.gz", ScrubOptions(), Options())


def test_a_capture_whose_codec_is_missing_is_a_wrong_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packed = tmp_path / "packed.pcap"
    packed.write_bytes(bytes.fromhex("04224d18") + bytes(64))
    monkeypatch.setitem(sys.modules, "cramjam", None)
    assert main(["scrub", str(packed), str(tmp_path / "out.pcap")]) == main([str(packed)]) == 2


def test_the_output_is_its_owners_alone_and_never_the_input(tmp_path: Path) -> None:
    data = Talk().greet().say(HANDSHAKE).pcap()
    scrubbed(data, tmp_path)
    source, target = tmp_path / "in.pcap", tmp_path / "out"
    assert target.stat().st_mode & 0o777 == 0o600
    target.write_bytes(b"something older")
    scrub(str(source), target, ScrubOptions(), Options())
    assert target.read_bytes()[:4] == data[:4]
    (tmp_path / "soft").symlink_to(source)
    os.link(source, tmp_path / "hard")
    for name in ("in.pcap", "soft", "hard", "../" + tmp_path.name + "/in.pcap"):
        with pytest.raises(UsageError, match="is the input, which is never overwritten"):
            scrub(str(source), tmp_path / name, ScrubOptions(), Options())
    with pytest.raises(UsageError, match="cannot be written: no such file or directory"):
        scrub(str(source), tmp_path / "nowhere" / "x", ScrubOptions(), Options())
    with pytest.raises(UsageError, match="is not a file"):
        scrub(str(source), tmp_path, ScrubOptions(), Options())
    assert source.read_bytes() == data
    assert sorted(one.name for one in tmp_path.iterdir()) == ["hard", "in.pcap", "out", "soft"]


def test_what_is_no_capture_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"no capture")
    with pytest.raises(CaptureError):
        scrub(str(tmp_path / "x"), tmp_path / "out", ScrubOptions(), Options())
    assert [one.name for one in tmp_path.iterdir()] == ["x"]


def test_of_a_damaged_file_what_is_whole_is_written(tmp_path: Path) -> None:
    data = Talk().greet().say(HANDSHAKE).pcap()
    out, done = scrubbed(data[:-5], tmp_path)
    assert done.error is not None
    assert "cut off in packet 12" in str(done.error)
    assert names(out) == names(data)[:-1]
    packets = [Packet(one) for one in Talk().greet().say(HANDSHAKE).packets]
    out, done = scrubbed(pcapng(packets)[:-5], tmp_path)
    assert "cut off" in str(done.error)
    assert names(out) == names(data)[:-1]


# Where a secret may be besides its first place


def test_repeated_and_overlapping_copies(tmp_path: Path) -> None:
    talk = Talk().greet().say(HANDSHAKE[:5])
    size = len(AUTHENTICATE)
    talk.send(0, AUTHENTICATE, back=size)
    talk.send(0, AUTHENTICATE[10:], back=size - 10)
    talk.send(0, AUTHENTICATE[-9:], back=9)
    # other bytes at the same place, and one that probes
    talk.send(0, b"?" * (size - 9) + PASSWORD[-9:], back=size)
    talk.send(0, PASSWORD[-1:], back=1)
    talk.say(HANDSHAKE[5:])
    talk.send(0, AUTHENTICATE, back=size + sum(len(data) for side, data in HANDSHAKE[5:] if not side))
    data = talk.pcap()
    assert data.count(PASSWORD) == 4
    out, _ = scrubbed(data, tmp_path)
    assert not any(PASSWORD[at : at + 6] in out for at in range(len(PASSWORD) - 5))
    assert names(out) == names(data)


def test_in_a_frame_that_lacks_bytes(tmp_path: Path) -> None:
    talk = Talk().greet().say(HANDSHAKE[:4])
    talk.send(0, AUTHENTICATE[:15])
    gap = talk.segment(0, AUTHENTICATE[15:30])
    talk.numbers[0] += 15
    talk.send(0, AUTHENTICATE[30:])
    talk.say(HANDSHAKE[5:])
    data = talk.pcap()
    out, _ = scrubbed(data, tmp_path)
    assert not any(PASSWORD[at : at + 6] in out for at in range(len(PASSWORD) - 5))
    assert names(out) == names(data)
    # what was lost comes too late to be read
    late = Talk()
    late.packets = [*talk.packets, *(talk.segment(1, b"", ACK) for _ in range(80)), gap]
    out, _ = scrubbed(late.pcap(), tmp_path)
    assert not any(PASSWORD[at : at + 6] in out for at in range(len(PASSWORD) - 5))


def test_before_the_first_frame_that_is_recognised(tmp_path: Path) -> None:
    talk = Talk().say([(0, AUTHENTICATE[12:]), *HANDSHAKE[5:], declare(b"orders"), declare(b"orders", 6), declare(b"orders", 7)])
    data = talk.pcap()
    out, done = scrubbed(data, tmp_path)
    assert messages(data)
    assert not done.unread
    assert PASSWORD not in out
    assert names(out) == names(data)


def test_in_both_of_two_conversations_between_the_same_ports(tmp_path: Path) -> None:
    one = Talk().greet().say(HANDSHAKE)
    one.send(0, flags=FIN | ACK)
    one.send(1, flags=FIN | ACK)
    two = Talk(start=500_000).greet().say(HANDSHAKE)
    one.packets += two.packets
    data = one.pcap()
    assert {message.conversation for message in messages(data)} == {0, 1}
    out, _ = scrubbed(data, tmp_path)
    assert PASSWORD not in out
    assert names(out) == names(data)


@pytest.mark.parametrize("six", [False, True])
def test_in_fragments(six: bool, tmp_path: Path) -> None:
    src, dst = (bytes.fromhex("20010db8") + bytes(11) + b"\1", bytes.fromhex("20010db8") + bytes(11) + b"\2") if six else (A, B)
    whole = Talk().greet().say(HANDSHAKE)
    packets: list[bytes] = []
    for number, packet in enumerate(whole.packets):
        segment = packet[34:]
        ends = (src, dst) if segment[:2] == struct.pack(">H", 40_000) else (dst, src)
        segment = right(segment, *ends)
        pieces = [segment[at : at + 24] for at in range(0, len(segment), 24)]
        places = list(range(len(pieces)))
        random.Random(number).shuffle(places)
        for place in [*places, places[-1]]:
            more = place < len(pieces) - 1
            if six:
                head = struct.pack(">BBHI", 6, 0, place * 24 | more, number)
                packets.append(ethernet(ip6(head + pieces[place], src=ends[0], dst=ends[1], following=44)))
            else:
                made = ip4(pieces[place], src=ends[0], dst=ends[1], identity=number, offset=place * 24, more=more)
                packets.append(ethernet(right_ip(made)))
    data = pcap([Packet(one) for one in packets])
    out, _ = scrubbed(data, tmp_path, ScrubOptions(names=True))
    assert not any(PASSWORD[at : at + 6] in out for at in range(len(PASSWORD) - 5))
    assert USER not in out
    assert names(out) == names(data) == names(whole.pcap())
    if shutil.which("tshark"):
        assert bad_checksums(tmp_path / "out") == []


@st.composite
def broken(draw: st.DrawFn) -> bytes:
    """The handshake in segments of any size, some of them lost, repeated, swapped, or cut; perhaps from its middle on."""
    talk = Talk().greet()
    for side, data in [*HANDSHAKE, declare(b"orders"), (1, framed(struct.pack(">HHIH", 0x8001, 1, 5, 1)))]:
        at = 0
        while at < len(data):
            size = draw(st.sampled_from([1, 5, 12, 30, 200]))
            talk.send(side, data[at : at + size])
            at += size
    packets = talk.packets
    if draw(st.booleans()):
        packets = packets[draw(st.integers(0, len(packets) // 2)) :]
    chance = random.Random(draw(st.integers(0, 1 << 32)))
    lose, repeat, swap = (draw(st.sampled_from([0.0, 0.1, 0.3])) for _ in range(3))
    packets = [one for one in packets if chance.random() >= lose]
    packets = [one for one in packets for _ in range(1 + (chance.random() < repeat))]
    for at in range(1, len(packets)):
        if chance.random() < swap:
            packets[at - 1], packets[at] = packets[at], packets[at - 1]
    snap = draw(st.sampled_from([262_144, 262_144, 80]))
    return pcap([Packet(one[:snap], wire=len(one)) for one in packets])


@given(broken(), st.booleans())
def test_no_piece_of_the_password_is_left_of_whatever_was_read(tmp_path_factory: pytest.TempPathFactory, data: bytes, all_: bool) -> None:
    folder = tmp_path_factory.mktemp("scrub")
    out, done = scrubbed(data, folder, ScrubOptions(all_, all_, all_))
    if not done.unread:
        assert not any(PASSWORD[at : at + 6] in out for at in range(len(PASSWORD) - 5))
        # In a conversation without its beginning, skipped bytes may show earlier or later which side is the client. A frame that is hidden
        # completely is overwritten with its size, and then skipped
        assert sorted(one.name for one in messages(out) if one.fields) == sorted(one.name for one in messages(data) if one.fields)


# A secret elsewhere


@pytest.mark.parametrize(
    "body",
    [
        PASSWORD,
        b"so: " + PASSWORD + b"!",
        PASSWORD.hex().encode(),
        PASSWORD.hex().upper().encode(),
        b64encode(b"user:" + PASSWORD),
        b64encode(b"user12:" + PASSWORD + b"-"),
        PASSWORD.decode().encode("utf-16-le"),
        PASSWORD.decode().encode("utf-16-be"),
    ],
)
def test_where_a_secret_is_left_nothing_is_written(body: bytes, tmp_path: Path) -> None:
    data = Talk().greet().say([*HANDSHAKE, declare(b"orders"), publish(body)]).pcap()
    with pytest.raises(SecretLeft) as error:
        scrubbed(data, tmp_path)
    assert str(error.value) == (
        f"{tmp_path}/in.pcap: nothing was written, because 8 bytes or more of a secret also occur in packet 14; "
        "--overwrite-echoes, --payloads, --names overwrite more"
    )
    assert PASSWORD.decode() not in str(error.value)
    assert [one.name for one in tmp_path.iterdir()] == ["in.pcap"]
    out, _ = scrubbed(data, tmp_path, ScrubOptions(payloads=True))
    assert body not in out
    assert names(out) == names(data)
    out, done = scrubbed(data, tmp_path, ScrubOptions(echoes=True))
    assert done.parts["echo"] == 1
    assert left(out, body) == left(out, PASSWORD) == set()
    assert names(out) == names(data)
    if shutil.which("tshark"):
        assert bad_checksums(tmp_path / "out") == []


def left(data: bytes, secret: bytes, size: int = 12) -> set[bytes]:
    """What of a secret is left in a capture."""
    return {secret[at : at + size] for at in range(len(secret) - size + 1) if secret[at : at + size] in data}


def test_a_secret_in_what_nobody_reads_is_found(tmp_path: Path) -> None:
    talk = Talk().greet().say(HANDSHAKE)
    other = ethernet(ip4(struct.pack(">HHHH", 53, 53, 40, 0) + PASSWORD, protocol=17))
    talk.packets.append(other)
    with pytest.raises(SecretLeft, match="also occur in packet 13;"):
        scrubbed(talk.pcap(), tmp_path)
    out, _ = scrubbed(talk.pcap(), tmp_path, ScrubOptions(payloads=True))
    assert PASSWORD not in out


def test_a_secret_that_is_shown_as_a_name_is_none(tmp_path: Path) -> None:
    data = Talk().greet().say([*HANDSHAKE, declare(PASSWORD)]).pcap()
    out, _ = scrubbed(data, tmp_path)
    assert out.count(PASSWORD) == 1
    out, _ = scrubbed(data, tmp_path, ScrubOptions(names=True))
    assert PASSWORD not in out
    # the user name, which is a name
    same = [(side, one.replace(SASL, b"\0" + b"twice-the-same" + b"\0" + b"twice-the-same")) for side, one in HANDSHAKE]
    same[4] = 0, framed(struct.pack(">HHI", 0x13, 1, 3) + text(b"PLAIN") + struct.pack(">i", 30) + b"\0twice-the-same\0twice-the-same")
    out, _ = scrubbed(Talk().greet().say(same).pcap(), tmp_path)
    assert out.count(b"twice-the-same") == 1


def test_what_is_searched_is_found_across_blocks() -> None:
    data = bytearray(random.Random(1).randbytes(3 << 20))
    search = SecretSearch(pieces(PASSWORD))
    for place in (0, (1 << 20) - 5, (2 << 20) - 1, len(data) - len(PASSWORD)):
        data[place : place + len(PASSWORD)] = PASSWORD
        found = sorted(search.everywhere(bytes(data)))
        assert (found[0][0], found[-1][1]) == (place, place + len(PASSWORD))
        assert len(found) == len(PASSWORD) - 7
        data[place : place + len(PASSWORD)] = bytes(len(PASSWORD))
    assert not list(search.everywhere(bytes(data)))
    assert not list(search.everywhere(b""))
    assert not SecretSearch(pieces(b"shorter"))


@pytest.mark.parametrize("first", range(1, 8))
def test_a_piece_in_two_segments_is_found_wherever_they_meet(first: int) -> None:
    file = b"-" * 20 + PASSWORD[:first] + b"=" * 9 + PASSWORD[first:8] + b"-" * 20
    side = _Side(0, array("q", (0, 20 + first)), array("q", (0, 29 + first)), array("q", (20 + first, 28 - first)))
    assert list(side.across(SecretSearch(pieces(PASSWORD)), file)) == [(20, 20 + first), (29 + first, 37)]


@pytest.mark.parametrize("wide", [False, True])
def test_any_eight_bytes_are_found_whatever_is_around(wide: bool) -> None:
    chance = random.Random(3)
    for _ in range(200):
        secret = chance.randbytes(chance.randrange(16, 60))
        size = 16 if wide else 8
        at = chance.randrange(len(secret) - size + 1)
        part = secret[at : at + size]
        around = chance.randbytes(chance.randrange(20)), chance.randbytes(chance.randrange(20))
        data = around[0] + (part.decode("latin-1").encode("utf-16-le") if wide and at % 8 == 0 else part) + around[1]
        assert list(SecretSearch(pieces(secret)).within(data))


# What a secret may be split by, or stand in


@pytest.mark.parametrize("offset", [0, 2, 4, 15])
def test_a_segment_whose_header_is_not_true_is_overwritten(offset: int, tmp_path: Path) -> None:
    talk = Talk().greet().say(HANDSHAKE)
    again = bytearray(talk.segment(0, AUTHENTICATE, back=sum(len(data) for side, data in HANDSHAKE[4:] if not side)))
    again[46] = offset << 4
    talk.packets.append(bytes(again))
    if offset == 15:
        # as if the login were options, and then the end of the password data
        with pytest.raises(SecretLeft, match="in packet 13;"):
            scrubbed(talk.pcap(), tmp_path)
    out, done = scrubbed(talk.pcap(), tmp_path, ScrubOptions(echoes=offset == 15))
    assert left(out, PASSWORD, 4) == set()
    assert done.packets == 13
    assert names(out) == names(talk.pcap())


@pytest.mark.parametrize("byte", range(12, 54))
def test_a_copy_of_a_login_with_one_wrong_bit_in_its_headers(byte: int, tmp_path: Path) -> None:
    talk = Talk().greet().say(HANDSHAKE)
    for bit in range(8):
        copy = bytearray(talk.packets[6])
        copy[byte] ^= 1 << bit
        data = pcap([Packet(one) for one in (*talk.packets, bytes(copy))])
        for echoes in (False, True):
            try:
                out, _ = scrubbed(data, tmp_path, ScrubOptions(echoes=echoes, foreign=True))
            except SecretLeft:
                assert not echoes
            else:
                assert left(out, PASSWORD, 8) == set()


@pytest.mark.parametrize("cut", [0, 3, 7, 19])
def test_an_ip_header_that_is_not_true_is_overwritten(cut: int, tmp_path: Path) -> None:
    talk = Talk().greet().say(HANDSHAKE)
    again = bytearray(talk.packets[6])
    again[16:18] = struct.pack(">H", cut)
    again[14] = 0x45 if cut else 0x44
    out, _ = scrubbed(pcap([Packet(one) for one in (*talk.packets, bytes(again))]), tmp_path)
    assert left(out, PASSWORD, 4) == set()


@pytest.mark.parametrize("size", [1, 3, 7, 13])
@pytest.mark.parametrize("where", [0, 4, 11])
def test_in_another_protocol_over_segments(size: int, where: int, tmp_path: Path) -> None:

    def made(password: bytes) -> bytes:
        other = Talk(port=41_000).greet()
        said = b"POST / HTTP/1.1\r\n\r\n" + b"p" * where + password + b" and more"
        for at in range(0, len(said), size):
            other.send(0, said[at : at + size])
        # once more, late and in other pieces
        for at in reversed(range(0, len(said), 5)):
            other.packets.append(other.segment(0, said[at : at + 5], back=len(said) - at))
        talk = Talk().greet().say([(side, data.replace(PASSWORD, password)) for side, data in HANDSHAKE])
        talk.packets = [*other.packets, *talk.packets]
        return talk.pcap()

    with pytest.raises(SecretLeft, match="8 bytes or more of a secret also occur in packet"):
        scrubbed(made(PASSWORD), tmp_path)
    assert not (tmp_path / "out").exists()
    out, done = scrubbed(made(PASSWORD), tmp_path, ScrubOptions(echoes=True))
    assert out == made(b"x" * len(PASSWORD))
    assert (done.unread, bool(done.parts["echo"])) == (1, True)


def test_eight_bytes_are_enough_and_seven_anybodys(tmp_path: Path) -> None:
    for size in (7, 8):
        talk = Talk().greet().say(HANDSHAKE)
        talk.packets.append(ethernet(ip4(struct.pack(">HHHH", 53, 53, 16, 0) + PASSWORD[5 : 5 + size], protocol=17)))
        if size == 7:
            scrubbed(talk.pcap(), tmp_path)
        else:
            with pytest.raises(SecretLeft):
                scrubbed(talk.pcap(), tmp_path)


def test_a_name_that_is_shown_beside_a_secret_may_begin_it(tmp_path: Path) -> None:
    sasl = b"\0administrator\0administrator-2024"
    said = list(HANDSHAKE)
    said[4] = 0, framed(struct.pack(">HHI", 0x13, 1, 3) + text(b"PLAIN") + struct.pack(">i", len(sasl)) + sasl)
    out, _ = scrubbed(Talk().greet().say([*said, declare(b"administrator")]).pcap(), tmp_path)
    assert out.count(b"administrator") == 2
    with pytest.raises(SecretLeft):
        scrubbed(Talk().greet().say([*said, declare(b"istrator-2024")]).pcap(), tmp_path)


def vxlan(frame: bytes) -> bytes:
    return ethernet(ip4(struct.pack(">HHHH", 50_000, 4789, 16 + len(frame), 0) + b"\x08" + bytes(7) + frame, protocol=17))


@pytest.mark.parametrize(
    ("wrap", "what"),
    [
        (vxlan, "12 packets in VXLAN"),
        (lambda frame: ethernet(ip4(b"\0\0\x65\x58" + frame, protocol=47)), "12 packets in GRE"),
        (lambda frame: ethernet(ip4(frame[14:], protocol=4)), "12 packets in IP in IP"),
        (None, "12 packets of link type 147"),
    ],
)
def test_what_may_hold_connections_that_are_not_read_is_not_published(wrap: Any, what: str, tmp_path: Path) -> None:
    inside = Talk().greet().say(HANDSHAKE).packets
    data = pcap([Packet(one if wrap is None else wrap(one)) for one in inside], link=147 if wrap is None else 1)
    reason = f"because packets that are not decoded may contain secrets: {what}; --payloads empties them"
    with pytest.raises(SecretLeft, match=f"nothing was written, {reason}"):
        scrubbed(data, tmp_path)
    assert not (tmp_path / "out").exists()
    out, done = scrubbed(data, tmp_path, ScrubOptions(foreign=True))
    assert (out, done.foreign) == (data, 12)
    out, _ = scrubbed(data, tmp_path, ScrubOptions(payloads=True))
    assert PASSWORD not in out


def test_options_that_are_not_known_are_emptied(tmp_path: Path) -> None:
    kept = b"\x02\x04\x05\xb4\x01\x01\x08\x0a" + b"12345678"
    odd = b"\xfd\x0c" + b"experiment" + kept + b"\0hidden "
    assert len(odd) % 4 == 0
    talk = Talk().greet().say(HANDSHAKE)
    made = right(tcp(b"", seq=talk.numbers[0], ack=talk.numbers[1], options=odd))
    talk.packets.append(ethernet(right_ip_with_options(ip4(made, options=b"\x94\x04\0\0\x9e\x08secret"))))
    six = b"\x06\x01\x05\x02\0\0\x1e\x08whatever"
    talk.packets.append(ethernet(ip6(six + tcp(b"", sport=9, dport=9, options=kept), following=60)))
    out, _ = scrubbed(talk.pcap(), tmp_path)
    for gone in (b"experiment", b"hidden", b"secret", b"whatever"):
        assert gone not in out
    assert b"\xfd\x0c" + bytes(10) + kept + bytes(8) in out
    assert b"\x94\x04\0\0\x9e\x08" + bytes(6) in out
    assert b"\x06\x01\x05\x02\0\0\x1e\x08" + bytes(8) in out
    assert names(out) == names(talk.pcap())
    if shutil.which("tshark"):
        assert set(bad_checksums(tmp_path / "out")) <= set(bad_checksums(tmp_path / "in.pcap"))


def right_ip_with_options(packet: bytes) -> bytes:
    """An IPv4 packet with options and a right checksum."""
    size = (packet[0] & 15) * 4
    head = packet[:10] + bytes(2) + packet[12:size]
    return head[:10] + struct.pack(">H", 0xFFFF - _sum(head)) + head[12:] + packet[size:]


def test_what_is_behind_simple_packets_and_in_long_options_goes(tmp_path: Path) -> None:
    packets = [Packet(one) for one in Talk().greet().say(HANDSHAKE).packets]
    behind = [block(3, struct.pack("<I", len(one.data)) + one.data + bytes(-len(one.data) & 3) + b"left over") for one in packets]
    out, _ = scrubbed(b"".join([section(), interface(), *behind]), tmp_path)
    assert b"left" not in out
    assert names(out) == names(b"".join([section(), interface(), *map(simple, packets)]))
    note = struct.pack("<HH", 2, 12) + b"no flags 123" + struct.pack("<HHI", 2, 4, 1) + bytes(4)
    out, done = scrubbed(b"".join([section(), interface(), *(enhanced(one, options=note) for one in packets)]), tmp_path)
    assert b"no flags" not in out
    assert done.left_out >= len(packets)


# Names, prose, addresses


def test_equal_names_get_equal_replacements(tmp_path: Path) -> None:
    data = Talk().greet().say([*HANDSHAKE, declare(b"orders"), declare(b"prices", 6), declare(b"orders", 7), declare(USER, 8)]).pcap()
    out, done = scrubbed(data, tmp_path, ScrubOptions(names=True))
    streams = [one.fields["stream"] for one in messages(out) if one.name == "DeclarePublisher"]
    assert len(set(streams)) == 3
    assert streams[0] == streams[2]
    assert [len(one) for one in streams] == [6, 6, 6, len(USER)]
    # the user is one as well, by the name that the stream got
    sasl = next(
        one.fields["sasl_opaque_data"] for one in messages(out, show_secrets=True, bytes_as="raw") if one.name == "SaslAuthenticate"
    )
    assert sasl == b"\0" + streams[3].encode() + b"\0" + b"x" * len(PASSWORD)
    assert done.parts["name"] == 5
    assert all(one.fields["virtual_host"] == "/" for one in messages(out) if one.name == "Open" and one.kind == "request")


@pytest.mark.parametrize(("capture", "user"), [("java-auth-bad", b"tim"), ("java-auth-readonly", b"readonly")])
def test_users_of_mewbase_are_names(capture: str, user: bytes, tmp_path: Path) -> None:
    data = (GOLDEN / "mewbase" / f"{capture}.pcap").read_bytes()
    element = b"\2username\0" + struct.pack("<i", len(user) + 1) + user + b"\0"
    assert element in scrubbed(data, tmp_path)[0]
    out, _ = scrubbed(data, tmp_path, ScrubOptions(names=True))
    assert user not in out
    assert names(out) == names(data)
    instead = next(one.fields["frame"]["authInfo"]["username"] for one in messages(out) if one.name == "CONNECT")
    assert instead == {b"tim": "NA1", b"readonly": "NAME---1"}[user]


def test_replacements_have_the_same_length_and_differ() -> None:
    given_names = NameReplacements()
    made = [given_names.of(f"{number:03}".encode()) for number in range(500)]
    assert len(set(made)) == 500
    assert {len(one) for one in made} == {3}
    assert given_names.of(b"/") == b"/"
    assert given_names.of("ü".encode()) != "ü".encode()
    assert len(given_names.of(b"x" * 300)) == 300
    assert prose("Stream größe not found: 7!".encode()) == b"xxxxxx xxxxxxx xxx xxxxx: x!"


def test_addresses(tmp_path: Path) -> None:
    talk = Talk().greet().say(HANDSHAKE)
    talk.packets.append(ethernet(right_ip(ip4(struct.pack(">HHHH", 53, 53, 15, 0xBEEF) + b"example", protocol=17))))
    talk.packets.append(ethernet(right_ip(ip4(b"\x08\0\xbe\xef" + A + B, protocol=1))))
    talk.packets.append(ethernet(bytes(8) + b"\2\0\0\0\0\1" + A + bytes(6) + B, kind=0x0806))
    talk.packets.append(ethernet(ip6(bytes.fromhex("8000beef") + b"hello", following=58)))
    data = talk.pcap()
    out, _ = scrubbed(data, tmp_path, ScrubOptions(addresses=True))
    for gone in (A, B, b"example", b"hello"):
        assert gone not in out
    ends = {(one.src, one.dst) for one in messages(out)}
    assert ends == {("10.0.0.1:40000", "10.0.0.2:5552"), ("10.0.0.2:5552", "10.0.0.1:40000")}
    assert names(out) == names(data)
    if shutil.which("tshark"):
        assert bad_checksums(tmp_path / "out") == []


def test_addresses_that_name_no_machine_stay() -> None:
    given_addresses = AddressReplacements()
    for kept in (b"\x7f\0\0\1", b"\xff" * 4, bytes(4), b"\xe0\0\0\1", bytes(15) + b"\1", b"\xff\2" + bytes(14)):
        assert given_addresses.network(kept) == kept
    one, two = given_addresses.network(A), given_addresses.network(B)
    assert given_addresses.network(A) == one != two
    assert given_addresses.hardware(b"\xff" * 6) == b"\xff" * 6
    assert given_addresses.hardware(bytes(6)) == bytes(6)
    assert given_addresses.hardware(b"\x01\0\x5e\0\0\1")[0] & 1


# Checksums


def tcp_sum(data: bytes, packet: int = 6) -> int:
    """The TCP checksum of the packet with the password."""
    at = data.index(b"\x00\x13\x00\x01\x00\x00\x00\x03") - 4
    return int.from_bytes(data[at - 4 : at - 2], "big")


def test_a_right_checksum_is_made_right_again(tmp_path: Path) -> None:
    out, _ = scrubbed(Talk().greet().say(HANDSHAKE).pcap(), tmp_path)
    if shutil.which("tshark"):
        assert bad_checksums(tmp_path / "out") == []
    expected = [(side, data.replace(PASSWORD, b"x" * len(PASSWORD))) for side, data in HANDSHAKE]
    assert out == Talk().greet().say(expected).pcap()


def test_a_wrong_one_and_one_for_a_network_card_to_fill_in_stay(tmp_path: Path) -> None:
    out, _ = scrubbed(Talk(good=False).greet().say(HANDSHAKE).pcap(), tmp_path)
    assert tcp_sum(out) == 0xBAD
    talk = Talk(good=False).greet().say(HANDSHAKE[:4])
    talk.send(0, AUTHENTICATE)
    packet = bytearray(talk.packets[-1])
    partial = _pseudo((A, B), 6, 20 + len(AUTHENTICATE))
    packet[50:52] = partial.to_bytes(2, "big")
    talk.packets[-1] = bytes(packet)
    for cut in (len(packet), len(packet) - 5):
        packets = [*(Packet(one) for one in talk.packets[:-1]), Packet(bytes(packet[:cut]), wire=len(packet))]
        out, _ = scrubbed(pcap(packets), tmp_path)
        assert PASSWORD[:10] not in out
        assert tcp_sum(out) == partial


@pytest.mark.parametrize("cut", [1, 2, 7, 8])
def test_that_of_a_packet_that_was_cut_stays_true(cut: int, tmp_path: Path) -> None:
    """A longer frame, of which the end was not captured: the checksum is that of the whole with the password overwritten."""
    talk = Talk().greet().say(HANDSHAKE[:4])
    rest = HANDSHAKE[8][1] + b"and more of it"
    talk.send(0, AUTHENTICATE + rest)
    packet = talk.packets[-1]
    packets = [*(Packet(one) for one in talk.packets[:-1]), Packet(packet[:-cut], wire=len(packet))]
    out, _ = scrubbed(pcap(packets), tmp_path)
    again = Talk().greet().say(HANDSHAKE[:4])
    again.send(0, out[out.index(AUTHENTICATE[:20]) :] + packet[-cut:])
    assert PASSWORD not in out
    assert tcp_sum(out) == tcp_sum(again.pcap())


def test_sums_of_protocols_follow_their_bodies(tmp_path: Path) -> None:
    """Chunks, messages, batches and requests, in every layout that has them."""
    for family, case in (
        ("rabbitmq-stream", "credit_flow_405"),
        ("iggy", "seed-all"),
        ("iggy", "py050-basic"),
        ("iggy", "py080-basic"),
        ("iggy", "py090d5-basic"),
    ):
        data = (GOLDEN / family / f"{case}.pcap").read_bytes()
        before = [one for one in messages(data) if any("checksum" in note for note in one.notes)]
        out, done = scrubbed(data, tmp_path, ScrubOptions(payloads=True, names=True))
        assert done.parts["payload"]
        after = [one.notes for one in messages(out) if any("checksum" in note for note in one.notes)]
        assert after == [one.notes for one in before]


def test_a_sum_that_was_wrong_stays_wrong(tmp_path: Path) -> None:
    found = frames(GOLDEN / "rabbitmq-stream" / "credit_flow_405.pcap")
    index = next(at for at, frame in enumerate(found) if frame.name == "Deliver")
    data = found[index].data
    found[index] = found[index]._replace(data=data[:-1] + bytes((data[-1] ^ 1,)))
    out, _ = scrubbed(rebuilt(found), tmp_path, ScrubOptions(payloads=True))
    wrong = [one for one in messages(out) if any(note.startswith("checksum of the chunk") for note in one.notes)]
    assert len(wrong) == 1


# Other things


def test_conversations_of_other_protocols(tmp_path: Path) -> None:
    talk = Talk(port=41_000).greet().say([(0, b"GET / HTTP/1.1\r\nAuthorization: Basic abcdefgh\r\n\r\n"), (1, b"HTTP/1.1 200 OK\r\n\r\n")])
    data = talk.pcap()
    out, done = scrubbed(data, tmp_path)
    assert (out, done.unread) == (data, 1)
    out, done = scrubbed(data, tmp_path, ScrubOptions(payloads=True))
    assert b"HTTP" not in out
    assert done.unread == 0
    assert len(out) == len(data)


def test_what_fills_frames_up_is_emptied(tmp_path: Path) -> None:
    talk = Talk().greet().say(HANDSHAKE)
    packets = [one + b"left over from something" for one in talk.packets]
    data = pcap([Packet(one) for one in packets])
    out, _ = scrubbed(data, tmp_path, ScrubOptions(names=True))
    assert b"left over" not in out
    assert names(out) == names(data)
    packets = [one + PASSWORD for one in talk.packets]
    out, _ = scrubbed(pcap([Packet(one) for one in packets]), tmp_path)
    assert PASSWORD not in out


def test_compressed_bytes_are_overwritten_as_a_whole(tmp_path: Path) -> None:
    data = (GOLDEN / "rabbitmq-stream" / "subbatch_compressed_405.pcap").read_bytes()
    out, done = scrubbed(data, tmp_path, ScrubOptions(payloads=True))
    assert done.packed > 0
    assert names(out) == names(data)
    packed = [one for one in messages(out) if any("left as it is" in note for note in one.notes)]
    assert len(packed) == done.packed
    # what nobody asked to overwrite still unpacks
    out, done = scrubbed(data, tmp_path)
    assert done.packed == 0
    assert not any("left as it is" in note for one in messages(out) for note in one.notes)


def test_the_names_of_fields_in_events_are_names(tmp_path: Path) -> None:
    data = (GOLDEN / "mewbase" / "java-types.pcap").read_bytes()
    out, done = scrubbed(data, tmp_path, ScrubOptions(payloads=True))
    assert done.parts["key"]
    event = next(one.fields["frame"]["event"] for one in messages(out) if one.name == "PUB")
    was = next(one.fields["frame"]["event"] for one in messages(data) if one.name == "PUB")
    assert [type(one) for one in event.values()] == [type(one) for one in was.values()]
    assert set(event).isdisjoint(was)


def test_an_unknown_capture_without_packets(tmp_path: Path) -> None:
    out, done = scrubbed(pcap([]), tmp_path)
    assert (out, done.packets) == (pcap([]), 0)


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    from streamdump.cli.app import main
    from streamdump.cli.exits import ExitCode

    monkeypatch.chdir(tmp_path)
    data = Talk().greet().say([*HANDSHAKE, declare(b"orders"), publish(b"a body")]).pcap()
    Path("in.pcap").write_bytes(data)
    assert main(["scrub", "in.pcap", "out.pcap"]) == ExitCode.DONE
    out, err = capsys.readouterr()
    assert (out, err) == ("", "streamdump: out.pcap: 14 packets, 12 messages; overwritten: 1 secret\n")
    assert main(["scrub", "in.pcap", "out.pcap", "--payloads", "--names", "--addresses"]) == ExitCode.DONE
    assert capsys.readouterr().err == "streamdump: out.pcap: 14 packets, 12 messages; overwritten: 1 secret, 1 body, 2 names\n"
    Path("in.pcap").write_bytes(Talk().greet().say([*HANDSHAKE, publish(PASSWORD)]).pcap())
    assert main(["scrub", "in.pcap", "gone.pcap"]) == ExitCode.USAGE
    assert "nothing was written" in capsys.readouterr().err
    assert not Path("gone.pcap").exists()
    assert main(["scrub", "in.pcap", "out.pcap", "--overwrite-echoes"]) == ExitCode.DONE
    assert "overwritten: 1 secret, 1 copy of a secret\n" in capsys.readouterr().err
    short = list(HANDSHAKE)
    sasl = b"\0" + USER + b"\0short"
    short[4] = 0, framed(struct.pack(">HHI", 0x13, 1, 3) + text(b"PLAIN") + struct.pack(">i", len(sasl)) + sasl)
    Path("in.pcap").write_bytes(Talk().greet().say(short).pcap())
    assert main(["scrub", "in.pcap", "out.pcap"]) == ExitCode.DONE
    assert "secrets of 5 bytes are too short to search for copies of them\n" in capsys.readouterr().err
    Path("in.pcap").write_bytes(pcap([Packet(vxlan(one)) for one in Talk().greet().say(HANDSHAKE).packets]))
    assert main(["scrub", "in.pcap", "gone.pcap"]) == ExitCode.USAGE
    assert main(["scrub", "in.pcap", "out.pcap", "--leave-foreign"]) == ExitCode.DONE
    capsys.readouterr()
    Path("in.pcap").write_bytes(data[:-3])
    assert main(["scrub", "in.pcap", "out.pcap"]) == ExitCode.UNREADABLE
    assert "everything complete was written" in capsys.readouterr().err
    assert main(["scrub", "nothing.pcap", "out.pcap"]) == ExitCode.UNREADABLE
    assert main(["scrub", "in.pcap"]) == ExitCode.USAGE
    capsys.readouterr()
    assert main(["scrub", "in.pcap", "-"]) == ExitCode.USAGE
    assert "can only be written to a file" in capsys.readouterr().err
    assert not Path("-").exists()


def test_standard_input(tmp_path: Path) -> None:
    data = Talk().greet().say(HANDSHAKE).pcap()
    expected, _ = scrubbed(data, tmp_path)
    for packed in (data, gzip.compress(data)):
        argv = [sys.executable, "-m", "streamdump", "scrub", "-", str(tmp_path / "piped.pcap")]
        root = Path(__file__).parents[2]
        done = subprocess.run(argv, input=packed, capture_output=True, timeout=60, check=False, cwd=root)
        assert done.returncode == 0, done.stderr
        assert (tmp_path / "piped.pcap").read_bytes() == expected


@pytest.mark.witness
@needs_tshark
def test_a_new_frame_of_a_client_is_still_one(tmp_path: Path) -> None:
    """The helper of these tests is right: tshark agrees with its checksums."""
    (tmp_path / "x.pcap").write_bytes(Talk().greet().say(HANDSHAKE).pcap())
    assert bad_checksums(tmp_path / "x.pcap") == []
    assert isinstance(frames(GOLDEN / "iggy" / "seed-ids.pcap")[0], Frame)


WAITING = """
import os, signal, sys, time
import streamdump.scrub.run as run
from streamdump.cli.app import main
signal.signal(signal.SIGHUP, signal.SIG_DFL)
if sys.argv[1] == "beside":
    os.O_TMPFILE = 0
def wait(*args):
    print("unscrubbed", flush=True)
    time.sleep(600)
run._overwrite = wait
main(["scrub", "in.pcap", "out.pcap"])
"""


@pytest.mark.parametrize(
    ("way", "number"),
    [("beside", signal.SIGTERM), ("beside", signal.SIGHUP), ("no name", signal.SIGTERM), ("no name", signal.SIGKILL)],
)
def test_what_ends_it_leaves_no_copy_with_secrets(way: str, number: signal.Signals, tmp_path: Path) -> None:
    (tmp_path / "in.pcap").write_bytes(Talk().greet().say(HANDSHAKE).pcap())
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    argv = [sys.executable, "-c", WAITING, way]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, cwd=tmp_path, env=environment) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == b"unscrubbed\n"
        running.send_signal(number)
        assert running.wait(PATIENCE) == -number
    assert [one.name for one in tmp_path.iterdir()] == ["in.pcap"]


@pytest.mark.parametrize("step", [4, pytest.param(1, marks=pytest.mark.sweep)], ids=["some", "all"])
@pytest.mark.parametrize("named", [False, True], ids=["no name", "beside"])
@pytest.mark.parametrize("before", [None, b"what was there"], ids=["new", "replaced"])
def test_a_kill_at_any_moment_leaves_all_of_it_or_nothing(before: bytes | None, named: bool, step: int, tmp_path: Path) -> None:
    source, target = tmp_path / "in.pcap", tmp_path / "out" / "out.pcap"
    source.write_bytes(Talk().greet().say(HANDSHAKE).pcap())
    target.parent.mkdir()

    def run(last: int) -> tuple[int, int]:
        """How a process ends that is killed with this call of a function, and how many calls it was of."""
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            calls = 0

            def count(frame: Any, event: str, argument: Any) -> None:
                nonlocal calls
                calls += 1
                if calls == last:
                    os.kill(os.getpid(), signal.SIGKILL)

            if named:
                os.O_TMPFILE = 0  # type: ignore[misc]
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            sys.setprofile(count)
            try:
                main(["scrub", str(source), str(target)])
            finally:
                sys.setprofile(None)
                os.write(writing, calls.to_bytes(8, "big"))
                os._exit(0)
        os.close(writing)
        _, status = os.waitpid(child, 0)
        count_of = int.from_bytes(os.read(reading, 8), "big")
        os.close(reading)
        return status, count_of

    status, calls = run(0)
    scrubbed = target.read_bytes()
    assert status == 0 and len(scrubbed) > 500 and PASSWORD not in scrubbed
    chance = random.Random(7)
    # The last calls rename and close
    moments = [*chance.sample(range(1, calls), 30)[::step], *range(calls - 400, calls, 20 * step)]
    ended = set()
    for moment in moments:
        target.unlink(missing_ok=True)
        if before is not None:
            target.write_bytes(before)
        status, _ = run(moment)
        assert status in (0, signal.SIGKILL)
        left = target.read_bytes() if target.exists() else None
        assert left in (before, scrubbed), moment
        ended.add(left == scrubbed)
        others = [one for one in target.parent.iterdir() if one != target]
        assert len(others) <= named + (left == before)
        assert all(one.stat().st_mode & 0o777 == 0o600 for one in others)
        for one in others:
            one.unlink()
    assert ended == {False, True}
