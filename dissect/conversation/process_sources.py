"""Where a run learns which processes are behind its conversations: the inputs, and this host."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from ..capture.ends import ends_between, split
from ..capture.files import CaptureReader
from ..model import END, Mark, Packet, Process, Segment
from .run_state import SharedState
from .table import ConversationTable

if TYPE_CHECKING:
    from ..capture.host_processes import HostProcesses
    from ..capture.packet_processes import PacketProcess
    from .conversation import Conversation


MAX_NOTED = 4_096
"""Directions of which the last process is remembered."""


class ProcessSources:
    """Passes on to the conversations of a run what its inputs and this host say of their processes."""

    def __init__(self, inputs: Sequence[Any], run: SharedState, table: ConversationTable) -> None:
        self._run = run
        self._table = table
        self._readers = {
            file: one.processes for file, one in enumerate(inputs) if isinstance(one, CaptureReader) and one.processes is not None
        }
        self._named = run.options.host_names
        for one in self._readers.values():
            one.wanted = True
            if self._named:
                from ..capture.address_names import AddressNames

                one.names = AddressNames()
        self._packets: dict[int, PacketProcess] = {}
        """By order, of the packets that the table reads."""
        self._segment: Segment | None = None
        """The last one of those."""
        self._noted: dict[bytes, tuple[int | None, bool | None, Process]] = {}
        """What was stored last, by the ends of segments: most packets state the same again."""
        self._waiting = [one.waiting for one in self._readers.values()]
        self._host: HostProcesses | None = next((one.host for one in inputs if hasattr(one, "host")), None)
        if self._host is not None or self._named:
            table.created = []

    def waiting(self) -> bool:
        """Return whether there are processes of packets that were not passed on yet."""
        return any(self._waiting)

    def note(self, packets: Iterable[Packet], segments: Iterable[Segment]) -> None:
        """Pass on which processes these segments, of these packets, belong to."""
        found: dict[tuple[int, int], PacketProcess] = {}
        for file, last in {packet.file: packet.number for packet in packets if packet.file in self._readers}.items():
            waiting = self._readers[file].waiting
            while waiting and waiting[0].number <= last:
                one = waiting.popleft()
                found[file, one.number] = one
        places = {segment.order: (segment.file, segment.number) for segment in segments}
        self._packets = {order: found[place] for order, place in places.items() if place in found}
        if self._watch not in self._table.watchers:
            self._table.watchers.append(self._watch)

    def settle(self) -> None:
        """Store the process of the last segment, which has found its conversation: it may have started another one on its ports."""
        segment = self._segment
        if segment is None:
            return
        self._segment = None
        found, conversation = self._packets[segment.order], self._table.get(segment.ends)
        noted = (None if conversation is None else conversation.index, found.outbound, found.process)
        if self._noted.get(segment.ends) != noted:
            if len(self._noted) >= MAX_NOTED:
                self._noted.clear()
            self._noted[segment.ends] = noted
            self._run.processes.note(found, segment, conversation)

    def _watch(self, segment: Segment) -> None:
        self.settle()
        if segment.order in self._packets:
            self._segment = segment

    def begin(self, created: list[tuple[Conversation, bytes]]) -> None:
        """Look up the processes behind new conversations on this host, and the names of their addresses; clear the list."""
        for conversation, ends in created:
            if self._host is not None:
                self._host.begin(conversation.index, ends)
            self._name(conversation, ends, conversation.tcp.first)
        created.clear()

    def ask_host(self) -> None:
        """Store the processes that were found on this host."""
        for found in () if self._host is None else self._host.found():
            self._run.processes.from_host(found, self._table.get(found.conversation))

    def finish(self) -> None:
        """Store the names of addresses that follow the packets."""
        for one in self._table.conversations if self._named else ():
            self._name(one, ends_between(one.tcp.endpoints, 0)[0], (END, END, one.tcp.first[2], one.tcp.last[3]))

    def _name(self, conversation: Conversation, ends: bytes, mark: Mark) -> None:
        """Store the names that the addresses of a conversation have as of a packet."""
        order, number, file, time_ns = mark
        reader = self._readers.get(file)
        names = None if reader is None else reader.names
        if not names:
            return
        for side, address in enumerate(split(ends)[:2]):
            name = names.get(address, number)
            if name is not None:
                endpoints = conversation.tcp.endpoints
                self._run.processes.add(conversation.index, endpoints, side, Process(None, host=name), order, time_ns)
