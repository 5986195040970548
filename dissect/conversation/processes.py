"""The processes behind the conversations of a run: as packets and the host show them, by conversation."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from ..capture.ends import endpoints as ends_of
from ..capture.ends import ends_between, split
from ..capture.files import CaptureReader
from ..model import END, PROCESS_KEYS, Ending, Exchange, Finding, Gap, Mark, Message, Packet, Process, Processes, Segment
from ..protocols.records import Event

if TYPE_CHECKING:
    from ..capture.host_processes import HostProcesses
    from ..capture.packet_processes import PacketProcess
    from .conversation import Conversation
    from .run_state import SharedState
    from .table import ConversationTable

RECORDS = frozenset((Message, Gap, Exchange, Ending))
"""Kinds of records that a packet completes."""

MAX_OTHER_PIDS = 8
"""PIDs of an endpoint that are stored besides the first one."""

IDENTITY = ("pid", "process", "container", "pod", "namespace")
"""Where these differ, it is another process."""

MAX_NOTED = 4_096
"""Directions of which the last process is remembered."""


class State(msgspec.Struct):
    """The processes known of a conversation from a packet on."""

    order: int
    time_ns: int
    processes: Processes


class ProcessTable(dict[int, list[State]]):
    """The states of each conversation, in their order: a record gets those that the packets up to its own show, whichever were read with
    them. Each change adds something new, so there are few."""

    def note(self, packet: PacketProcess, segment: Segment, conversation: Conversation | None) -> None:
        """Add the process that the packet of a segment of a conversation belongs to."""
        if conversation is not None:
            tcp = conversation.tcp
            sender = int(ends_of(segment.ends)[0][0] != tcp.endpoints[0])
            side = None if packet.outbound is None else sender if packet.outbound else 1 - sender
            self.add(tcp.index, tcp.endpoints, side, packet.process, segment.order, segment.time_ns)

    def add(self, conversation: int, endpoints: tuple[str, str], side: int | None, process: Process, order: int, time_ns: int) -> None:
        """Add the process behind a side (None: unknown which), as the packet `order` shows it."""
        states = self.setdefault(conversation, [])
        known = states[-1].processes if states else ()
        endpoint = None if side is None else endpoints[side]
        if endpoint is None and any(one.endpoint is not None and _same(one, process) for one in known):
            return
        mine = next((one for one in known if one.endpoint == endpoint), None)
        rest = [one for one in known if one is not mine]
        if mine is None:
            # Its side was unknown so far
            same = next((one for one in rest if one.endpoint is None and not one.others and _same(one, process)), None)
            changed = msgspec.structs.replace(process if same is None else _merged(same, process), endpoint=endpoint)
            rest = [one for one in rest if one is not same]
        else:
            changed = _merged(mine, process)
            if changed is mine:
                return
        places = {endpoints[0]: 0, endpoints[1]: 1, None: 2}
        processes = tuple(sorted([*rest, changed], key=lambda one: places[one.endpoint]))
        states.append(State(order, max(time_ns, states[-1].time_ns) if states else time_ns, processes))

    def of(self, conversation: int) -> Processes | None:
        """Return all that is known of a conversation; None if that is nothing."""
        states = self.get(conversation)
        return states[-1].processes if states else None

    def complete(self, emitted: Iterable[Event]) -> None:
        """Set the processes of the records of these events."""
        for event in emitted:
            record: Any = event.record
            states = self.get(record.conversation) if type(record) in RECORDS else None
            if states is not None:
                record.processes = next((one.processes for one in reversed(states) if one.order <= event.order), None)

    def complete_findings(self, records: Iterable[Any]) -> None:
        """Set the processes of findings, which go by their times."""
        for record in records:
            states = self.get(record.conversation) if type(record) is Finding and record.conversation is not None else None
            if states is not None:
                record.processes = next((one.processes for one in reversed(states) if one.time_ns <= record.time_ns), None)


class ProcessSources:
    """Passes on to the conversations of a run the processes that its inputs and this host state."""

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
        """Store the processes that were found on this host: they are behind their conversations from the first packet on."""
        for found in () if self._host is None else self._host.found():
            conversation = self._table.get(found.conversation)
            if conversation is not None:
                tcp = conversation.tcp
                self._run.processes.add(tcp.index, tcp.endpoints, found.side, found.process, tcp.first[0], tcp.first[3])

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


def group_of(processes: Processes | None, client: str | None, name: str) -> str | int | None:
    """Return the value of this name for the client's process, marked if it is one of several; where only another one is known, that
    with its side."""
    known = {
        one.endpoint: f"{value} and others" if one.others and name in ("pid", "process") else value
        for one in processes or ()
        if (value := getattr(one, name)) is not None
    }
    if not known or client in known:
        found: str | int | None = known.get(client)
        return found
    endpoint, value = next(iter(known.items()))
    return f"{value} ({'side unknown' if client is None or endpoint is None else 'server'})"


def _same(one: Process, other: Process) -> bool:
    """Return whether they are surely the same process, or the same container or pod where a PID is missing."""
    return one.pid == other.pid and (one.pid is not None or ((one.container, one.pod) == (other.container, other.pod) != (None, None)))


def _differ(one: Process, other: Process, name: str) -> bool:
    mine, its = getattr(one, name), getattr(other, name)
    return mine is not None and its is not None and mine != its


def _merged(one: Process, other: Process) -> Process:
    """Return the process with what another packet adds; `one` itself if that is nothing. Without a PID of both, their names decide whether
    it is another process; of the same PID a name may have changed."""
    same = one.pid is not None and one.pid == other.pid
    if not same and any(_differ(one, other, name) for name in IDENTITY):
        more = () if other.pid in (None, one.pid, *one.other_pids) or len(one.other_pids) == MAX_OTHER_PIDS else (other.pid,)
        return one if one.others and not more else msgspec.structs.replace(one, others=True, other_pids=(*one.other_pids, *more))
    added = {name: getattr(other, name) for name in PROCESS_KEYS if getattr(one, name) is None and getattr(other, name) is not None}
    return msgspec.structs.replace(one, **added) if added else one
