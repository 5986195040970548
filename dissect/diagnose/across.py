"""What only several conversations together show: the same errors, retries, where clients are sent, streams that others deleted."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any, NamedTuple

import msgspec

from ..model import Finding, Severity
from ..units import duration_text, some
from .copies import Copies, causes
from .network import NetworkEvidence
from .rules import (
    ERROR,
    EVIDENCE,
    NOT_DIALLED,
    NOTE,
    PATIENCE_NS,
    WARNING,
    ConversationContext,
    FindingDraft,
    host_of,
    is_address,
    quoted,
    without_times,
)


class Seen(NamedTuple):
    """What one conversation shows: a rule, its severity and cause, when it happened, and the evidence."""

    rule: str
    severity: Severity
    cause: str
    time_ns: int
    messages: Sequence[int]
    packets: Sequence[int]


class Occurrence(NamedTuple):
    """When something happened, to which client, and the last packet and message that show it."""

    time_ns: int
    client: str
    packet: int
    message: Any


class Failed(msgspec.Struct):
    """The same error, warning or fact about one server, in one or several conversations.

    It does not depend on the order in which these are added, so that those of several tasks can be merged: the cause, the client and the
    places are those of the earliest.
    """

    rule: str
    severity: Severity
    cause: str
    alike: str
    """The cause without numbers: equal for the same error."""
    protocol: str
    client: str | None
    server: str | None
    places: tuple[str, ...]
    conversations: int
    first_ns: int
    last_ns: int
    hosts: dict[str, int] = msgspec.field(default_factory=dict)
    """By client the conversations, of those with the lowest names."""
    shown: list[Occurrence] = msgspec.field(default_factory=list)
    """The earliest."""

    @property
    def messages(self) -> list[int]:
        return [one.message for one in self.shown if one.message is not None]

    @property
    def packets(self) -> list[int]:
        return [one.packet for one in self.shown if one.packet]

    def merge(self, other: Failed) -> None:
        """Add other occurrences."""
        if other.shown[0][:3] < self.shown[0][:3]:
            self.severity, self.cause, self.client, self.places = other.severity, other.cause, other.client, other.places
        self.conversations += other.conversations
        # 0 is the time of packets without one
        self.first_ns = min(self.first_ns or other.first_ns, other.first_ns or self.first_ns)
        self.last_ns = max(self.last_ns, other.last_ns)
        self.shown = sorted([*self.shown, *other.shown], key=lambda one: one[:3])[:EVIDENCE]
        for host, count in other.hosts.items():
            self.hosts[host] = self.hosts.get(host, 0) + count
        while len(self.hosts) > HOSTS_KEPT:
            del self.hosts[max(self.hosts)]


class Overview:
    """The state of all conversations together, and from ICMP and DNS."""

    def __init__(self) -> None:
        self.network = NetworkEvidence()
        self.copies = Copies()
        """Which connections may be copies of others."""
        self.end_ns = 0
        """When the last of all packets came."""
        self._failed: dict[tuple[Hashable, ...], Failed] = {}
        self._facts: dict[tuple[Hashable, ...], Failed] = {}
        self.sent: dict[tuple[str, ...], Finding] = {}
        """The findings that send clients to other endpoints, by these."""
        self.dialled: dict[str, None] = {}
        """The endpoints that clients connected to."""
        self.active: dict[str, None] = {}
        """The hosts that publish or consume."""
        self.accepted: dict[str, int] = {}
        """By endpoint how many connections were accepted there."""

    @property
    def failed(self) -> list[Failed]:
        """All errors and warnings, the first before the others."""
        return sorted(self._failed.values(), key=_place)

    def accepts(self, server: str | None) -> bool:
        """Whether a server accepted a connection, or may have."""
        return server in self.accepted or len(self.accepted) >= ACCEPTED_KEPT

    def facts(self, rule: str) -> list[Failed]:
        """Return the facts of a kind (`fact`), the first before the others."""
        found = [one for one in self._facts.values() if one.rule.partition(".")[2] == rule]
        return sorted(found, key=_place)

    def accept(self, server: str, count: int) -> None:
        """Count connections that a server accepted."""
        if server in self.accepted or len(self.accepted) < ACCEPTED_KEPT:
            self.accepted[server] = self.accepted.get(server, 0) + count

    def add(self, context: ConversationContext, draft: FindingDraft, seen: Seen) -> None:
        """Count a fact, or what went wrong, as other conversations may have it, too."""
        kept = self._facts if draft.is_fact else self._failed
        key = (seen.rule, draft.alike or without_times(seen.cause), context.server)
        counted = key in context.counted
        if not counted and len(context.counted) < ACROSS_KEPT:
            context.counted.add(key)
        host = {} if counted else {host_of(context.client): 1}
        messages, packets = seen.messages[:EVIDENCE][-1:], seen.packets[:EVIDENCE][-1:]
        shown = Occurrence(seen.time_ns, context.client or "", packets[0] if packets else 0, messages[0] if messages else None)
        about = seen.rule, seen.severity, seen.cause, key[1], context.protocol, context.client, context.server, draft.places
        self._count(kept, Failed(*about, int(not counted), seen.time_ns, seen.time_ns, host, [shown]))

    def _count(self, kept: dict[tuple[Hashable, ...], Failed], one: Failed) -> None:
        key = (one.rule, one.alike, one.server)
        if key in kept:
            kept[key].merge(one)
        elif len(kept) < ACROSS_KEPT:
            kept[key] = one

    def send(self, places: tuple[str, ...], finding: Finding) -> None:
        """Note a finding that sends clients to these endpoints, the first one."""
        before = self.sent.get(places)
        if len(self.sent) < PLACES_KEPT if before is None else _came(finding) < _came(before):
            self.sent[places] = finding

    def seen(self) -> tuple[Any, ...]:
        """All of it but ICMP and DNS, as plain data."""
        failed = [[msgspec.structs.asdict(one) for one in kept.values()] for kept in (self._failed, self._facts)]
        sent = [(places, msgspec.structs.asdict(one)) for places, one in self.sent.items()]
        return *failed, sent, list(self.dialled), list(self.active), self.accepted, self.copies.seen(), self.end_ns

    def merge(self, seen: Sequence[Any]) -> None:
        """Add what another `Overview` holds, of other conversations."""
        *failed, sent, dialled, active, accepted, copies, end_ns = seen
        for kept, more in zip((self._failed, self._facts), failed, strict=True):
            for one in more:
                shown = [Occurrence(*each) for each in one["shown"]]
                self._count(kept, Failed(**one | {"places": tuple(one["places"]), "shown": shown, "hosts": {**one["hosts"]}}))
        for places, one in sent:
            self.send(tuple(places), Finding(**one))
        self.dialled |= dict.fromkeys(dialled)
        self.active |= dict.fromkeys(active)
        for server, count in accepted.items():
            self.accept(server, count)
        self.copies.merge(copies)
        self.end_ns = max(self.end_ns, end_ns)


def _place(one: Failed) -> tuple[Any, ...]:
    """What sorts errors and facts, the earliest first."""
    return *one.shown[0][:3], one.rule, one.alike


def _came(finding: Finding) -> tuple[Any, ...]:
    return finding.time_ns, finding.src, finding.dst, finding.packets


class Across(NamedTuple):
    """A rule about several conversations. `check` yields each finding with the record that names its client, server and protocol."""

    name: str
    severity: Severity
    check: Callable[[Overview], Iterator[tuple[FindingDraft, Failed | Finding]]]
    advice: str


ACROSS_KEPT = 4_096
"""Errors, warnings and facts counted over all conversations, at most."""

HOSTS_KEPT = 16
"""Clients counted for one error, at most."""

PLACES_KEPT = 256
"""Endpoints that clients are sent to, at most."""

SAME = 3
"""Occurrences that make a pattern."""

LOST_NS, SOON_NS = 10_000_000_000, 5_000_000_000
"""A client that lost its stream should have found it again by then; and a server reports a loss, and a client tries again, by then."""

ACCEPTED_KEPT = 4_096
"""Endpoints that accepted connections, at most."""

_NOT_ACCEPTED = ("tcp.refused", "tcp.unanswered")
_TCP_ENDS = (*_NOT_ACCEPTED, "tcp.accepted-only", "tcp.reset-in-handshake")


def _shown(cause: str, *every: Failed | Finding, severity: Severity | None = None) -> FindingDraft:
    """Return a draft with the evidence of all these."""
    messages, marks = [number for one in every for number in one.messages], [packet for one in every for packet in one.packets]
    return FindingDraft(cause, tuple(messages), tuple(marks), severity)


def _by_server(seen: Overview, rules: tuple[str, ...]) -> list[Failed]:
    """Return the findings of these rules, merged by server: their causes differ in the number and the times of SYNs."""
    found: dict[tuple[str, str | None], Failed] = {}
    for one in seen.failed:
        if one.rule in rules and (one.rule, one.server) in found:
            found[one.rule, one.server].merge(one)
        elif one.rule in rules:
            found[one.rule, one.server] = msgspec.structs.replace(one, hosts={**one.hosts})
    return list(found.values())


def _everybody(seen: Overview) -> Iterator[tuple[FindingDraft, Failed | Finding]]:
    for one in _by_server(seen, _TCP_ENDS):
        if one.conversations < SAME or len(one.hosts) == 1 or (one.rule in _NOT_ACCEPTED and seen.accepts(one.server)):
            continue
        of = f"{one.conversations:,} connections of {len(one.hosts)} clients{' or more' if len(one.hosts) == HOSTS_KEPT else ''}"
        if one.rule == "tcp.unanswered":
            yield _shown(f"nothing at {one.server} accepts connections: {of} have no answer", one), one
        else:
            yield _shown(f"{one.server} refuses every connection: {of}", one), one


def _not_all_accepted(seen: Overview) -> Iterator[tuple[FindingDraft, Failed | Finding]]:
    for one in _by_server(seen, ("tcp.unanswered",)):
        accepted, count = seen.accepted.get(one.server or "", 0), one.conversations
        what = f"{count:,} of {count + accepted:,} connections to {one.server} {'has' if count == 1 else 'have'} no answer"
        if accepted:
            yield _shown(f"{what}; it accepted the other{'' if accepted == 1 else 's'}", one), one


def _copied(seen: Overview) -> Iterator[tuple[FindingDraft, Failed | Finding]]:
    for cause, marks, one in causes(seen.copies.found()):
        about = "tcp.captured-twice", NOTE, cause, cause, one.protocol, one.client, one.server, ()
        where = Failed(*about, len(marks), one.time_ns, one.time_ns)
        yield FindingDraft(cause, packets=marks), where


def _retries(seen: Overview) -> Iterator[tuple[FindingDraft, Failed | Finding]]:
    for one in seen.failed:
        host, times = max(one.hosts.items(), key=lambda each: (each[1], each[0]), default=("", 0))
        if one.severity == ERROR and times >= SAME and not (one.rule in _NOT_ACCEPTED and seen.accepts(one.server)):
            each = (one.last_ns - one.first_ns) // max(1, one.conversations - 1)
            often = f", one every {duration_text(each)}" if each else ""
            cause = f"{host} retries repeatedly: {times:,} connections to {one.server}{often}, each with the same error: {one.cause}"
            yield _shown(cause, one), one


def _same(seen: Overview) -> Iterator[tuple[FindingDraft, Failed | Finding]]:
    for one in seen.failed:
        looped = one.severity == ERROR and max(one.hosts.values(), default=0) >= SAME
        if one.conversations >= SAME and not looped and one.rule not in _TCP_ENDS and not one.rule.endswith(".again-and-again"):
            yield _shown(f"the same error in {one.conversations:,} conversations with {one.server}: {one.cause}", one), one


def _unreachable(seen: Overview) -> Iterator[tuple[FindingDraft, Failed | Finding]]:
    """Clients are sent to an endpoint that does not answer."""
    for places, finding in sorted(seen.sent.items()):
        for one in seen.failed:
            if one.server in places and one.rule in _TCP_ENDS and not (one.rule in _NOT_ACCEPTED and seen.accepts(one.server)):
                cause = f"clients are sent to {one.server}, where connections fail: {one.cause}"
                yield _shown(cause, finding, one), finding
                break


def _never_dialled(seen: Overview) -> Iterator[tuple[FindingDraft, Failed | Finding]]:
    """Clients are sent to another endpoint and connect to none. One that only opened connections counts if it did so repeatedly."""
    explained = {one.server for _, one in _never_leader(seen) if isinstance(one, Failed)}
    for one in seen.facts("advertised-not-dialled"):
        if one.server in explained or any(seen.network.unresolved(host_of(place)) for place in one.places):
            continue
        lost = [host for host in sorted(one.hosts) if host not in seen.active]
        tries = one.conversations if one.last_ns - one.first_ns <= one.conversations * SOON_NS else 0
        if lost and (one.severity != NOTE or tries >= SAME) and not any(_dialled(seen, one, place) for place in one.places):
            yield _shown(f"{some(lost)} {one.cause}, and the capture has no connection to it", one), one


def _unresolved(seen: Overview) -> Iterator[tuple[FindingDraft, Failed | Finding]]:
    """Clients are sent to a name that has no address."""
    sent: list[tuple[tuple[str, ...], str | None, Failed | Finding]] = [(places, one.src, one) for places, one in sorted(seen.sent.items())]
    sent += [(one.places, one.server, one) for one in (*seen.facts("advertised-name"), *seen.facts("advertised-not-dialled"))]
    done = set()
    for place, server, one in [(place, server, one) for places, server, one in sent for place in places]:
        host = host_of(place)
        answers = None if is_address(host) or host in done else seen.network.unresolved(host)
        if answers is not None:
            done.add(host)
            often = f", {answers.times} times" if answers.times > 1 else ""
            cause = f"{server} sends clients to {place}, and the name has no address: DNS answers {answers.failure}{often}"
            yield (
                FindingDraft(cause, tuple(one.messages), tuple(sorted((*one.packets[: EVIDENCE // 2], *answers.packets[: EVIDENCE // 2])))),
                one,
            )


def _dialled(seen: Overview, one: Failed, place: str) -> bool:
    """Return whether a client connected there; a name matches any other server on its port."""
    host, _, port = place.rpartition(":")
    return place in seen.dialled if is_address(host) else any(each != one.server and each.endswith(f":{port}") for each in seen.dialled)


def _deleted(seen: Overview) -> Iterator[tuple[FindingDraft, Failed | Finding]]:
    """A stream is deleted by one client and missed by another."""
    deleted: dict[str, list[Failed]] = {}
    for one in seen.facts("stream-deleted"):
        deleted.setdefault(one.places[0], []).append(one)
    every = sorted((one for one in seen.facts("stream-lost") if one.last_ns), key=lambda one: one.places[3] == "refused")
    refused = {_whose(one): one for one in every if one.places[3] == "refused"}
    then = {kind: {one.alike: one.last_ns for one in seen.facts(kind)} for kind in ("stream-used", "stream-unsure", "leader-named")}
    reported: dict[str, str] = {}
    for lost in every:
        (stream, did, _, how), about = lost.places, _whose(lost)
        by = next((one for one in _deletions(deleted, stream) if one.client != lost.client and _before(one, lost, how)), None)
        if how == "refused" and by is not None and about not in reported:
            wanted_ns = lost.first_ns if lost.first_ns >= by.last_ns else lost.last_ns
            cause, severity = f"{by.client} deleted {by.cause} {duration_text(wanted_ns - by.last_ns)} before {lost.client} {did} it", ERROR
        elif how != "refused" and then["stream-used"].get(about, 0) <= lost.last_ns:
            after = _after_loss(seen, lost, by is None, refused.get(about), then)
            if after is None:
                continue
            what = (
                f"{by.client} deleted {by.cause}"
                if by
                else f"the stream {quoted(stream)} was deleted or moved (no Delete is in the capture)"
            )
            cause, severity = (
                f"{what} while {lost.client} {did} it; {after}",
                ERROR if by and about not in then["stream-unsure"] else WARNING,
            )
        else:
            continue
        if cause not in reported.values():
            yield _shown(cause, *filter(None, (by, lost)), severity=severity), lost
        reported[about] = cause


def _whose(lost: Failed) -> str:
    """A stream, and the host that lost it."""
    return f"{lost.places[0]} {host_of(lost.client)}"


def _after_loss(seen: Overview, lost: Failed, unexplained: bool, refused: Failed | None, then: dict[str, dict[str, int]]) -> str | None:
    """Return what a client did after it lost a stream; None if the capture shows nothing wrong."""
    about, waited = _whose(lost), seen.end_ns - lost.last_ns
    if refused is not None and refused.last_ns > lost.last_ns:
        return f"that client {refused.places[1]} it again and was refused"
    # A client that looked the stream up may go on at a server that is not captured
    if waited < LOST_NS or (unexplained and (about in then["stream-unsure"] or then["leader-named"].get(about, 0) > lost.last_ns)):
        return None
    if about in then["stream-unsure"]:
        return "the capture lacks packets that would show whether that client came back"
    return f"that client {lost.places[2]} again in the {duration_text(waited)} until the capture ends"


def _deletions(deleted: dict[str, list[Failed]], stream: str) -> Iterator[Failed]:
    """What deleted a stream, or what it is in: the super stream of a partition, the stream of a topic of Iggy."""
    yield from deleted.get(stream, ())
    for separator in "-/":
        for one in deleted.get(stream.rpartition(separator)[0], ()):
            if one.places[1] == separator:
                yield one


def _before(deleted: Failed, lost: Failed, how: str) -> bool:
    """Return whether a stream was lost because it was deleted: the server reports this at once to its users, later to clients that ask."""
    passed = lost.last_ns - deleted.last_ns
    return passed >= 0 if how == "refused" else abs(passed) < SOON_NS


def _stalled(seen: Overview) -> Iterator[tuple[FindingDraft, Failed | Finding]]:
    """A server that stopped answering any connection."""
    facts = seen.facts("server-stalled")
    answered = {one.server: one.last_ns for one in facts if one.alike == "answered"}
    waiting: dict[str | None, list[Failed]] = {server: [] for server in answered}
    for one in facts:
        if one.alike != "answered" and one.server in answered and one.first_ns > answered[one.server] - PATIENCE_NS:
            waiting[one.server].append(one)
    for server, found in waiting.items():
        if len(found) < SAME or seen.end_ns - max(answered[server], found[0].first_ns) < PATIENCE_NS:
            continue
        clients = {host_of(one.client) for one in found}
        whose = f"{len(found):,} connections of {len(clients):,} clients" if len(clients) > 1 else f"{len(found):,} connections"
        passed = duration_text(seen.end_ns - found[0].first_ns)
        cause = (
            f"{server} no longer answers any client: requests of {whose} have no answer, the first was sent "
            f"{passed} before the capture ends"
        )
        yield _shown(cause, *found), found[0]


def _never_leader(seen: Overview) -> Iterator[tuple[FindingDraft, Failed | Finding]]:
    """A client opens connections through a load balancer, and none leads to the leader of its stream."""
    landed: dict[tuple[str | None, str], list[Failed]] = {}
    for one in seen.facts("landed"):
        landed.setdefault((one.server, host_of(one.client)), []).append(one)
    for wanted in seen.facts("leader-named"):
        (stream, leader), host = wanted.places, host_of(wanted.client)
        every = landed.get((wanted.server, host), [])
        unused = [one for one in every if one.places[1] != "used" and one.last_ns >= wanted.first_ns]
        # Where there are any, only connections that asked for the leader count
        left = [one for one in unused if one.places[1] == "left"] or unused
        count = sum(one.conversations for one in left)
        passed = max((one.last_ns for one in left), default=0) - min((one.first_ns for one in left), default=0)
        if count < SAME or passed > count * SOON_NS or any(one.places[0] == leader for one in every) or _dialled(seen, wanted, leader):
            # A client that checks from time to time whether the server runs needs no leader
            continue
        led = some([f"{one.places[0]} ({one.conversations:,})" for one in left])
        cause = f"{host} opened {count:,} connections to {wanted.server} and used none: they led to {led}, never to {leader}"
        yield _shown(f"{cause}, the leader of {quoted(stream)}", wanted, *left), wanted


def _redelivered(seen: Overview) -> Iterator[tuple[FindingDraft, Failed | Finding]]:
    """A single active consumer begins before the offset up to which the one before it got."""
    groups: dict[tuple[str, ...], list[tuple[list[int], Failed]]] = {}
    for one in seen.facts("offsets-delivered"):
        groups.setdefault(one.places[:2], []).append((list(map(int, one.places[2:])), one))
    for (stream, group), every in groups.items():
        ended = sorted(every, key=lambda found: found[0][-1])
        at, stored, before = 0, -1, None
        for (first, last, _, began_ns, _), one in sorted(every, key=lambda found: found[0][-2]):
            while at < len(ended) and ended[at][0][-1] <= began_ns:
                before, stored, at = ended[at], max(stored, ended[at][0][2]), at + 1
            if before is None or first > before[0][1]:
                continue
            (since, got, *_), prior = before
            stale = first <= (stored if stored >= 0 else since)
            again = f"offset {first:,}" if first == min(last, got) else f"offsets {first:,} to {min(last, got):,}"
            although = f", although offset {stored:,} had been stored" if stale and stored >= 0 else ""
            change = f"changed from {prior.client} to {one.client}, which"
            if prior.client == one.client:
                change = f"became active again at {one.client}, and"
            cause = f"the single active consumer {quoted(group)} of {quoted(stream)} {change} gets {again} again{although}"
            yield _shown(cause, prior, one, severity=None if stale else NOTE), one


ACROSS: tuple[Across, ...] = (
    Across(
        "server-stalled",
        ERROR,
        _stalled,
        "Check the server first (CPU, memory, disks, its log) at the time of the first packet named: all clients wait for it.",
    ),
    Across(
        "stream-deleted",
        ERROR,
        _deleted,
        "Find out why it was deleted, and recreate it if needed; have clients look up a stream that they lost, and continue there.",
    ),
    Across(
        "advertised-unreachable",
        ERROR,
        _unreachable,
        "Configure the server to advertise a host and port that clients can reach, and check for firewalls on the path.",
    ),
    Across(
        "never-at-the-leader",
        WARNING,
        _never_leader,
        "Check that the leader is up and among the load balancer's targets, or have clients connect to it directly.",
    ),
    Across(
        "advertised-unresolved",
        WARNING,
        _unresolved,
        "Configure the server to advertise a name that clients can resolve, or an address, or add the name to their DNS.",
    ),
    Across("advertised-not-dialled", WARNING, _never_dialled, NOT_DIALLED),
    Across(
        "tcp.not-all-accepted",
        WARNING,
        _not_all_accepted,
        "Check whether the server accepts connections in time (listen queue, limits); the address is right.",
    ),
    Across(
        "tcp.captured-twice",
        NOTE,
        _copied,
        "Capture on one interface only, or leave one of the two out with -Y (by src, dst or conversation), where numbers or times count.",
    ),
    Across(
        "redelivered",
        WARNING,
        _redelivered,
        "Have a consumer that becomes active query the stored offset (QueryOffset), and answer ConsumerUpdate with the next one.",
    ),
    Across("tcp.turns-everybody-away", ERROR, _everybody, "Check the server first: no client can connect."),
    Across("retry-loop", ERROR, _retries, "Fix the cause, and have the client wait longer between attempts."),
    Across("again-and-again", WARNING, _same, "Check what these clients have in common: configuration, version, stream."),
)
