"""pcapng files: sections, interfaces, blocks, damage."""

from __future__ import annotations

import io
import struct

import dpkt
import pytest

from streamdump.capture import blocks as blocks_module
from streamdump.errors import CaptureError
from tests.support.frames import (
    NULL,
    SLL2,
    START_NS,
    Packet,
    block,
    enhanced,
    ethernet,
    interface,
    ip4,
    obsolete,
    pcapng,
    reader,
    section,
    segments,
    simple,
    sll2,
    tcp,
)
from tests.support.work import peak, steps

PACKETS = [Packet(ethernet(ip4(tcp(bytes([n]) * n, seq=n))), START_NS + n * 1_001_000) for n in range(1, 12)]
UNKNOWN = block(0x0BAD, b"never heard of")
NAMES = block(4, bytes(4))
STATISTICS = block(5, bytes(12))


def times(*blocks: bytes) -> list[int]:
    return [packet.time_ns for packets in reader(b"".join(blocks)) for packet in packets]


def damaged(*blocks: bytes) -> tuple[int, CaptureError]:
    opened = reader(b"".join(blocks))
    with pytest.raises(CaptureError) as caught:
        list(opened)
    return opened.packets, caught.value


@pytest.mark.parametrize("order", ["<", ">"])
def test_both_byte_orders(order: str) -> None:
    assert [one.seq for one in segments(pcapng(PACKETS, order=order))] == list(range(1, 12))
    assert times(pcapng(PACKETS, order=order)) == [one.time_ns for one in PACKETS]


def test_dpkt_reads_the_same_packets() -> None:
    file = b"".join([section(), interface(), *map(enhanced, PACKETS)])
    assert [data for _, data in dpkt.pcapng.Reader(io.BytesIO(file))] == [one.data for one in PACKETS]
    written = io.BytesIO()
    writer = dpkt.pcapng.Writer(written)
    for one in PACKETS:
        writer.writepkt(one.data, ts=one.time_ns / 1e9)
    assert [one.seq for one in segments(written.getvalue())] == list(range(1, 12))


def test_blocks_end_anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    file = b"".join([pcapng(PACKETS), UNKNOWN, pcapng(PACKETS, order=">")])
    whole = segments(file)
    assert len(whole) == 22
    for size in (1, 7, 100, 333):
        monkeypatch.setattr(blocks_module, "BLOCK", size)
        monkeypatch.setattr(blocks_module, "PIECE", 5)
        assert segments(file) == whole


def test_byte_order_changes_between_sections() -> None:
    file = b"".join(pcapng([one], order=order) for one, order in zip(PACKETS, "<><><<>>><<", strict=True))
    assert [one.seq for one in segments(file)] == list(range(1, 12))
    assert [one.number for one in segments(file)] == list(range(1, 12))


def test_each_interface_has_its_own_link_type() -> None:
    packet = ip4(tcp(seq=9))
    file = b"".join(
        [
            section(),
            interface(1),
            interface(SLL2),
            enhanced(Packet(ethernet(packet))),
            interface(NULL),
            enhanced(Packet(bytes.fromhex("02000000") + packet), index=2),
            enhanced(Packet(sll2(packet)), index=1),
        ]
    )
    opened = reader(file)
    assert [packet.link for packets in opened for packet in packets] == [1, NULL, SLL2]
    assert [one.seq for one in segments(file)] == [9, 9, 9]


def test_interfaces_of_an_earlier_section_are_forgotten() -> None:
    count, error = damaged(section(), interface(), interface(), section(), interface(), enhanced(PACKETS[0]), enhanced(PACKETS[1], index=1))
    assert count == 1
    assert "names interface 1, the section has 1" in str(error)


@pytest.mark.parametrize(
    ("resolution", "ticks", "expected"),
    [
        (None, 1_700_000_000_123_456, 1_700_000_000_123_456_000),
        (0, 1_700_000_000, 1_700_000_000_000_000_000),
        (3, 1_700_000_000_123, 1_700_000_000_123_000_000),
        (6, 1_700_000_000_123_456, 1_700_000_000_123_456_000),
        (9, 1_700_000_000_123_456_789, 1_700_000_000_123_456_789),
        (10, 17_000_000_001_234_567_890, 1_700_000_000_123_456_789),
        (12, 1_700_000_123_456_789_012, 1_700_000_123_456_789),
        (0x80 | 10, 1_700_000_000 << 10 | 512, 1_700_000_000_500_000_000),
        (0x80 | 20, 1_700_000_000 << 20 | 1, 1_700_000_000_000_000_953),
        (0x80 | 62, 1 << 62 | 1 << 61, 1_500_000_000),
        (127, 1 << 62, 0),
        (0, (1 << 63) - 1, 9_223_372_035_000_000_000),
        (9, (1 << 63) - 1, 9_223_372_035_000_000_000),
        (0xFF, (1 << 63) - 1, 0),
    ],
)
def test_time_resolutions(resolution: int | None, ticks: int, expected: int) -> None:
    for order in "<>":
        packet = enhanced(PACKETS[0], ticks=ticks, order=order)
        assert times(section(order), interface(resolution=resolution, order=order), packet) == [expected]


@pytest.mark.parametrize(
    ("offset", "expected"), [(3600, START_NS + 3600 * 10**9), (-3600, START_NS - 3600 * 10**9), (-(1 << 63), 0), ((1 << 63) - 1, None)]
)
def test_time_offsets(offset: int, expected: int | None) -> None:
    found = times(section(), interface(offset=offset), enhanced(Packet(b"", START_NS)))
    assert found == [9_223_372_035_000_000_000 if expected is None else expected]


def test_interfaces_have_their_own_resolution_and_offset() -> None:
    file = [section(), interface(resolution=9), interface(offset=10), enhanced(Packet(b"", 5000)), enhanced(Packet(b"", 5000), index=1)]
    assert times(*file) == [5, 10_000_005_000]


def test_simple_packets_have_the_time_before_them() -> None:
    first = simple(PACKETS[0])
    assert times(section(), interface(), first, enhanced(PACKETS[1]), simple(PACKETS[2]), simple(PACKETS[3])) == [
        0,
        *[PACKETS[1].time_ns] * 3,
    ]
    assert times(section(), interface(), simple(Packet(b""))) == [0]


def test_simple_packets_are_as_long_as_the_snap_length() -> None:
    frame = ethernet(ip4(tcp(bytes(100))))
    packet = Packet(frame[:68], wire=len(frame))
    (segment,) = segments(section() + interface(snap=68) + simple(packet))
    assert (segment.data, segment.wire) == (bytes(14), 100)
    # Without a snap length the rest of the block is taken, which a writer that cuts must fill up.
    assert segments(section() + interface(snap=0) + simple(packet))[0].data == bytes(14)


def test_simple_packet_without_an_interface_is_damage() -> None:
    assert "names interface 0, the section has 0" in str(damaged(section(), simple(PACKETS[0]))[1])


@pytest.mark.parametrize("order", ["<", ">"])
def test_obsolete_packet_blocks(order: str) -> None:
    mixed = [
        interface(order=order),
        obsolete(PACKETS[0], order=order),
        enhanced(PACKETS[1], order=order),
        obsolete(PACKETS[2], index=1, order=order),
    ]
    file = b"".join([section(order), interface(order=order), *mixed])
    assert times(file) == [one.time_ns for one in PACKETS[:3]]
    assert [one.seq for one in segments(file)] == [1, 2, 3]


def test_unknown_blocks_are_skipped() -> None:
    assert [
        one.seq
        for one in segments(
            b"".join([section(), UNKNOWN, interface(), NAMES, enhanced(PACKETS[0]), UNKNOWN, STATISTICS, enhanced(PACKETS[1])])
        )
    ] == [1, 2]


def test_options_of_packets_are_skipped() -> None:
    comment = struct.pack("<HH4sI", 1, 4, b"note", 0)
    assert [one.data for one in segments(section() + interface() + enhanced(PACKETS[4], options=comment))] == [bytes([5]) * 5]


def test_broken_options_of_an_interface_are_left() -> None:
    broken = block(1, struct.pack("<HHI", 1, 0, 0) + struct.pack("<HHB", 9, 200, 9))
    assert times(section(), broken, enhanced(PACKETS[0])) == [PACKETS[0].time_ns]


@pytest.mark.parametrize("order", "<>")
def test_length_that_does_not_count_what_fills_a_block_up(order: str) -> None:
    """As Wireshark reads it."""
    packets = [one for one in PACKETS if len(one.data) % 4]
    blocks = []
    for one in packets:
        whole = enhanced(one, order=order)
        said = struct.pack(order + "I", len(whole) - (-len(one.data) % 4))
        blocks.append(whole[:4] + said + whole[8:-4] + said)
    file = b"".join([section(order), interface(order=order), *blocks])
    assert [one.seq for one in segments(file)] == [at for at, one in enumerate(PACKETS, 1) if one in packets]


def test_large_unknown_blocks_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streamdump.capture.pcapng.ALWAYS", 1000)
    for size in (900, 1000, 1100, 5000):
        large = block(0x0BAD, bytes(size))
        for piece in (64, 1 << 20):
            monkeypatch.setattr(blocks_module, "BLOCK", piece)
            file = b"".join([section(), interface(), enhanced(PACKETS[0]), large, enhanced(PACKETS[1])])
            assert [one.seq for one in segments(file)] == [1, 2]
            assert [one.seq for one in segments(file[: -len(enhanced(PACKETS[1]))])] == [1]
            count, error = damaged(file[: -len(enhanced(PACKETS[1])) - 1])
            assert count == 1
            assert "1 bytes are missing" in str(error)


def test_every_truncation_gives_all_whole_packets_and_one_error() -> None:
    parts = [section(), interface(), enhanced(PACKETS[0]), UNKNOWN, simple(PACKETS[1]), enhanced(PACKETS[2])]
    file = b"".join(parts)
    ends = [sum(map(len, parts[:n])) for n in range(len(parts) + 1)]
    packets = [0, 0, 0, 1, 1, 2, 3]
    for size in range(4, len(file)):
        whole = max(n for n, end in enumerate(ends) if end <= size)
        if size in ends:
            opened = reader(file[:size])
            list(opened)
            assert opened.packets == packets[whole]
            continue
        count, error = damaged(file[:size])
        assert count == packets[whole]
        assert (error.offset, error.packet) == (ends[whole], count or None)


def changed(data: bytes, at: int, value: int) -> bytes:
    return data[:at] + struct.pack("<I", value) + data[at + 4 :]


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (changed(enhanced(PACKETS[1]), 4, 0xFFFF_FFFC), "claims 4294967292 bytes"),
        (changed(enhanced(PACKETS[1]), 4, 0xFFFF_FFFF), "claims 4294967295 bytes"),
        (changed(enhanced(PACKETS[1]), 4, 0), "claims 0 bytes"),
        (changed(enhanced(PACKETS[1]), 4, 28), "claims 28 bytes"),
        (changed(UNKNOWN, 4, 0), "claims 0 bytes"),
        (changed(UNKNOWN, 4, 8), "claims 8 bytes"),
        (changed(UNKNOWN, len(UNKNOWN) - 4, 8), "not repeated"),
        (changed(simple(PACKETS[1]), 4, 12), "claims 12 bytes"),
        (changed(enhanced(PACKETS[1]), len(enhanced(PACKETS[1])) - 4, 0), "not repeated"),
        (changed(enhanced(PACKETS[1]), 8, 1), "names interface 1"),
        (changed(enhanced(PACKETS[1]), 20, 0xFFFF_FFFF), "claims 4294967295 bytes, its block"),
        (changed(enhanced(PACKETS[1]), 20, 61), "claims 61 bytes, its block"),
        (changed(section(), 8, 0), "byte-order magic"),
        (changed(section(), 12, 2), "version 2"),
        (changed(section(), 4, 0), "claims 0 bytes"),
    ],
)
def test_damage_ends_the_reading_behind_all_whole_packets(bad: bytes, reason: str) -> None:
    before = [section(), interface(), enhanced(PACKETS[0])]
    count, error = damaged(*before, bad, enhanced(PACKETS[2]))
    assert (count, error.packet, error.offset) == (1, 1, sum(map(len, before)))
    assert reason in str(error)


def test_an_interface_counts_from_its_description_on() -> None:
    before = [section(), interface(), enhanced(PACKETS[0]), interface(SLL2), enhanced(PACKETS[1])]
    count, error = damaged(*before, enhanced(PACKETS[2], index=2), interface(), enhanced(PACKETS[3], index=2))
    assert (count, error.offset) == (2, sum(map(len, before)))
    assert "names interface 2, the section has 2" in str(error)


def of_its_own(count: int, described: int) -> bytes:
    """Packets of so many interfaces, after every `described` descriptions as many packets."""
    blocks = [section()]
    for first in range(0, count, described):
        blocks += [interface(resolution=6 + n % 4, offset=n) for n in range(first, first + described)]
        blocks += [enhanced(PACKETS[0], index=n) for n in range(first, first + described)]
    return b"".join(blocks)


@pytest.mark.parametrize("described", [1, 100, 400])
def test_an_interface_costs_the_same_however_many_there_are(described: int) -> None:
    def cost(count: int) -> int:
        file = of_its_own(count, described)
        assert len(times(file)) == count
        return steps(lambda: times(file))

    assert cost(1600) < 2.2 * cost(800)


def test_interfaces_take_little_memory() -> None:
    file = section() + block(1, struct.pack("<HHI", 1, 0, 0)) * 50_000
    assert peak(lambda: times(file)) < 50_000 * 90


def test_times_of_many_interfaces() -> None:
    packets = [enhanced(PACKETS[0], index=n, ticks=5_000_000_000 + n) for n in (3, 0, 2, 2, 1, 3)]
    described = [interface(resolution=9), interface(resolution=6), interface(resolution=9, offset=7), interface()]
    assert times(section(), *described, *packets) == [
        5_000_000_003_000,
        5_000_000_000,
        12_000_000_002,
        12_000_000_002,
        5_000_000_001_000,
        5_000_000_003_000,
    ]


def test_unknown_block_larger_than_the_file_is_cut_off_and_not_kept() -> None:
    count, error = damaged(section(), interface(), enhanced(PACKETS[0]), changed(UNKNOWN, 4, 0xFFFF_FFFC))
    assert count == 1
    assert "cut off" in str(error)
