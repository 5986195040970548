"""The processes behind the conversations of a run, as packets or the host show them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import msgspec

from ..capture.ends import endpoints as ends_of
from ..model import PROCESS_KEYS, Ending, Exchange, Finding, Gap, Message, Process, Processes, Segment
from ..protocols.records import Event

if TYPE_CHECKING:
    from ..capture.host_processes import HostProcess
    from ..capture.packet_processes import PacketProcess
    from .conversation import Conversation

RECORDS = frozenset((Message, Gap, Exchange, Ending))
"""Kinds of records that a packet completes."""


MAX_OTHER_PIDS = 8
"""PIDs of an endpoint that are stored besides the first one."""

IDENTITY = ("pid", "process", "container", "pod", "namespace")
"""Where these differ, it is another process."""


class State(msgspec.Struct):
    """What is known of a conversation from a packet on."""

    order: int
    time_ns: int
    processes: Processes


class ProcessTable(dict[int, list[State]]):
    """What is known by conversation, in the order in which it became known: a record has what the packets up to its own show, whatever was
    read with them. Each change adds something that was not known, so there are few."""

    def note(self, packet: PacketProcess, segment: Segment, conversation: Conversation | None) -> None:
        """Add the process that the packet of a segment of a conversation belongs to."""
        if conversation is not None:
            tcp = conversation.tcp
            sender = int(ends_of(segment.ends)[0][0] != tcp.endpoints[0])
            side = None if packet.outbound is None else sender if packet.outbound else 1 - sender
            self.add(tcp.index, tcp.endpoints, side, packet.process, segment.order, segment.time_ns)

    def from_host(self, found: HostProcess, conversation: Conversation | None) -> None:
        """Add a process of this host, which is behind a conversation from its first packet on."""
        if conversation is not None:
            tcp = conversation.tcp
            self.add(tcp.index, tcp.endpoints, found.side, found.process, tcp.first[0], tcp.first[3])

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


def group_of(processes: Processes | None, client: str | None, name: str) -> str | int | None:
    """Return what is known of the client's process under this name, marked if it is one of several; where only another one is known, that
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
