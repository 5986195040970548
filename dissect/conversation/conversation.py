"""One conversation, from its first segment to its end: reassembly, detection, parsing and pairing; its ending and its row."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any

from ..detect import TOO_FEW, Detector, Suspicion, forced, neighbour
from ..errors import Report, describe_exception
from ..layers.proxy import ProxyHeader, ProxyLayer
from ..layers.websocket import WebSocketLayer
from ..model import (
    END,
    Close,
    ConversationRow,
    Ending,
    EndingKind,
    Gap,
    Head,
    Mark,
    Message,
    Options,
    Segment,
    SideData,
    StreamGap,
    Verdict,
)
from ..pair.exchanges import Moment, PairOutputs, PairRules, behind
from ..pair.pairer import Pairer, waiting
from ..protocols import BY_NAME, PORTS, PROTOCOLS, known_ports, server_ports
from ..protocols.buffer import Range
from ..protocols.compare_rules import HandshakeProgress
from ..protocols.parser import Parser, unread
from ..protocols.protocol import Context, Tally
from ..protocols.records import GAP, HANDED_ON, NONE, ORDER_KEY, SENDERS, Event, count_fault, count_gap, rfc3339
from ..tcp.assembler import REUSED, LengthOnly, TcpStream, never_acknowledged
from ..tls.manager import BOTH, TlsState
from .run_state import SharedState

if TYPE_CHECKING:
    from ..diagnose.rules import Closed

MAX_FIRST_BYTES, MAX_AMQP_BYTES = 64, 2_048
"""Bytes of each side that are kept for the diagnosis; more of AMQP, whose ports are confused with those of RabbitMQ Streams."""

IDLE, CROWDED = "forgotten after a long time without a packet", "forgotten for newer ones"
"""Why conversations are forgotten."""

LAST_NS = 2_000_000_000
"""How long packets that crossed a RST, or a repeated SYN, may still arrive; and, after a FIN, the FIN of the other side."""

UNANSWERED = {IDLE: "timeout", CROWDED: "limit"}
"""The reason of requests that stay open in these."""

Items = list[SideData | StreamGap]

NOTHING: list[Event] = []
"""Returned for most segments; never modified."""


class Conversation:
    """The parts that a segment passes, and the state of the conversation.

    An exception in any of them ends the dissection of this conversation, and nothing else: the packet that caused it gives no records.
    """

    __slots__ = (
        "client",
        "close",
        "detector",
        "done",
        "ended",
        "facts",
        "failure",
        "first_bytes",
        "from_start",
        "latest_ns",
        "left",
        "limit_hits",
        "midway",
        "pairer",
        "parser",
        "proxy",
        "proxy_header",
        "reported_early",
        "row_failed",
        "run",
        "steady",
        "step",
        "suspicion",
        "tally",
        "tcp",
        "tls",
        "unread_ranges",
        "verdict",
        "websocket",
    )

    def __init__(self, run: SharedState, tcp: TcpStream) -> None:
        self.run = run
        self.tcp = tcp
        self.proxy: ProxyLayer | None = ProxyLayer(None)
        """Strips a PROXY header; None once it is certain that there is none."""
        self.proxy_header: ProxyHeader | None = None
        self.tls = TlsState()
        """TLS, between reassembly and detection."""
        self.websocket: WebSocketLayer | None = WebSocketLayer(False)
        """Strips WebSocket, which may be inside of TLS; None once it is certain that there is none."""
        self.verdict: Verdict | None = None
        self.detector: Detector | None = None
        self.suspicion: Suspicion | None = None
        """Checks whether a forced protocol is another; None once that is decided."""
        self.parser: Parser | None = None
        self.pairer: Pairer | None = None
        self.tally = Tally()
        self.limit_hits = 0
        self.latest_ns: int | None = None
        """Time of the last message completed before either side sent FIN or RST."""
        self.left = 0
        """Requests without a response at the end."""
        self.facts: dict[str, Any] | None = None
        """The facts of its dissector."""
        self.step: str | None = None
        """The last step of its handshake."""
        self.close: Close | None = None
        """The message that announced the end, and the side that sent it first."""
        self.midway = False
        """The handshake is not complete, and no refusal explains that."""
        self.client: int | None = None
        self.from_start = False
        """Side 0 is the client, and both byte streams were captured from their first byte."""
        self.done = False
        self.ended = False
        """Its ending was released, or will be with the current packet."""
        self.reported_early = False
        """Its ending was released when only one side had ended."""
        self.first_bytes: tuple[bytes, bytes] = (b"", b"")
        """The first bytes of each side, for the diagnosis."""
        self.failure: str | None = None
        """The exception that ended the dissection, if any."""
        self.unread_ranges: Sequence[Range] = ()
        """Bytes that were not dissected, if the protocol is known: reported as gaps at the end."""
        self.row_failed = False
        """Making its row raised an exception, which was reported."""
        self.steady = False
        """Bytes that simply continue its streams go to its parser and nowhere else."""

    @property
    def index(self) -> int:
        return self.tcp.index

    @property
    def protocol(self) -> str | None:
        return None if self.verdict is None else self.verdict.protocol

    @property
    def known_client(self) -> int | None:
        """The side that is the client, even before any byte was read; None if unknown."""
        return 0 if self.tcp.from_start and self.client is None else self.client

    # What the table of conversations calls

    def feed(self, segment: Segment, side: int) -> list[Event] | None:
        """Return the records that a segment completes; None if it starts another conversation between the same endpoints."""
        tcp = self.tcp
        try:
            if self.steady:
                # It became so in this block of packets
                item = tcp.follow(segment, side)
                if item is not False:
                    return NOTHING if item is True else self.parse(item)
            items = tcp.feed(segment, side)
            if items is None:
                return None
            if tcp.end is not None:
                self.steady = False
            if tcp.untimed and self.pairer is not None:
                self.pairer.untimed = True
            if not items and tcp.closed is None:
                return NOTHING
            emitted = self.go_on(items, segment.mark[0])
            if self.parser is not None:
                self._hand_on()
                known = self.detector is None and tcp.end is None
                self.steady = known and self.tls.not_tls and self.proxy is None and self.websocket is None and self.suspicion is None
            return emitted
        except Exception as error:
            return self.fail(error, segment.mark, segment, side)

    def parse(self, item: SideData) -> list[Event]:
        """Return the records that these bytes of a steady conversation complete."""
        parser, pairer = self.parser, self.pairer
        try:
            if self.run.diagnoser is not None and item.position < MAX_AMQP_BYTES:
                self.first_bytes = _add_first_bytes(self.first_bytes, [item])
            if parser is None or pairer is None:
                # An earlier packet of the same block failed
                return NOTHING
            emitted = pairer.process(parser.process([item], item.mark[0]))
            parser.hand_on()
            pairer.out = HANDED_ON
            return emitted
        except Exception as error:
            return self.fail(error, item.mark)

    def finish(self, current: int, why: str | None = None) -> list[Event]:
        """Return the records of the rest, as no segment follows. `current`: the packet that shows this, or END. `why`: the reason if it is
        forgotten."""
        emitted = self.guard(current, self._finish, current, why)
        # An exception may have come before its end
        return emitted if self.done else emitted + self.guard(current, self._finish, current, why)

    def guard(self, current: int, step: Callable[..., list[Event]], *values: Any) -> list[Event]:
        """Return the records of `step`, or those that an exception leaves."""
        try:
            emitted = step(*values)
            if self.parser is not None:
                self._hand_on()
            return emitted
        except Exception as error:
            return self.fail(error, (current, *self.tcp.last[1:]))

    def _hand_on(self) -> None:
        """Note that the records of the current packet are released now."""
        assert self.parser is not None and self.pairer is not None
        self.parser.hand_on()
        self.pairer.out = HANDED_ON

    # Steps

    def go_on(self, items: Items, current: int, final: bool = False) -> list[Event]:
        """Return the records that these bytes complete with the packet `current`; `final`: do not wait for keys."""
        tcp = self.tcp
        emitted: list[Event] = []
        proxy, websocket = self.proxy, self.websocket
        if items or self.tls.decryptor is not None or (proxy is not None and proxy.held) or (websocket is not None and websocket.held):
            emitted = self._read(items, current, final)
        if tcp.closed is not None and not self.done and not self.tls.waits:
            emitted += self._close(current)
        return emitted

    def _finish(self, current: int, why: str | None) -> list[Event]:
        tcp = self.tcp
        if tcp.closed is None:
            cut_short = tcp.open
            tcp.finish(current)
            if why is not None and cut_short:
                tcp.ended = why
                tcp.limit_hits += why == CROWDED
        return self.go_on(tcp.released(), current, True)

    def relieve(self, current: int, stream: Any) -> list[Event]:
        """Stop waiting for the bytes missing before others; return the records of the latter."""
        self.tcp.release_waiting(stream)
        self.tcp.limit_hits += 1
        self.tcp.check_closed(current)
        return self.go_on(self.tcp.released(), current)

    def _read(self, items: Items, current: int, final: bool) -> list[Event]:
        """Return the records that these bytes complete."""
        if self.proxy is not None:
            items = _strip(self, self.proxy, items)
        if self.verdict is None and self.detector is None:
            self._begin()
        tls = self.tls
        if tls.checked != BOTH and items:
            self.run.tls_manager.check_start(tls, items, self.tcp.from_start)
        if tls.decryptor is not None:
            items = self.run.tls_manager.feed(tls, self.tcp, items, current, final)
            self._learn()
        if self.websocket is not None:
            items = _unwrap(self, self.websocket, items)
        if self.detector is not None:
            found = self.detector.add(items) if items else None
            if found is None:
                return []
            items = self._start(found)
        return self._parse(items, current)

    def _parse(self, items: Items, current: int) -> list[Event]:
        if self.suspicion is not None:
            self._suspect(self.suspicion, items)
        parser, pairer = self.parser, self.pairer
        if not items:
            return []
        if self.run.diagnoser is not None:
            self.first_bytes = _add_first_bytes(self.first_bytes, items)
        if parser is None or pairer is None:
            return []
        parser.last = END if self.tcp.end is None else self.tcp.end.order
        return pairer.process(parser.process(items, current))

    def _close(self, current: int) -> list[Event]:
        """Return the records at the end of the conversation."""
        self.done = True
        if self.verdict is None and self.detector is None:
            self._begin()
        emitted = [] if self.detector is None else self._parse(self._start(self.detector.finish()), current)
        parser, pairer, tcp = self.parser, self.pairer, self.tcp
        if parser is not None and pairer is not None:
            parser.ended_sides, parser.last = tcp.ended_sides, END if tcp.end is None else tcp.end.order
            if rest := parser.close(tcp.last, current):
                emitted = emitted + pairer.process(rest)
            reason = "capture ended" if tcp.open else UNANSWERED.get(tcp.ended, "closed")
            ended = pairer.close(reason, end_of(self)) if pairer.open else NOTHING
            self._hand_on()
            self._settle()
            emitted = emitted + ended
        self.limit_hits += self.tls.limit_hits
        self.verdict = self.tls.unread or self.verdict
        return emitted + self.guard(current, self._end)

    def _end(self) -> list[Event]:
        """Return the gaps of what was not dissected, and the ending."""
        self.ended = True
        return unread_gaps(self) + end_records(self) if self.unread_ranges else end_records(self)

    def _settle(self) -> None:
        """Keep the results of parser and pairer, and drop both: no message follows."""
        parser, pairer = self.parser, self.pairer
        assert parser is not None and pairer is not None
        self.note(pairer.left)
        self.limit_hits += parser.limit_hits + pairer.limit_hits
        # Break the reference cycles: a run does not collect garbage
        del parser.dissector
        self.parser = self.pairer = None
        self.steady = False
        self.run.paired.pop(self.tcp.index, None)

    def note(self, left: int) -> None:
        """Store what its ending reports; `left`: requests without a response."""
        assert self.parser is not None and self.pairer is not None
        self.left, self.step, self.midway = left, self.pairer.handshake.step, self.pairer.handshake.midway
        self.client = self.parser.dissector.client
        self.latest_ns, self.close = self.parser.latest_ns, self.parser.closing

    def fail(self, error: Exception, mark: Mark, segment: Segment | None = None, side: int = 0) -> list[Event]:
        """Handle an exception: the packet gives no records, later ones are only counted. Return the ends of open requests."""
        run, tcp, ended = self.run, self.tcp, list[Event]()
        what = describe_exception(error)
        if self.failure is None:
            _, number, file, _ = mark
            place = f", packet {number}{f' of file {file}' if file else ''}"
            self.failure = f"{what.partition(' ')[0]}{place}"
            run.reports.add(report(self, what, "what follows in it is skipped", number, file))
        if type(tcp) is not LengthOnly:
            tcp = self.tcp = LengthOnly(tcp)
            if segment is not None:
                tcp.feed(segment, side)
        self.detector = self.suspicion = None
        self.steady = False
        run.detecting.pop(self.index, None)
        run.tls_manager.forget(self.index)
        if self.verdict is None:
            self.verdict = Verdict(None, 0.0, ("an internal error came as it was looked for",))
        if self.protocol is not None and self.facts is None:
            self.unread_ranges = [(0, 0, END), (1, 0, END)]
        if self.parser is not None and self.pairer is not None:
            made = self.parser.made
            self.unread_ranges = unread(self.parser)
            for tally in (self.tally, run.counters):
                for record in [one.record for one in made]:
                    if type(record) is Gap:
                        count_gap(tally, record, -1)
                    elif record.fault is not None:
                        count_fault(tally, record.fault, -1)
            ended = self.pairer.fail(made)
            self._settle()
        if not self.tls.not_tls:
            ended = ended + self.guard(mark[0], self.tls.stop_reading)
        if tcp.closed is None or self.ended:
            return ended
        self.done = self.ended = True
        return ended + self.guard(mark[0], self._end)

    # Which protocol

    def _begin(self) -> None:
        """Start detection, or use the protocol that was forced."""
        tcp, options = self.tcp, self.run.options
        if tcp.from_start and self.client is None:
            self.client, self.from_start = 0, True
        ports = server_ports(tcp.ports, self.client)
        verdict = forced(ports, tcp.from_start, options) if options.decode_as else None
        if verdict is not None:
            self._set_protocol(verdict)
            if verdict.protocol is not None and not options.show_secrets:
                self.suspicion = Suspicion(verdict.protocol, ports, self.from_start)
        else:
            self.detector = Detector(ports, self.from_start, options.undecided_limit, options.dictionaries)
            self.run.detecting[tcp.index] = self

    def _learn(self) -> None:
        """Update client, verdict and detector with the state of TLS."""
        tls = self.tls
        if self.client is None:
            self.client = tls.client
        if tls.unread is not None:
            self.verdict = tls.unread
        elif tls.read and self.parser is not None:
            self.verdict = self.parser.context.verdict
        elif tls.read and self.detector is not None:
            self.verdict = None
            self.detector.ports = server_ports(self.tcp.ports, self.client)
            self.detector.from_start = self.from_start = self.from_start or tls.from_start

    def decide(self, current: int) -> list[Event]:
        """End detection early; return the records of the buffered bytes."""
        assert self.detector is not None
        if self.websocket is not None and self.websocket.held:
            held, self.websocket = self.websocket.held, None
            self.detector.add(held)
        self.detector.limited = True
        return self._parse(self._start(self.detector.finish()), current)

    def _suspect(self, suspicion: Suspicion, items: Items) -> None:
        """Check whether the bytes contain a login of another protocol than the forced one."""
        protocol, done = suspicion.add(items)
        if protocol is not None:
            assert self.facts is not None
            self.facts["looks_like"] = f"a login of {protocol}"
            if self.run.suspected is None:
                self.run.suspected = row_of(self, 0)
        if done:
            self.suspicion = None

    def _start(self, verdict: Verdict) -> Items:
        """Set the detected protocol; return the buffered bytes if they are to be parsed."""
        detector, self.detector = self.detector, None
        assert detector is not None
        if self.websocket is not None:
            if self.websocket.sides is None:
                self.websocket = None
            elif verdict.name is None and verdict.protocol is None:
                verdict = self.websocket.verdict()
        self._set_protocol(verdict)
        self.run.detecting.pop(self.tcp.index, None)
        self.limit_hits += detector.limited
        return [] if self.parser is None and self.run.diagnoser is None else detector.buffered()

    def _set_protocol(self, verdict: Verdict) -> None:
        self.verdict = verdict
        if verdict.protocol is None:
            return
        tcp, run = self.tcp, self.run
        if self.client is None:
            self.client = verdict.client
        protocol, options = BY_NAME[verdict.protocol], run.options
        loaded = protocol.loaded
        wanted = options.wanted
        if wanted is not None and options.findings:
            # Rules look at all messages
            options = replace(options, wanted=None)
        elif wanted is not None and not wanted(Head(verdict.protocol, self.index, *tcp.endpoints)):
            options = replace(options, bodies=False, detail=False)
        context = Context(tcp.index, tcp.endpoints, tcp.ports, self.client, self.from_start, verdict, options, run.unpack_pool)
        parser = Parser(protocol, options, context, (self.tally, run.counters))
        self.pairer = Pairer(
            PairRules(parser.dissector.reuse, options.open_limit, options.exchanges, self.from_start, loaded.paired, loaded.unanswered),
            PairOutputs(run.links, run.large, parser.tallies, run.pairs, run.answers),
            HandshakeProgress(loaded.compare_rules) if self.from_start else None,
        )
        self.pairer.untimed = tcp.untimed
        self.parser, self.facts = parser, parser.dissector.facts
        run.paired[tcp.index] = self
        if run.diagnoser is not None:
            run.diagnoser.begin(tcp.index, verdict.protocol, self.from_start, verdict.layout)


def _add_first_bytes(first_bytes: tuple[bytes, bytes], items: Items) -> tuple[bytes, bytes]:
    """Return the first bytes of each side, extended by these."""
    one, two = first_bytes
    most = MAX_AMQP_BYTES if one.startswith(b"AMQP") or two.startswith(b"AMQP") else MAX_FIRST_BYTES
    if len(one) >= most and len(two) >= most:
        return first_bytes
    for item in items:
        if type(item) is SideData:
            if item.side:
                two += item.data[: most - len(two)] if item.position == len(two) < most else b""
            else:
                one += item.data[: most - len(one)] if item.position == len(one) < most else b""
    return one, two


def _strip(one: Conversation, proxy: ProxyLayer, items: Items) -> Items:
    """Return these bytes without a PROXY header, whose sender is the client."""
    if one.tcp.from_start and proxy.side is None:
        proxy.side = 0
    items, none = proxy.feed(items, one.tcp.closed is not None)
    if none:
        one.proxy = None
    elif proxy.header is not None and one.proxy_header is None:
        one.proxy_header = header = proxy.header
        one.client, one.from_start = header.side, one.from_start or header.side == 0
        one.run.tls_manager.inside[one.index] = "PROXY" if header.client is None else f"PROXY {header.client}"
        if one.detector is not None:
            one.detector.ports, one.detector.from_start = server_ports(one.tcp.ports, one.client), one.from_start
    return items


def _unwrap(one: Conversation, websocket: WebSocketLayer, items: Items) -> Items:
    """Return these bytes without WebSocket, whose client is the side that asks for it or masks its frames."""
    detector, known = one.detector, websocket.sides is not None
    if not known and websocket.opening is None and websocket.middle is None:
        websocket.from_start, websocket.traces = one.from_start, one.run.traces_of(one.tcp.index)
    items, none = websocket.feed(items, one.tcp.closed is not None and not one.tls.waits)
    if none:
        one.websocket = None
        return items
    if websocket.middle is not None and (detector is None or websocket.searched(items)):
        if detector is None:
            one.websocket = None
            return items
        items = websocket.begin_inside(detector.buffered() + items)
        one.detector = detector = Detector(detector.ports, False, one.run.options.undecided_limit, detector.dictionaries)
    if websocket.sides is None:
        if detector is not None and websocket.opening is not None:
            detector.cost = max(detector.cost, websocket.opening.size)
    elif not known:
        one.client = websocket.client
        one.from_start = one.client == 0 and websocket.from_beginning
        inside = one.run.tls_manager.inside
        inside[one.index] = ", ".join([*filter(None, (inside.get(one.index),)), "WebSocket"])
        if detector is not None:
            detector.ports, detector.from_start = server_ports(one.tcp.ports, one.client), one.from_start
    return items


def report(conversation: Conversation, what: str, cost: str, number: int | None = None, file: int | None = None) -> Report:
    """Return the report of an exception in a conversation."""
    one, two = conversation.tcp.endpoints if conversation.client != 1 else conversation.tcp.endpoints[::-1]
    between = f"{one} {'-' if conversation.client is None else '>'} {two}{f' {conversation.protocol}' if conversation.protocol else ''}"
    return Report(what, cost, number, file, conversation.index, between)


def unread_gaps(conversation: Conversation) -> list[Event]:
    """Return gaps for the bytes that were not dissected, if the protocol is known."""
    protocol, tcp, emitted = conversation.protocol, conversation.tcp, list[Event]()
    if protocol is None:
        return emitted
    unread_ranges: list[list[tuple[int, int]]] = [[], []]
    reach = inner_bytes(conversation)
    for side, start, end in conversation.unread_ranges:
        unread_ranges[side].append((start, min(end, reach[side])))
    order, number, file, time_ns = tcp.last
    for side, ranges in enumerate(unread_ranges):
        source, target = tcp.endpoints[side], tcp.endpoints[1 - side]
        for start, end in united(ranges):
            head = (1, 0, rfc3339(time_ns), time_ns, tcp.index, source, target, SENDERS[conversation.client][side], protocol)
            gap = Gap(*head, start, end - start, "skipped", False)
            emitted.append(Event(order, side ^ (conversation.client or 0), start, gap, GAP, None, time_ns, packet=(file, number)))
    conversation.unread_ranges = ()
    emitted.sort(key=ORDER_KEY)
    for tally in (conversation.tally, conversation.run.counters):
        tally.records += len(emitted)
        for one in emitted:
            count_gap(tally, one.record)
    return emitted


def end_records(conversation: Conversation) -> list[Event]:
    """Return the ending of a conversation and, for the diagnosis, a `Closed`."""
    run, tcp = conversation.run, conversation.tcp
    emitted = _ending(conversation)
    if conversation.protocol is not None and any(lost := never_acknowledged(tcp)):
        run.unacknowledged |= {(tcp.index, tcp.endpoints[side]): again for side, again in enumerate(lost) if again is not None}
        run.counters.unacknowledged += 1
    if is_unused(conversation):
        if tcp.end is not None and tcp.end.how == "refused":
            run.refused[tcp.ports[1]] += 1
    elif run.windows is not None:
        emitted.append(closed(conversation))
    return emitted


def patience_ns(options: Options) -> int:
    """Return how long an ending by one side may still change."""
    return min(options.closed_time_ns, LAST_NS)


def stop_deferring(conversation: Conversation, current: int) -> list[Event]:
    """Stop waiting for missing bytes that other bytes are deferred for, as these may be what a timer waits for; return the records."""
    tcp = conversation.tcp
    for own, other in (tcp.streams, tcp.streams[::-1]):
        while own.deferred and other.waiting is not None:
            tcp.release_waiting(other)
    tcp.check_closed(current)
    return conversation.go_on(tcp.released(), current)


def report_early(conversation: Conversation, now_ns: int, pipe: bool = False) -> list[Event]:
    """Return the ending of a conversation that only one side has ended, two seconds later; at once after a fatal TLS alert. If nothing
    can change it any more, return the `Closed` of the diagnosis, too."""
    run, tcp = conversation.run, conversation.tcp
    if tcp.end is None or tcp.closed is not None or conversation.ended or conversation.reported_early or conversation.detector is not None:
        return []
    facts = conversation.tls.facts_so_far()
    failed = facts is not None and any(alert.fatal for alert in facts.alerts)
    if now_ns < tcp.end.time_ns + (0 if failed else patience_ns(run.options)):
        return []
    left: list[tuple[Message, str]] = []
    if conversation.pairer is not None:
        left = waiting(conversation.pairer, tcp.last[3])
        conversation.note(len(left))
    emitted = _ending(conversation)
    for one in emitted:
        run.early_endings[tcp.index] = one.record
    conversation.reported_early = True
    # As from a file, all later packets of a pipe count
    final = failed or (not pipe and (tcp.end.how != "FIN" or tcp.end.side != (conversation.client or 0)))
    if run.windows is not None and final:
        emitted.append(closed(conversation, tuple(one for one in left if one[1] != "timeout")))
    return emitted


def end_of(conversation: Conversation) -> Moment:
    """Return when the end of a conversation is certain, and the place of its last records.

    This is the last packet of the capture if it is still open then, the current time if it was forgotten, otherwise its own last packet.
    """
    tcp = conversation.tcp
    own_ns = tcp.last[3]
    end_ns = own_ns if tcp.untimed else conversation.run.end_ns(tcp.first[2])
    if tcp.open and tcp.closed is not None:
        return behind(END, tcp.index, max(own_ns, end_ns))
    return behind(tcp.last[0], 0, max(own_ns, end_ns) if tcp.ended == IDLE else own_ns)


def is_unused(conversation: Conversation) -> bool:
    """Return whether it never carried a byte and its ports belong to no known protocol."""
    return conversation.tcp.empty and known_ports(conversation.run.options).isdisjoint(ports_of(conversation))


def ports_of(conversation: Conversation) -> tuple[int, int]:
    """Return the ports that may indicate its protocol."""
    return server_ports(conversation.tcp.ports, conversation.known_client)


def stream_bytes(conversation: Conversation) -> tuple[int, int]:
    """Return the size of each byte stream, without a PROXY header."""
    one, two = conversation.tcp.stream_bytes
    proxy = conversation.proxy_header
    stripped = 0 if proxy is None else len(proxy.raw)
    return (one, two - stripped) if proxy is not None and proxy.side else (one - stripped, two)


def inner_bytes(conversation: Conversation) -> tuple[int, int]:
    """Return the size of each byte stream inside of all layers, in which positions count."""
    websocket = conversation.websocket
    found = None if websocket is None else websocket.plain_sizes()
    return found or conversation.tls.decrypted_sizes() or stream_bytes(conversation)


def closed(conversation: Conversation, before: tuple[tuple[Message, str], ...] | None = None) -> Event:
    """Return the end of a conversation for the diagnosis; `before`: if reported early, requests that get no response, and why."""
    closed_type, how_ended, signs_of, failures = _modules()
    run, tcp, tls = conversation.run, conversation.tcp, conversation.tls.facts_so_far()
    assert run.windows is not None
    first_bytes, from_start = conversation.first_bytes, conversation.from_start
    conversation.first_bytes = b"", b""
    websocket = None if conversation.websocket is None else conversation.websocket.outcome()
    how, by, ended_ns = how_ended(tcp, tls, websocket)
    end, (one, two) = end_of(conversation), tcp.streams
    record = closed_type(
        tcp.index,
        tcp.endpoints,
        tcp.ports,
        conversation.client,
        tcp.from_start,
        how,
        by,
        ended_ns,
        end.time_ns,
        tcp.first,
        tcp.last,
        conversation.verdict or TOO_FEW,
        _expected(ports_of(conversation), run.options),
        (one.packets, two.packets),
        (one.stream, two.stream),
        (one.lost, two.lost),
        (one.cut, two.cut),
        one.retransmitted + two.retransmitted,
        tuple(sorted(one.repeated + two.repeated)),
        (one.out_of_order, two.out_of_order),
        tls,
        failures(tls) if tls else {},
        (None, None) if tcp.untimed else run.windows.of(tcp, end.time_ns),
        conversation.failure,
        tcp.end is not None and tcp.end.how == "refused",
        conversation.facts or {},
        first_bytes,
        (neighbour(first_bytes[0], from_start), neighbour(first_bytes[1], from_start)),
        conversation.proxy_header,
        websocket,
        inner_bytes(conversation),
        () if run.diagnoser is None else run.diagnoser.overview.network.of(tcp, run.options.separate),
        before,
        signs_of(tcp, conversation.client),
        (tcp.streams[0].syn, tcp.streams[1].syn),
        (tcp.streams[0].ttls, tcp.streams[1].ttls),
        tcp.conflicts,
        tcp.untimed,
        run.processes.of(tcp.index),
        one.earlier + two.earlier,
    )
    return Event(end.order, end.rank, end.position, record, NONE, None, end.time_ns)


@cache
def _modules() -> tuple[type[Closed], Callable[..., Any], Callable[..., Any], Callable[..., Any]]:
    """Return what only the diagnosis needs; importing it for each conversation would take as long as one of its rules."""
    from ..diagnose.ends import how_ended, signs_of
    from ..diagnose.rules import Closed
    from ..tls.diagnostics import failures

    return Closed, how_ended, signs_of, failures


def announced(conversation: Conversation) -> Close | None:
    """Return the message that announced the end: the protocol's, otherwise the Close frame of WebSocket."""
    close = conversation.close if conversation.parser is None else conversation.parser.closing
    websocket = conversation.websocket
    return close or (None if websocket is None else websocket.closing())


def _ending(conversation: Conversation) -> list[Event]:
    """Return the ending of a conversation, or of a connection to a known port that never carried a byte, or an empty list."""
    run, tcp, protocol = conversation.run, conversation.tcp, conversation.protocol
    client = conversation.known_client
    end = tcp.end
    empty = tcp.empty
    if conversation.reported_early or (not (tcp.from_start and tcp.ports[1] in known_ports(run.options)) if empty else protocol is None):
        return []
    side = client or 0
    how: EndingKind = "forgotten"
    if end is not None:
        side, how = end.side, end.how if empty or end.how != "refused" else "RST"
    elif empty and not tcp.packets[1] and tcp.ended != REUSED:
        how = "no answer"
    elif tcp.ended not in UNANSWERED:
        return []
    moment = end_of(conversation)
    time_ns = moment.time_ns if end is None else end.time_ns
    source, target = tcp.endpoints[side], tcp.endpoints[1 - side]
    sender = SENDERS[client][side]
    close = tcp.announced(announced(conversation))
    injected = close is None and end is not None and end.injected
    unsure = close is None and tcp.first_end_unsure
    by_server = not injected and not unsure and SENDERS[client][side if close is None else close[1]] == "server"
    if conversation.midway and conversation.step is not None and how in ("FIN", "RST") and by_server:
        run.counters.broken_off += 1
        run.broken_off[tcp.index] = conversation.step
    last = conversation.latest_ns
    # Times may go back
    quiet_ns = None if last is None or tcp.untimed else max(0, time_ns - last)
    head = (1, 0, rfc3339(time_ns), time_ns, tcp.index, source, target, sender, None if empty else protocol)
    ending = Ending(*head, how, quiet_ns, conversation.left, conversation.tally.refused)
    run.counters.by_server += ending.protocol is not None and by_server
    run.counters.unconnected += how in ("refused", "no answer")
    return [Event(moment.order, moment.rank, moment.position, ending, NONE, None, time_ns)]


def _expected(ports: tuple[int, int], options: Options) -> str | None:
    """Return the protocol that `-d` or a protocol's default port assigns to these ports."""
    for port, name, _ in options.decode_as:
        if port in ports:
            return name
    if PORTS.isdisjoint(ports):
        return None
    return next(protocol.name for protocol in PROTOCOLS if set(protocol.ports) & set(ports))


def how(conversation: Conversation) -> str:
    """Return how it ended and which side ended it: see `TcpStream.how`."""
    return conversation.tcp.how(conversation.known_client, announced(conversation))


def row_of(conversation: Conversation, number: int) -> ConversationRow:
    """Return its row of the `conversations` view."""
    tcp, tally = conversation.tcp, conversation.tally
    one, two = tcp.streams
    verdict = conversation.verdict or TOO_FEW
    step = conversation.step if conversation.pairer is None else conversation.pairer.handshake.step
    proxy = conversation.proxy_header
    facts = {**conversation.facts} if conversation.facts else {}
    if step is not None:
        facts["handshake"] = step
    if proxy is not None:
        facts |= proxy.row()
    facts |= conversation.tls.row()
    evidence = verdict.evidence
    websocket = conversation.websocket
    if websocket is not None and websocket.sides is not None:
        facts |= websocket.row()
        if websocket.evidence() not in evidence:
            evidence = *evidence, websocket.evidence()
    if proxy is not None:
        evidence = *evidence, f"behind a {proxy.name}"
    client = conversation.known_client
    return ConversationRow(
        1,
        number,
        rfc3339(tcp.first[3]),
        tcp.first[3],
        tcp.latest[3] - tcp.first[3],
        tcp.index,
        tcp.endpoints,
        None if client is None else tcp.endpoints[client],
        None if client is None else tcp.endpoints[1 - client],
        verdict.protocol,
        verdict.name,
        verdict.confidence,
        evidence,
        facts.pop("layout", verdict.layout),
        tuple(facts.pop("candidates", verdict.candidates)),
        (one.packets, two.packets),
        stream_bytes(conversation),
        tally.messages,
        tally.faults,
        tally.gaps,
        tally.gap_bytes,
        tally.refused,
        tally.unanswered,
        tcp.retransmissions,
        tcp.out_of_order,
        tcp.conflicts,
        how(conversation),
        conversation.limit_hits + tcp.limit_hits,
        conversation.failure,
        facts,
        conversation.run.processes.of(tcp.index),
    )


def united(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return these ranges, with touching ones merged and empty ones removed."""
    found: list[tuple[int, int]] = []
    for start, end in sorted(ranges):
        if found and start <= found[-1][1]:
            found[-1] = found[-1][0], max(end, found[-1][1])
        elif start < end:
            found.append((start, end))
    return found
