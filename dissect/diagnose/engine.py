"""Checks the records of a run in their order against the rules, and adds the findings.

A finding depends on the records of its own conversation only, and follows the record that completes it, so that the size of batches does
not matter.
Findings about several conversations come at the end of the run.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterable
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec

from ..errors import Report, describe_exception
from ..model import Exchange, Finding, Gap, Message, Processes, Record, Sender, Severity
from ..protocols.records import rfc3339
from ..quota import drop_oldest
from .across import ACROSS, ACROSS_KEPT, Failed, Overview, Seen
from .common import COMMON, FIRST, PLAIN, is_certain
from .copies import Opened
from .registry import FAMILIES
from .rules import (
    ANY,
    CLOSED,
    CLOSED_BEFORE,
    ERROR,
    EVIDENCE,
    EXCHANGE,
    FOUND_KEPT,
    GAP,
    LIVE,
    NOTE,
    REFUSED_ADVICE,
    SEVERITIES,
    UNANSWERED_KEPT,
    WARNING,
    Closed,
    ConversationContext,
    Family,
    FindingDraft,
    Now,
    Refusal,
    Rule,
    host_of,
    numbers,
    packets,
    traits,
    untimed,
    without_numbers,
)
from .tcp import set_late_aside

PENDING = 16
"""Refusals of a conversation that wait for the next message of the client, at most."""

RETRY_NS = 10_000_000_000
"""A client that asks again what it cannot do without does so by then."""

SUMMARIES_KEPT = 100_000

SERVERS_KEPT = 1_024
"""Servers of which families keep something across connections, at most."""


Server = tuple[str | None, str | None, int]
"""Protocol, endpoint and network of a server."""

SPEAKS, CLOSES, UNUSED = "speaks", "closes", "unused"
"""Steps of the Diagnoser itself: a server speaks a protocol; the end of a connection of no known protocol, and of one on a port of no known
protocol that never carried a byte: what they mean depends on what servers speak."""


class Step(NamedTuple):
    """A step of what a server keeps across connections, or shows on them, with what a finding about it needs; plain data."""

    rule: str
    conversation: int
    client: str | None
    server: str | None
    network: int
    """A number of the server's network, where those of captures are kept separate."""
    protocol: str | None
    message: int | None
    """The number of the message, None at the end of the conversation."""
    time_ns: int
    src: str
    dst: str
    sender: Sender | None
    step: Any


class Outcome(msgspec.Struct):
    """How one conversation went: how far it `reached`, what `ended` it, and the rule of its worst finding with its severity."""

    conversation: int
    time_ns: int
    client: str
    server: str
    known: bool
    protocol: str | None
    name: str | None
    reached: str
    ended: str
    messages: int
    worst: Severity | None
    rule: str | None
    processes: Processes | None = None


class RuleTable:
    """The rules of a family, by the records they check and what they need."""

    def __init__(self, family: Family) -> None:
        self._rules = (*FIRST, *family.rules, *COMMON)
        self._named = {name for rule in self._rules for name in ((rule.on,) if isinstance(rule.on, str) else rule.on)}
        self._chosen: dict[tuple[str, int], tuple[Rule, ...]] = {}

    def of(self, on: str, has: int = 0) -> tuple[Rule, ...]:
        """Return the rules to ask about a record, in their order; `has`: what holds of it that they may need."""
        return self._choose(on, has) if on in self._named else ()

    def of_message(self, message: Message, context: ConversationContext) -> tuple[Rule, ...]:
        """Return those about a message: by its name, and about any."""
        return self._choose(message.name if message.name in self._named else ANY, traits(message, context))

    def _choose(self, on: str, has: int) -> tuple[Rule, ...]:
        found = self._chosen.get((on, has))
        if found is None:
            fit = [rule for rule in self._rules if rule.needs & ~has == 0]
            mine = [rule for rule in fit if on == rule.on or (on in rule.on and not isinstance(rule.on, str))]
            # Nothing but a message has a name of its own
            more = [rule for rule in fit if rule.on == ANY] if on not in _RECORDS else []
            found = self._chosen[on, has] = (*mine, *more)
        return found


_RECORDS = (ANY, GAP, EXCHANGE, CLOSED, CLOSED_BEFORE, LIVE)


class Diagnoser:
    """Finds what went wrong in the conversations of one run, from all records in their order and the end of each conversation."""

    def __init__(self, steps: list[Step] | None = None, separate: bool = False) -> None:
        """`steps`: gets the steps of what servers keep across connections, for `replay`; None: they are applied at once. `separate`: each
        file is of a network of its own."""
        self.summaries = OrderedDict[int, Outcome]()
        """Of conversations that ended, until `forget` drops them."""
        self.reports: list[Report] = []
        self.overview = Overview()
        self._contexts: dict[int, ConversationContext] = {}
        self._numbers = 0
        self._spoken: dict[str, str] = {}
        """By endpoint of a server, the protocol that one of its connections speaks."""
        self.ports: set[int] = set()
        """Those of servers that speak a protocol of ours."""
        self._families = {name: family for family in FAMILIES for name in family.protocols}
        self._rules = {family: RuleTable(family) for family in (PLAIN, *FAMILIES)}
        self._steps = steps
        self._separate = separate
        self._kept: dict[Server, dict[Hashable, Any]] = {}
        """By protocol, server and network what it keeps across connections."""

    def begin(self, conversation: int, protocol: str, from_start: bool, layout: str | None = None) -> None:
        """Note the protocol of a conversation, and its layout if that is known; `from_start`: its beginning was captured."""
        self._context_of(conversation, protocol, layout).from_start = from_start

    def feed(self, records: Iterable[Any]) -> list[Record]:
        """Return the records, each followed by the findings that it completes, without the ends of conversations."""
        out: list[Record] = []
        for record in records:
            kind = type(record)
            if kind is not Closed:
                out.append(record)
            try:
                if kind is Message:
                    self._message(record, out)
                elif kind is Closed:
                    self._closed(record, out)
                elif kind is Exchange:
                    self._other(record, EXCHANGE, out)
                elif kind is Gap:
                    self._other(record, GAP, out)
            except Exception as error:
                self._report(describe_exception(error), record.conversation)
        return out

    def age(self, now_ns: int) -> list[Record]:
        """Return findings about silence, for an interface: all packets up to `now_ns` have been read."""
        out: list[Record] = []
        for context in self._contexts.values():
            self._release(context, out, False)
            rules = () if context.end_reported else self._rules[context.family].of(LIVE)
            self._apply(context, rules, Now(now_ns, context.client or "", context.server or ""), out)
        return out

    def finish(self) -> list[Record]:
        """Return the findings about several conversations."""
        out: list[Record] = []
        for rule in ACROSS:
            try:
                for draft, one in rule.check(self.overview):
                    name = rule.name if "." in rule.name else f"{one.protocol}.{rule.name}"
                    client, server = (one.client, one.server) if isinstance(one, Failed) else (one.dst, one.src)
                    time_ns = one.last_ns if isinstance(one, Failed) else one.time_ns
                    head = (1, 0, rfc3339(time_ns), time_ns, None, client or "", server or "", None, one.protocol, name)
                    messages, packets = [list((each or ())[:EVIDENCE]) for each in (draft.messages, draft.packets)]
                    severity, advice = draft.severity or rule.severity, draft.advice or rule.advice
                    self._add(out, Finding(*head, severity, draft.cause, advice, messages, packets))
            except Exception as error:
                self._report(describe_exception(error), None)
        return out

    def replay(self, steps: Iterable[Step], ports: set[int]) -> list[Record]:
        """Return what steps show that are in the order of their times. `ports`: of all servers of our protocols."""
        out: list[Record] = []
        for one in steps:
            try:
                if one.rule == SPEAKS:
                    if len(self._spoken) < ACROSS_KEPT:
                        self._spoken.setdefault(one.server or "", one.protocol or "")
                elif one.rule not in (CLOSES, UNUSED):
                    self._report_step(one, out)
                elif one.rule == CLOSES or ports.intersection(one.step.server_ports):
                    self._closed(one.step, out)
                    self.summaries.clear()
            except Exception as error:
                self._report(describe_exception(error), one.conversation)
        for context in self._contexts.values():
            self._release(context, out)
        self._contexts.clear()
        return out

    def _report_step(self, one: Step, out: list[Record]) -> None:
        family = self._families[one.protocol or ""]
        assert family.shared is not None
        for draft in family.shared(_kept_of(self._kept, (one.protocol, one.server, one.network)), one.step):
            context = self._context_of(one.conversation, one.protocol)
            context.client, context.server = one.client, one.server
            rule = next(rule for rule in family.rules if rule.name == one.rule)
            self._report_draft(context, rule, draft, one, out)

    def forget(self, conversations: Iterable[int]) -> None:
        """Drop the state of these conversations."""
        for one in conversations:
            self.summaries.pop(one, None)
            self._contexts.pop(one, None)

    def so_far(self) -> list[Outcome]:
        """Return the outcome of each conversation, by first packet."""
        return [self.summaries[one] for one in sorted(self.summaries)]

    # One conversation

    def _context_of(self, conversation: int, protocol: str | None, layout: str | None = None) -> ConversationContext:
        context = self._contexts.get(conversation)
        if context is None:
            family = self._families.get(f"{protocol}:{layout}") or self._families.get(protocol or "", PLAIN)
            ready = not family.steps
            context = ConversationContext(conversation, protocol or "tcp", family, family.new_state(), self._share, ready)
            self._contexts[conversation] = context
        return context

    def _message(self, message: Message, out: list[Record]) -> None:
        context = self._context_of(message.conversation, message.protocol)
        if context.end_reported:
            context.remember(message)
            return
        if context.pending:
            self._settle(context, message, out)
        context.observe(message)
        self._apply(context, self._rules[context.family].of_message(message, context), message, out)
        if message.outcome == "refused" and message.number not in context.reported:
            self._refused(context, message, out)
        if context.family.follow is not None:
            context.family.follow(context, message)
        context.remember(message)

    def _other(self, record: Gap | Exchange, kind: str, out: list[Record]) -> None:
        context = self._context_of(record.conversation, record.protocol)
        if context.end_reported:
            return
        if type(record) is Exchange and record.response is None and len(context.unanswered) < UNANSWERED_KEPT:
            context.unanswered.append(record)
        self._apply(context, self._rules[context.family].of(kind), record, out)

    def _closed(self, closed: Closed, out: list[Record]) -> None:
        if self._steps is not None and self._is_step(closed, self._steps):
            return
        context = self._context_of(closed.conversation, closed.verdict.protocol)
        rules = self._rules[context.family]
        if closed.ahead is None:
            self._contexts.pop(closed.conversation, None)
        if context.end_reported:
            self._apply(context, rules.of(CLOSED_BEFORE, closed.traits(context)), closed, out)
            return
        for message, reason in closed.ahead or ():
            self._other(_left(message, reason, closed), EXCHANGE, out)
        context.end_reported = True
        overview, side = self.overview, closed.server
        server = closed.endpoints[side]
        if closed.verdict.protocol is not None and closed.client is not None and len(self._spoken) < ACROSS_KEPT:
            self._spoken.setdefault(server, closed.verdict.protocol)
            self.ports.add(closed.ports[side])
        elif closed.verdict.protocol is None and closed.expected is None:
            closed.expected = self._spoken.get(server)
        overview.end_ns = max(overview.end_ns, closed.end_ns)
        if closed.client is not None:
            context.client, context.server = closed.endpoints[closed.client], server
        else:
            context.client, context.server = context.client or closed.endpoints[0], context.server or closed.endpoints[1]
        if len(overview.dialled) < ACROSS_KEPT:
            overview.dialled[context.server] = None
        if closed.packets[side] and not closed.refused:
            overview.accept(context.server, 1)
        self._note_opened(context, closed)
        if context.active and len(overview.active) < ACROSS_KEPT:
            overview.active[host_of(context.client)] = None
        for message, request, refusal in context.pending:
            self._report_refusal(context, message, request, refusal, not _gone_on(context, message, refusal) and closed, out)
        context.pending.clear()
        self._release(context, out)
        set_late_aside(context, closed)
        self._apply(context, rules.of(CLOSED, closed.traits(context)), closed, out)
        if closed.verdict.protocol is None and closed.expected is None and context.worst is None:
            return
        worst = context.worst
        self.summaries[closed.conversation] = Outcome(
            closed.conversation,
            closed.first[3],
            context.client,
            context.server,
            closed.client is not None,
            closed.verdict.protocol,
            closed.verdict.name,
            _reached(context, closed),
            _ended(context, closed),
            sum(context.messages),
            None if worst is None else worst.severity,
            None if worst is None else worst.rule,
            closed.processes,
        )
        drop_oldest(self.summaries, SUMMARIES_KEPT)

    def _share(self, context: ConversationContext, record: Any, rule: str, step: Any) -> list[FindingDraft]:
        shared = context.family.shared
        assert shared is not None
        if self._steps is None:
            file = record.file if type(record) is Message else record.first[2]
            return shared(_kept_of(self._kept, (context.protocol, context.server, file if self._separate else 0)), step)
        about = rule, context.conversation, context.client, context.server, 0, context.protocol
        if type(record) is Message:
            shown = Step(*about, record.number, record.time_ns, record.src, record.dst, record.sender, step)
        else:
            shown = Step(*about, None, record.until_ns, context.client or "", context.server or "", None, step)
        self._steps.append(shown)
        return []

    def _is_step(self, closed: Closed, steps: list[Step]) -> bool:
        """Note what a connection shows of its server; whether all that it shows depends on other connections."""
        protocol, server = closed.verdict.protocol, closed.endpoints[closed.server]
        if protocol is not None and closed.client is None:
            return False
        alone = protocol is None and closed.expected is None
        if protocol is not None or alone:
            rule = SPEAKS if protocol is not None else CLOSES if any(closed.bytes) else UNUSED
            steps.append(Step(rule, closed.conversation, None, server, 0, protocol, None, closed.until_ns, "", "", None, alone and closed))
        return alone

    def _note_opened(self, context: ConversationContext, closed: Closed) -> None:
        """Note a connection whose beginning was captured, as others may be copies of it."""
        client, server = closed.numbers
        if client is None or server is None or not closed.ours or not any(closed.bytes):
            return
        content = tuple(context.content) if any(context.messages) else closed.bytes
        head = (*closed.endpoints, closed.verdict.protocol or "tcp", closed.first[3], closed.first[1])
        self.overview.copies.add((client, server), Opened(*head, closed.ttls, content))

    def _apply(self, context: ConversationContext, rules: Iterable[Rule], record: Any, out: list[Record]) -> None:
        for rule in rules:
            try:
                draft = rule.check(context, record)
            except Exception as error:
                self._report(describe_exception(error), context.conversation)
                continue
            if not draft:
                continue
            for one in draft if isinstance(draft, list) else (draft,):
                if one is not None:
                    self._report_draft(context, rule, one if isinstance(one, FindingDraft) else FindingDraft(one), record, out)

    def _report_draft(self, context: ConversationContext, rule: Rule, draft: FindingDraft, record: Any, out: list[Record]) -> None:
        name = draft.rule or rule.name
        name = name if "." in name else f"{context.protocol}.{name}"
        severity = draft.severity or rule.severity
        message = record if type(record) is Message else None
        closed = record if type(record) is Closed else None
        if message is not None and severity != NOTE:
            context.reported.add(message.number)
        key = (name, draft.cause if draft.key is None else draft.key)
        before = context.found.get(key)
        if before is not None:
            before[0] += 1
            before[2] = before[2] or draft.cause != before[1].cause
            return
        if len(context.found) >= FOUND_KEPT:
            return
        messages, marks = draft.messages, draft.packets
        if messages is None:
            request = None if message is None else context.request_of(message)
            messages = numbers(request, message) if message is not None else (record.request,) if type(record) is Exchange else ()
        if marks is None:
            marks = ()
            if messages:
                shown = context.remembered()
                if message is not None:
                    shown[message.number] = message
                marks = packets(*map(shown.get, messages))
            if closed is not None and closed.last[1] not in marks:
                marks = (*marks, closed.last[1])
        if closed is None:
            src, dst, sender = record.src, record.dst, getattr(record, "sender", None)
            time_ns = came_ns = record.time_ns
            timed = time_ns != 0
        else:
            src, dst, sender = context.client or "", context.server or "", None
            # The end of the capture is not the time of the error
            time_ns, came_ns, timed = closed.until_ns, min(closed.until_ns, closed.last[3]), not closed.untimed
        if draft.at_ns is not None:
            came_ns = draft.at_ns
        cause = draft.cause if timed else untimed(draft.cause)
        if draft.is_fact:
            self.overview.add(context, draft, Seen(name, severity, cause, came_ns, messages, marks))
            return
        protocol = None if context.protocol == "tcp" else context.protocol
        head = (1, 0, _time_text(time_ns), time_ns, context.conversation, src, dst, sender, protocol, name, severity)
        finding = Finding(*head, cause, draft.advice or rule.advice, [*messages[:EVIDENCE]], [*marks[:EVIDENCE]])
        context.found[key] = [1, finding, False]
        if draft.alike:
            context.held[key] = draft
        else:
            self._report_finding(context, finding, draft, came_ns, out)

    def _release(self, context: ConversationContext, out: list[Record], ended: bool = True) -> None:
        """Report the findings that waited for their count; `ended`: nothing more comes that may withdraw one."""
        for key, draft in [*context.held.items()]:
            count, finding, differ = found = context.found[key]
            if not ended and not is_certain(context, draft, finding.src):
                continue
            del context.held[key]
            if count > 1:
                times = "twice" if count == 2 else f"{count:,} times"
                finding.cause += f"; {times} on this connection{', with different numbers' if differ else ''}"
                found[0] = 1
            self._report_finding(context, finding, draft, finding.time_ns, out)

    def _report_finding(self, context: ConversationContext, finding: Finding, draft: FindingDraft, came_ns: int, out: list[Record]) -> None:
        self._add(out, finding)
        if draft.places:
            self.overview.send(draft.places, finding)
        if context.worst is None or _RANK[finding.severity] < _RANK[context.worst.severity]:
            context.worst = finding
        if finding.severity != NOTE:
            seen = Seen(finding.rule, finding.severity, finding.cause, came_ns, finding.messages, finding.packets)
            self.overview.add(context, draft, seen)

    def _add(self, out: list[Record], finding: Finding) -> None:
        self._numbers += 1
        finding.number = self._numbers
        out.append(finding)

    # Refusals: how bad one is shows in what comes after it

    def _refused(self, context: ConversationContext, message: Message, out: list[Record]) -> None:
        family, request = context.family, context.request_of(message)
        refusal = Refusal(_reason(message, request)) if family.refusal is None else family.refusal(context, message, request)
        if context.family.steps and not context.ready and context.orphans is not None:
            self._report_refusal(context, message, request, refusal, None, out)
        elif len(context.pending) < PENDING:
            context.pending.append((message, request, refusal))
        elif refusal.lacks:
            self._report_refusal(context, message, request, refusal, False, out)
        elif not refusal.text:
            context.count_refusal(_called(context, message, request), refusal.why, False)

    def _settle(self, context: ConversationContext, message: Message, out: list[Record]) -> None:
        """Report refusals that this message decides: the client goes on or succeeds, or the server sends Close."""
        closes = message.name in context.family.closing and message.kind != "response"
        asked = context.request_of(message) if message.outcome == "answered" else None
        pending, context.pending = context.pending, []
        for refused, request, refusal in pending:
            left = closes and message.src == refused.src
            waits = refusal.lacks and message.time_ns - refused.time_ns < RETRY_NS
            taken = asked is not None and request is not None and (asked.name, asked.stream) == (request.name, request.stream)
            if left or (refusal.lacks and taken) or (message.src == refused.dst and not waits):
                ended = left and not _gone_on(context, refused, refusal) and message
                self._report_refusal(context, refused, request, refusal, bool(refusal.lacks and taken) or ended, out)
            else:
                context.pending.append((refused, request, refusal))

    def _report_refusal(
        self,
        context: ConversationContext,
        message: Message,
        request: Message | None,
        refusal: Refusal,
        ended: Message | Closed | bool | None,
        out: list[Record],
    ) -> None:
        """`ended`: what ended the connection behind it, None: the handshake ends with it, False: the client went on, True: it asked again
        and got it."""
        severity: Severity = NOTE if refusal.expected else WARNING
        behind = ""
        match ended:
            case None:
                severity, behind = ERROR, ", which ends the handshake"
            case Message():
                severity, behind = ERROR, f", and the {message.sender} closes"
            case Closed() if _ends_it(context, message, ended) and not refusal.expected:
                severity, behind = ERROR, f", and the {message.sender or 'other side'} ends the connection"
            case True:
                severity, behind = WARNING, "; a later one succeeds"
            case _ if refusal.lacks:
                severity, behind = ERROR, f", so the client cannot {refusal.lacks}"
            case Closed() if refusal.needed and ended.by is not None and not context.close_seen:
                severity, behind = ERROR, ", and the client closes the connection"
        about = f" for {refusal.about}" if refusal.about else ""
        name = refusal.asked or _called(context, message, request)
        cause, alike = f"{name}{about} is refused: {refusal.why}{behind}", ""
        key = (name, refusal.about if refusal.lacks else "", refusal.why, severity)
        if refusal.text and severity != ERROR:
            alike = f"{name}{about}: {refusal.why.partition(chr(34))[0]}{without_numbers(refusal.text[:1000])}"
        evidence = numbers(request, message), packets(request, message)
        draft = FindingDraft(cause, *evidence, severity, refusal.advice, alike or key, rule=refusal.rule, alike=alike)
        before = self._numbers
        self._report_draft(context, _REFUSAL, draft, message, out)
        if not alike:
            context.count_refusal(name, refusal.why, self._numbers > before)

    def _report(self, what: str, conversation: int | None) -> None:
        self.reports.append(Report(what, "a finding may be missing", None, None, conversation))


_time_text = lru_cache(8)(rfc3339)
"""What the end of a capture shows of many conversations has one time."""

_RANK = {severity: at for at, severity in enumerate(SEVERITIES)}


def _kept_of(kept: dict[Server, dict[Hashable, Any]], server: Server) -> dict[Hashable, Any]:
    """What a server keeps across connections; the oldest goes where there are too many."""
    found = kept.setdefault(server, {})
    drop_oldest(kept, SERVERS_KEPT)
    return found


_REFUSAL = Rule("refused", WARNING, (), lambda context, message: None, REFUSED_ADVICE)


def _left(message: Message, reason: str, closed: Closed) -> Exchange:
    """Return the exchange of a request that will have no response."""
    head = (1, 0, rfc3339(closed.until_ns), closed.until_ns, message.conversation, message.src, message.dst, message.protocol, message.name)
    return Exchange(*head, message.id, message.stream, message.number, None, "unanswered", reason, None, closed.until_ns - message.time_ns)


def _called(context: ConversationContext, message: Message, request: Message | None) -> str:
    """Return the name of the request that a message answers."""
    return request.name if request is not None else "a request" if context.family.renames_responses else message.name


def _gone_on(context: ConversationContext, message: Message, refusal: Refusal) -> bool:
    """Return whether the refused side went on after a refusal that could wait."""
    last = context.last[0 if message.sender == "server" else 1]
    return bool(refusal.lacks) and last is not None and last.number > message.number


def _ends_it(context: ConversationContext, message: Message, closed: Closed) -> bool:
    """Return whether the sender of a response then ended the connection, without a Close."""
    return closed.by is not None and closed.endpoints[closed.by] == message.src and not context.close_seen


def _reason(message: Message, request: Message | None) -> str:
    """Return the reason in a refused response of any protocol. Labels that its request has too, such as a frame type, are skipped."""
    fields = message.fields
    asked: Any = () if request is None else request.fields
    labels = [(name, str(value)) for name, value in fields.items() if name.endswith("_label") and value]
    for name, value in labels:
        if name not in asked:
            return value
    for name in ("errMsg", "message", "reason", "error"):
        if fields.get(name):
            return str(fields[name])[:200]
    return labels[0][1] if labels else "no reason given"


def _reached(context: ConversationContext, closed: Closed) -> str:
    """How far a conversation got: TCP, TLS, another protocol than the port's, or the steps of the handshake."""
    if closed.verdict.protocol is None and not any(closed.bytes):
        return "TCP" if closed.packets[closed.server] > 1 or (closed.how != "RST" and closed.packets[closed.server]) else "nothing"
    if closed.verdict.protocol is None and closed.tls is not None:
        return "TLS handshake" if closed.handshake_open else "TLS"
    if closed.verdict.protocol is None:
        return closed.verdict.name or "unknown bytes"
    if context.family.reached is not None:
        return context.family.reached(context, closed)
    return context.reached() + (" or later" if context.missing() is not None and context.opening_seen and closed.lacking else "")


def _ended(context: ConversationContext, closed: Closed) -> str:
    """What ended a conversation."""
    if not closed.ended:
        return closed.how
    if context.close_message is not None and context.close_message.sender is not None:
        return f"{context.close_message.name} by {context.close_message.sender}"
    if closed.by is None and context.close_answered is not None:
        return context.close_answered
    return f"{closed.who(closed.by).removeprefix('the ')} {closed.verb}"
