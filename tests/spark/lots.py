"""Captures given to the pipeline in several lots, with what is known carried as bytes from one to the next."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from operator import itemgetter
from pathlib import Path
from typing import Any

import msgspec

import streamdump
from streamdump.capture.files import open_capture
from streamdump.conversation.run_state import EVERY
from streamdump.inspector import Inspector
from streamdump.model import ConversationRow, Entry, Message, Options
from streamdump.spark import flows, rows, tables
from streamdump.spark.ordered import Row
from streamdump.spark.splits import plan
from tests.spark.comparing import Lines, rows_of

FOREVER = Options(idle_time_ns=1 << 60, closed_time_ns=1 << 60)
"""No conversation is forgotten, so that all is as in a plain run."""


class Lots:
    """The pipeline's own steps, a lot of packets after the other, without Spark."""

    def __init__(self, options: Options = FOREVER) -> None:
        self.options = options
        self.until = self.end_ns = 0
        self.carry: list[tuple[int, bytes]] = []
        self.lines: Lines = {name: [] for name in tables.KINDS.values()}
        self.conversations: list[ConversationRow] = []
        self.named: set[int] = set()
        """The conversations that records name."""

    def add(self, packets: Sequence[Row], last: bool = False) -> list[ConversationRow]:
        """Take a lot; returns the conversations that ended with it."""
        if packets:
            self.end_ns = rows.segment_in(packets[-1][-1])[0].time_ns
            self.until = max(self.until, *(merge_ns for _, merge_ns, *_ in packets))
        given = sorted([*packets, *carried_rows(self.carry)])
        self.carry = []
        ended: list[ConversationRow] = []
        until = None if last else self.until
        facts = flows.CaptureFacts(until, {EVERY: self.end_ns})
        for results in flows.dissect(given, self.options, facts):
            self.carry += results.carry
            ended += results.conversations
            for one in results.records:
                self.lines[tables.KINDS[type(one[0])]].append(line(*one))
                self.named.add(one[0].conversation)
            for _, entries in results.entries:
                self.lines["entries"] += [
                    entry_line(one, flows.id_of(one.message), one.response and flows.id_of(one.response)) for one in entries
                ]
        self.conversations += ended
        return ended

    @property
    def carried(self) -> list[tuple[int, bytes]]:
        """When the conversations that are carried have to be processed again, and their states."""
        return [(flows.DUE.unpack_from(one)[0], one[flows.DUE.size :]) for _, one in self.carry]

    def found(self) -> Lines:
        return {name: sorted(some) for name, some in self.lines.items()} | {"conversations": brief(self.conversations)}


def carried_rows(states: Sequence[tuple[int, bytes]]) -> list[Row]:
    """The rows of open conversations."""
    return [(flow_id, rows.EARLIEST, 0, 0, data) for flow_id, data in states]


def packets(files: Sequence[Path]) -> list[Row]:
    """The packets of some captures in merged order."""
    found = plan([str(file) for file in files], 1 << 40)
    return sorted(rows_of(found.splits), key=itemgetter(1, 2, 3))


def in_lots(files: Sequence[Path], cuts: Sequence[int], options: Options = FOREVER) -> Lines:
    """What the packets of some captures say that are cut there."""
    keys = plan([str(file) for file in files], 1 << 40).secrets
    lots = Lots(replace(options, keylog=(*options.keylog, *keys)))
    all_packets = packets(files)
    for begin, end in zip([0, *cuts], [*cuts, None], strict=True):
        lots.add(all_packets[begin:end], end is None)
    return lots.found()


def at_once(files: Sequence[Path], options: Options = FOREVER) -> Lines:
    """What a plain run says."""
    inspector = Inspector([open_capture(file) for file in files], replace(options, exchanges=True))
    records: list[Any] = list(inspector.records())
    found: Lines = {name: [] for name in tables.KINDS.values()}
    for record in records:
        named = [getattr(record, name, None) for name in ("request", "response")]
        found[tables.KINDS[type(record)]].append(line(record, *[None if number is None else records[number - 1] for number in named]))
    ids = [flows.message_id(one) if type(one) is Message else "" for one in records]
    for one in streamdump.read(*files, **{**asdict(options), "entries": True, "exchanges": True}) if options.entries else ():
        found["entries"].append(entry_line(one, ids[one.message - 1], one.response and ids[one.response - 1]))
    return {name: sorted(some) for name, some in found.items()} | {"conversations": brief(inspector.rows(related=False))}


def entry_line(entry: Entry, message: str, response: str | None) -> str:
    """An entry without what depends on its place in this run; the messages by side and position."""
    found = msgspec.to_builtins(entry) | {"message": message.partition("-")[2], "response": response and response.partition("-")[2]}
    del found["number"], found["conversation"]
    found.pop("processes", None)
    return msgspec.json.encode(found, order="sorted").decode()


def line(record: Any, request: Any, response: Any, packet: Any = None) -> str:
    """A record without what depends on its place in this run."""
    found = msgspec.to_builtins(record)
    for name in ("number", "conversation", "processes"):
        found.pop(name, None)
    for name, other in (("request", request), ("response", response)):
        if name in found:
            found[name] = other and (other.file, other.packets, other.position)
    return msgspec.json.encode(found, order="sorted").decode()


def brief(conversations: Sequence[ConversationRow]) -> list[str]:
    return sorted(line(row, None, None) for row in conversations)


def first_state(file: Path, count: int) -> bytes:
    """The state of the conversations of the first packets of a capture."""
    lots = Lots()
    lots.add(packets([file])[:count])
    (found,) = lots.carried
    return found[1]
