"""Counts of the lines shown, and files written from them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

from streamdump.capture.atomic_files import in_place_of
from streamdump.capture.blocks import explain
from streamdump.capture.write import PcapngWriter, check, is_input
from streamdump.errors import UsageError
from streamdump.model import Exchange, Message, Pair
from streamdump.render.terminal import PLAIN, visible
from streamdump.units import count

from ..indexed.reading import Reader, View
from .places import Messages, Place

COLUMNS = 1 << 16
"""Columns of a line that is exported: it is not cut."""


def latency(place: Messages, columns: int) -> str:
    """How long the requests took that are shown, by command."""
    from streamdump.latency.groups import Latencies
    from streamdump.render.latency import text

    found, records = Latencies(slowest=0), place.reader.records
    for at in range(len(place)):
        record = place.row(at).record
        if isinstance(record, Message) and record.latency_ns is not None:
            # The request says more than the response, which has one name for all in mewbase
            request = record.request or 0
            asked: Any = records.row(request - 1).record if request > records.first else record
            found.add([Pair(asked, record, record.outcome or "answered", None, record.latency_ns, None)])  # type: ignore[arg-type]
        elif isinstance(record, Exchange) and record.response is None:
            found.add([Pair(record, None, record.outcome, record.reason, None, record)])  # type: ignore[arg-type]
    return text(found, columns, PLAIN, place.clock) or "no response among these has a latency"


def export(place: Place, path: str, reader: Reader) -> str:
    """Write the lines shown as text or, if the name says so, as JSON Lines; return what to report."""
    lines: Iterable[bytes] = (f"{visible(place.value(at, COLUMNS))}\n".encode() for at in range(len(place)))
    if path.endswith((".json", ".jsonl")) and isinstance(place, Messages):
        lines = _records(place, reader)
    written = 0
    with _file(path, reader) as file:
        for line in lines:
            file.write(line)
            written += 1
    return f"{path}: {count(written, 'line')} written"


def _records(place: Messages, reader: Reader) -> Iterator[bytes]:
    """The records that are shown, with all that is in them, read again in one go."""
    from streamdump.render.jsonl import encode

    wanted = {place.index(at) for at in range(len(place))}
    every = View(reader, place.conversation, follows=False)
    for index, record in every.full(replace(reader.options, findings=False)):
        if index in wanted:
            yield encode([record])


def write_packets(place: Place, path: str, reader: Reader) -> str:
    """Write the packets of the conversations that are shown, as captured; what to say of it."""
    shown = (place.row(at).record for at in range(len(place))) if isinstance(place, Messages) else place.rows
    found = {one.conversation for one in shown}
    check(path)
    written = 0
    with _file(path, reader) as file:
        writer = PcapngWriter(path, reader.run.names, into=file.fileno())
        for _, packet in reader.packets.again(0, len(reader.packets), frozenset(one for one in found if one is not None)):
            writer.write([packet])
            written += 1
    return f"{path}: {count(written, 'packet')} written as captured, including passwords and tokens"


def refused(path: str, reader: Reader) -> str | None:
    """Why nothing is written to what has this name."""
    if is_input(path, reader.run.names):
        return f"{path}: is an input; inputs are never overwritten"
    return f"{path}: already exists; choose another name" if Path(path).expanduser().exists() else None


@contextmanager
def _file(path: str, reader: Reader) -> Iterator[BinaryIO]:
    """A new file that is there once all is written."""
    why = refused(path, reader)
    if why is not None:
        raise UsageError(why)
    try:
        with in_place_of(Path(path).expanduser()) as file:
            yield file
    except OSError as error:
        raise UsageError(f"{path}: cannot be written: {explain(error)}") from error
