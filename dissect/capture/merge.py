"""Merges several inputs by time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from heapq import heapify, heappop, heappush
from operator import itemgetter
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from dissect.errors import CaptureError
from dissect.model import PacketBatch

AT_HAND = 16 << 20
"""Bytes at hand of all inputs together, about, of which there may be hundreds."""

AT_ONCE = 1 << 14
"""Packets of a batch at most, about as many as a block of a single input holds."""


class Source(Protocol):
    """What gives packets in batches."""

    def batches(self, rows: int | None = None, size: int | None = None) -> Iterator[PacketBatch]: ...


_Taken = tuple[int, PacketBatch, NDArray[np.int64]]
"""The index of an input, packets of it, and their keys."""


class _Input:
    """One input: its batch at hand and how far that has been handed on."""

    def __init__(self, index: int, source: Source, errors: list[CaptureError], size: int) -> None:
        self.index = index
        self.batch: PacketBatch | None = None
        self.keys: NDArray[np.int64] = np.empty(0, np.int64)
        # One that does not begin at the beginning of its file tells what came before.
        self._latest = getattr(source, "latest_ns", -(1 << 62))
        self._batches = source.batches(size=size)
        self._errors = errors
        self.load()

    def load(self) -> None:
        """Takes the next batch; None at the end."""
        while True:
            try:
                self.batch = next(self._batches, None)
            except CaptureError as error:
                self._errors.append(error)
                self.batch = None
            if self.batch is None or len(self.batch):
                break
        if self.batch is not None:
            # A packet that is older than the one before it in the same input must not come earlier.
            self.keys = np.maximum(np.maximum.accumulate(self.batch.time_ns), self._latest)
            self._latest = int(self.keys[-1])

    def take(self, key: int, included: bool) -> list[_Taken]:
        """The packets at hand up to a key."""
        assert self.batch is not None
        count = int(np.searchsorted(self.keys, key, "right" if included else "left"))
        if not count:
            return []
        taken, keys = self.batch.rows(0, count), self.keys[:count]
        taken.file = np.full(count, self.index, np.int32)
        if count == len(self.keys):
            self.load()
        else:
            self.batch, self.keys = self.batch.rows(count, len(self.batch)), self.keys[count:]
        return [(self.index, taken, keys)]


def merge(inputs: Sequence[Source | None], errors: list[CaptureError] | None = None, rows: int | None = None) -> Iterator[PacketBatch]:
    """The packets of all inputs by time, each input in its own order, `file` being the index of the input (None: one that did not open).

    Among equal times the first input comes first. A damaged input does not end the others: its error goes into `errors`, or without
    that list the first one is raised at the end.
    """
    found: list[CaptureError] = []
    errors, alone = found if errors is None else errors, errors is None
    size = AT_HAND // max(1, len(inputs))
    opened = [_Input(index, source, errors, size) for index, source in enumerate(inputs) if source is not None]
    begins = [(int(one.keys[0]), one.index, one) for one in opened if one.batch is not None]
    heapify(begins)
    while begins:
        # All packets up to the first end of a batch are at hand: no input has earlier ones to come. One that begins behind that need not be
        # looked at, and of many captures that follow each other most do. Where many overlap, so many ends are passed that each input that
        # is looked at stands for a packet at least.
        taken: list[_Taken] = []
        near: list[tuple[int, int, _Input]] = []
        count = 0
        while count <= len(near):
            while begins and (not near or begins[0][0] <= near[0][0]):
                one = heappop(begins)[2]
                heappush(near, (int(one.keys[-1]), one.index, one))
            if not near:
                break
            key, index, one = heappop(near)
            count += len(one.keys)
            taken += one.take(key, True)
            if one.batch is not None:
                heappush(near, (int(one.keys[-1]), one.index, one))
        for _, _, one in near:
            taken += one.take(key, one.index <= index)
            if one.batch is not None:
                heappush(begins, (int(one.keys[0]), one.index, one))
        taken.sort(key=itemgetter(0))
        yield from _join(taken).parts(rows or AT_ONCE)
    if alone and found:
        raise found[0]


def _join(taken: list[_Taken]) -> PacketBatch:
    """One batch of the parts of several, by key; only the bytes of these packets are copied."""
    buffers: list[bytes] = []
    offsets: list[NDArray[np.int64]] = []
    base = 0
    for _, batch, _ in taken:
        start, end = int(batch.offset.min()), int((batch.offset + batch.captured).max())
        if len(taken) == 1:
            start, end = 0, len(batch.buffer)
        buffers.append(batch.buffer[start:end])
        offsets.append(batch.offset + (base - start))
        base += end - start
    batches = [batch for _, batch, _ in taken]
    order = np.argsort(np.concatenate([keys for _, _, keys in taken]), kind="stable")
    return PacketBatch(
        buffers[0] if len(buffers) == 1 else b"".join(buffers),
        np.concatenate([one.time_ns for one in batches])[order],
        np.concatenate([one.number for one in batches])[order],
        np.concatenate([one.file for one in batches])[order],
        np.concatenate(offsets)[order],
        np.concatenate([one.captured for one in batches])[order],
        np.concatenate([one.wire for one in batches])[order],
        np.concatenate([one.link for one in batches])[order],
    )
