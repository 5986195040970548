"""Several inputs as one, by time."""

from __future__ import annotations

import random

import pytest

from streamdump.capture import blocks as blocks_module
from streamdump.capture.merge import MAX_BUFFERED, merge
from streamdump.errors import CaptureError
from tests.support.frames import NULL, START_NS, Packet, bytes_of, pcap, pcapng, reader
from tests.support.work import peak, steps


def file(*times: int, link: int = 1) -> bytes:
    """A capture whose packets say their number."""
    return pcap([Packet(bytes((n,)) * 20, START_NS + at) for n, at in enumerate(times, 1)], link, nano=True)


def merged(*files: bytes, rows: int | None = None, errors: list[CaptureError] | None = None) -> list[tuple[int, int, int]]:
    """Input, packet number and time of each packet."""
    found = []
    for packets in merge([reader(one) for one in files], errors, rows):
        assert 0 < len(packets) <= (rows or len(packets))
        for packet in packets:
            assert bytes_of(packet) == bytes((packet.number,)) * 20
            found.append((packet.file, packet.number, packet.time_ns - START_NS))
    return found


def test_packets_come_by_time() -> None:
    assert merged(file(1, 4, 9), file(2, 3, 10)) == [(0, 1, 1), (1, 1, 2), (1, 2, 3), (0, 2, 4), (0, 3, 9), (1, 3, 10)]


def test_equal_times_come_in_the_order_of_the_inputs() -> None:
    assert merged(file(5, 5, 6), file(5, 5), file(4, 5)) == [(2, 1, 4), (0, 1, 5), (0, 2, 5), (1, 1, 5), (1, 2, 5), (2, 2, 5), (0, 3, 6)]


def test_each_input_keeps_its_own_order() -> None:
    assert merged(file(5, 1, 7), file(3, 6)) == [(1, 1, 3), (0, 1, 5), (0, 2, 1), (1, 2, 6), (0, 3, 7)]


def test_inputs_that_do_not_overlap() -> None:
    assert [one[:2] for one in merged(file(10, 11), file(1, 2), file(5))] == [(1, 1), (1, 2), (2, 1), (0, 1), (0, 2)]


def test_captures_that_follow_each_other_are_not_all_looked_at_for_each() -> None:
    def cost(count: int) -> int:
        inputs = [reader(file(10 * at, 10 * at + 1)) for at in range(count)]
        return steps(lambda: list(merge(inputs)))

    assert cost(160) < 4.5 * cost(40)


def test_captures_that_overlap_are_not_all_looked_at_for_each() -> None:
    def cost(count: int) -> int:
        inputs = [reader(file(*(step * (count + at) for step in range(60)))) for at in range(count)]
        return steps(lambda: list(merge(inputs)))

    assert cost(160) < 4.5 * cost(40)


def test_of_many_captures_little_is_at_hand() -> None:
    data = pcap([Packet(bytes(1000), START_NS + number) for number in range(2000)])
    inputs = [reader(data) for _ in range(40)]
    packets = merge(inputs)
    assert peak(lambda: next(packets)) < 3 * MAX_BUFFERED
    assert sum(len(batch) for batch in packets) > 40 * 1900


def test_empty_captures_and_inputs_that_did_not_open() -> None:
    assert merged(file(), file(1), file()) == [(1, 1, 1)]
    assert [[one.file for one in packets] for packets in merge([None, reader(file(1)), None])] == [[1]]
    assert list(merge([])) == []


def test_one_input_is_itself() -> None:
    assert merged(file(5, 1, 7)) == [(0, 1, 5), (0, 2, 1), (0, 3, 7)]


def test_formats_and_link_types_mix() -> None:
    batches = merge([reader(file(1, 3, link=NULL)), reader(pcapng([Packet(bytes(20), START_NS + 2)]))])
    assert [one.link for packets in batches for one in packets] == [NULL, 1, NULL]


def test_damaged_input_does_not_end_the_others() -> None:
    errors: list[CaptureError] = []
    found = merged(file(1, 2, 3)[:-1], file(1, 5, 9), errors=errors)
    assert found == [(0, 1, 1), (1, 1, 1), (0, 2, 2), (1, 2, 5), (1, 3, 9)]
    assert [error.packet for error in errors] == [2]


def test_without_a_list_the_error_comes_at_the_end() -> None:
    batches = merge([reader(file(1, 2, 3)[:-1]), reader(file(1, 5, 9))])
    numbers = []
    with pytest.raises(CaptureError, match="cut off in packet 3"):
        for packets in batches:
            numbers += [one.number for one in packets]
    assert len(numbers) == 5


def test_batches_do_not_change_the_order(monkeypatch: pytest.MonkeyPatch) -> None:
    chance = random.Random(4)
    files = [file(*(chance.randrange(60) for _ in range(50))) for _ in range(4)]
    whole = merged(*files)
    keys = {}
    for index in range(4):
        own = [one for one in whole if one[0] == index]
        assert [one[1] for one in own] == list(range(1, 51))
        latest = 0
        for one in own:
            latest = max(latest, one[2])
            keys[one[:2]] = (latest, index, one[1])
    assert [one[:2] for one in whole] == sorted(keys, key=lambda one: keys[one])
    for size in (1, 40, 100, 333):
        monkeypatch.setattr(blocks_module, "BLOCK", size)
        monkeypatch.setattr(blocks_module, "PIECE", 7)
        for rows in (None, 1, 7):
            assert merged(*files, rows=rows) == whole
