"""pcap files: byte orders, time units, damage."""

from __future__ import annotations

import io
import struct

import dpkt
import pytest

from streamdump.capture import blocks as blocks_module
from streamdump.capture.pcap import size_limit
from streamdump.errors import CaptureError
from tests.support.frames import START_NS, Packet, bytes_of, ethernet, ip4, pcap, reader, segments, tcp

PACKETS = [Packet(ethernet(ip4(tcp(bytes([n]) * n, seq=n))), START_NS + n * 1_001_000) for n in range(1, 30)]


def damaged(data: bytes) -> tuple[int, CaptureError]:
    """The number of packets before the error, and the error."""
    count = 0
    with pytest.raises(CaptureError) as caught:
        for batch in reader(data):
            count += len(batch)
    return count, caught.value


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("nano", [False, True])
def test_byte_orders_and_time_units_are_told_by_the_magic(order: str, nano: bool) -> None:
    found = list(reader(pcap(PACKETS, order=order, nano=nano)))
    assert len(found) == 1
    assert [packet.time_ns for packet in found[0]] == [one.time_ns for one in PACKETS]
    assert [packet.number for packet in found[0]] == list(range(1, 30))
    assert [(packet.captured, packet.wire) for packet in found[0]] == [(len(one.data), len(one.data)) for one in PACKETS]
    assert [*map(bytes_of, found[0])] == [one.data for one in PACKETS]


def test_nanoseconds_survive() -> None:
    ((packet,),) = reader(pcap([Packet(b"", START_NS + 123_456_789)], nano=True))
    assert packet.time_ns == START_NS + 123_456_789


def test_dpkt_reads_the_same_packets() -> None:
    file = pcap(PACKETS)
    assert [data for _, data in dpkt.pcap.Reader(io.BytesIO(file))] == [one.data for one in PACKETS]
    written = io.BytesIO()
    writer = dpkt.pcap.Writer(written, snaplen=65535, nano=True)
    for one in PACKETS:
        writer.writepkt_time(one.data, one.time_ns // 1000 / 1_000_000)
    assert len(segments(written.getvalue())) == len(PACKETS)


def test_flags_above_the_link_type_are_ignored() -> None:
    file = bytearray(pcap(PACKETS))
    struct.pack_into("<I", file, 20, 0x5400_0001)  # frame check sequences of 10 * 16 bits, if anything
    opened = reader(bytes(file))
    assert [packet.link for packets in opened for packet in packets] == [1] * 29


def test_blocks_end_anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = segments(pcap(PACKETS))
    for size in (1, 7, 100, 333):
        monkeypatch.setattr(blocks_module, "BLOCK", size)
        monkeypatch.setattr(blocks_module, "PIECE", 5)
        assert segments(pcap(PACKETS)) == whole


@pytest.mark.parametrize("order", ["<", ">"])
def test_modified_header_is_refused_with_its_name(order: str) -> None:
    file = struct.pack(order + "I", 0xA1B2CD34) + pcap(PACKETS, order=order)[4:]
    with pytest.raises(CaptureError, match="modified"):
        reader(file)


def test_other_version_is_refused() -> None:
    file = bytearray(pcap(PACKETS))
    struct.pack_into("<H", file, 4, 3)
    assert "version 3.4" in str(damaged(bytes(file))[1])


def test_every_truncation_gives_all_whole_packets_and_one_error() -> None:
    few = PACKETS[:3]
    file = pcap(few)
    ends = [24]
    for one in few:
        ends.append(ends[-1] + 16 + len(one.data))
    for size in range(24, len(file)):
        if size in ends:
            assert sum(map(len, reader(file[:size]))) == ends.index(size)
            continue
        count, error = damaged(file[:size])
        assert count == max(n for n, end in enumerate(ends) if end <= size)
        assert (error.file, error.offset, error.packet) == ("test", ends[count], count or None)
        assert f"cut off in packet {count + 1}" in str(error)


def test_error_is_raised_once() -> None:
    opened = reader(pcap(PACKETS)[:-1])
    with pytest.raises(CaptureError):
        list(opened)
    assert list(opened) == []


def test_length_of_all_ones_allocates_nothing() -> None:
    file = bytearray(pcap(PACKETS))
    at = 24 + 16 + len(PACKETS[0].data)
    struct.pack_into("<I", file, at + 8, 0xFFFF_FFFF)
    count, error = damaged(bytes(file))
    assert (count, error.offset, error.packet) == (1, at, 1)
    assert "4294967295 bytes" in str(error)


def test_length_beyond_the_largest_packet_is_damage_even_when_so_much_follows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streamdump.capture.pcap.ALWAYS", 100)
    file = pcap([PACKETS[0], Packet(bytes(200)), PACKETS[1]], snap=100)
    count, error = damaged(file)
    assert (count, error.packet) == (1, 1)
    assert "200 bytes" in str(error)


def test_packet_longer_than_the_snap_length_of_the_header_is_read() -> None:
    frame = ethernet(ip4(tcp(bytes(60_000))))
    assert [len(one.data) for one in segments(pcap([Packet(frame)], snap=1500))] == [60_000]


@pytest.mark.parametrize(("snap", "limit"), [(0, 256 << 20), (96, 16 << 20), (20 << 20, 20 << 20), (0xFFFF_FFFF, 256 << 20)])
def test_how_long_a_record_may_be(snap: int, limit: int) -> None:
    assert size_limit(snap) == limit


def test_wire_length_below_the_captured_one_is_corrected() -> None:
    ((packet,),) = reader(pcap([Packet(PACKETS[0].data, wire=0)]))
    assert packet.wire == len(PACKETS[0].data)


@pytest.mark.parametrize("nano", [False, True])
def test_a_capture_that_was_appended_is_named_and_gives_no_packet(nano: bool) -> None:
    one = pcap([Packet(b"abc"), Packet(b"", 0, 0)], nano=nano)
    count, error = damaged(one + one)
    assert (count, error.offset, error.packet) == (2, len(one), 2)
    assert "another capture was appended" in str(error)


def test_capture_without_packets_is_no_error() -> None:
    assert list(reader(pcap([]))) == []


def test_empty_packets_are_packets() -> None:
    assert sum(map(len, reader(pcap([Packet(b"")] * 5)))) == 5
