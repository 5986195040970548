"""The `diagnose` view: findings, the most severe first, and how far each conversation got."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from ..diagnose.engine import Outcome
from ..diagnose.rules import SEVERITIES
from ..model import Finding
from . import processes
from .clock import Clock
from .terminal import Palette, cut, pad, visible, width, wrapped

COLUMNS = 80
"""Where there is no terminal that says how wide it is."""

LISTED = 200
"""The most conversations with a line of their own."""

SHOWN = 8
"""The most packets and messages that are named."""


Files = Mapping[int | None, str]
"""Where there are several, by conversation the one that it begins in."""

NO_FILES: Files = MappingProxyType({})


def rank(one: Finding) -> tuple[int, bool, bool, bool, int]:
    """Where a finding stands: the most severe first, of these the ones of several conversations, then those below the protocol and may
    explain the rest, which where it is only noted explains nothing; what single calls threw, and that something came often, stands behind
    what went wrong between both sides; earlier ones before later ones."""
    below = one.rule.startswith(("tcp.", "tls."))
    thrown = one.rule.endswith((".exception", ".unknown-verb", ".again-and-again"))
    return SEVERITIES.index(one.severity), one.conversation is not None, below == (one.severity == "note"), thrown, one.time_ns


def _worth(summaries: Sequence[Outcome]) -> Sequence[Outcome]:
    """The conversations that are listed, in their order: where there are too many, those with the worst findings."""
    if len(summaries) <= LISTED:
        return summaries
    worst = sorted(summaries, key=lambda one: len(SEVERITIES) if one.worst is None else SEVERITIES.index(one.worst))
    return sorted(worst[:LISTED], key=lambda one: one.conversation)


class RepeatedFinding(NamedTuple):
    """A finding, the conversations of which it or others say the same, and the first processes behind these."""

    finding: Finding
    conversations: list[int]
    processes: dict[str, None]


class FindingGroups:
    """The findings of a run, equal ones grouped, up to a limit of different ones."""

    KEPT = 10_000

    def __init__(self) -> None:
        self._same: dict[tuple[str, str, str], RepeatedFinding] = {}
        self.passed = 0
        """The number of findings beyond the limit."""

    def add(self, findings: Iterable[Finding]) -> None:
        """Add findings, in their order."""
        for one in findings:
            key = (one.severity, one.rule, one.cause)
            same = self._same.get(key)
            if same is None:
                if len(self._same) >= self.KEPT:
                    self.passed += 1
                    continue
                same = self._same[key] = RepeatedFinding(one, [], {})
            if one.conversation is not None:
                same.conversations.append(one.conversation)
            if len(same.processes) <= SHOWN:
                same.processes.update(dict.fromkeys(processes.of_finding(one)))

    def ordered(self) -> list[RepeatedFinding]:
        """All findings, the worst first."""
        return sorted(self._same.values(), key=lambda one: rank(one.finding))


class NamedNumbers(NamedTuple):
    """Messages, packets or conversations; `numbers` has the first ones, `more` says whether there are others."""

    name: str
    numbers: Sequence[int]
    more: str = ""

    def __str__(self) -> str:
        return f"{self.name} {', '.join(map(str, self.numbers))}{self.more}"


def places_of(one: Finding, conversations: Sequence[int] = (), files: Files = NO_FILES) -> list[NamedNumbers]:
    """Return where a finding is: its conversation, or all those with the same finding, its messages and its packets."""
    file = files.get(one.conversation)
    mine = [] if one.conversation is None else [one.conversation]
    several = sorted(conversations) if len(conversations) > 1 else mine
    places = [_named("conversation", several, "" if len(several) > 1 or file is None else f" of {visible(file)}")]
    places += [_named("message", one.messages), _named("packet", one.packets)]
    return [place for place in places if place.numbers]


def _named(name: str, numbers: Sequence[int], more: str = "") -> NamedNumbers:
    return NamedNumbers(f"{name}{'s' if len(numbers) > 1 else ''}", numbers[:SHOWN], ", ..." if len(numbers) > SHOWN else more)


def place_of(
    one: Finding, conversations: Sequence[int] = (), files: Files = NO_FILES, clock: Clock | None = None, behind: Sequence[str] = ()
) -> str:
    """Return the places of a finding with the processes `behind` it, and with a clock its time, as text."""
    where = [str(place) for place in places_of(one, conversations, files)]
    where += [*(behind or processes.of_finding(one))[:SHOWN], *(["..."] if len(behind) > SHOWN else [])]
    if clock is not None and one.conversation is not None:
        where.append(f"at {clock.text(one.time_ns, one.time)}")
    return "; ".join(where)


def finding_lines(
    one: Finding,
    columns: int,
    palette: Palette,
    clock: Clock,
    conversations: Sequence[int] = (),
    advised: bool = False,
    files: Files = NO_FILES,
    behind: Sequence[str] = (),
) -> list[str]:
    """A finding in lines of at most `columns` columns: severity and rule, where, cause, and advice unless it was given already (`advised`).
    `behind`: the processes of all these conversations, if not only those of its own."""
    colour = {"error": palette.bad, "warning": palette.warn}.get(one.severity, palette.dim)
    head = f"{one.severity:<7}  {visible(one.rule)}"
    place = visible(place_of(one, conversations, files, clock, behind))
    if width(head) + 2 + width(place) <= columns:
        lines = [f"{colour}{head}{palette.reset}  {palette.dim}{place}{palette.reset}"]
        place = ""
    else:
        lines = [f"{colour}{cut(head, columns)}{palette.reset}"]
    indent = " " * 9
    room = max(20, columns - len(indent))
    for text, shade in ((place, palette.dim), (one.cause, palette.bold), ("" if advised else one.advice, "")):
        lines += [f"{indent}{shade}{line}{palette.reset if shade else ''}" for line in wrapped(visible(text), room)]
    return lines


def conversation_lines(summaries: Sequence[Outcome], columns: int, palette: Palette) -> list[str]:
    """A line for each conversation: who, in which protocol, how far it got, what ended it, and its worst finding."""
    if not summaries:
        return []
    rows: list[tuple[str, str, str, str, str, Outcome]] = []
    for one in summaries:
        ends = f"{one.client} {'>' if one.known else '-'} {one.server}"
        protocol = visible(one.protocol or one.name or ("" if one.messages else "-"))
        worst = {"error": "!", "warning": "*"}.get(one.worst or "", " ")
        went = ", ".join([one.reached, one.ended, *processes.texts(one.processes, one.client if one.known else None)])
        rows.append((worst, str(one.conversation), ends, protocol, visible(went), one))
    sizes = [max(map(width, column)) for column in ([row[1] for row in rows], [row[2] for row in rows], [row[3] for row in rows])]
    lines = []
    for mark, number, ends, protocol, went, one in rows:
        colour = {"error": palette.bad, "warning": palette.warn}.get(one.worst or "", "")
        text = f"{mark} {number.rjust(sizes[0])}  {pad(ends, sizes[1])}  {pad(protocol, sizes[2])}  {went}"
        if width(text) <= columns:
            lines.append(f"{colour}{text.rstrip()}{palette.reset if colour else ''}")
            continue
        head = f"{mark} {number.rjust(sizes[0])}  {ends}  {protocol}"
        lines.append(f"{colour}{cut(head.rstrip(), columns)}{palette.reset if colour else ''}")
        indent = " " * (sizes[0] + 4)
        lines += [f"{indent}{line}" for line in wrapped(went, columns - len(indent))]
    return lines


def page(
    findings: FindingGroups,
    summaries: Sequence[Outcome],
    columns: int | None,
    palette: Palette,
    clock: Clock,
    files: Files = NO_FILES,
) -> str:
    """All of it: findings first, then the conversations."""
    room = COLUMNS if columns is None else columns
    lines: list[str] = []
    advised: set[tuple[str, str]] = set()
    for same in findings.ordered():
        given = (same.finding.rule, same.finding.advice)
        lines += [*finding_lines(same.finding, room, palette, clock, same.conversations, given in advised, files, [*same.processes]), ""]
        advised.add(given)
    if findings.passed:
        lines += [f"and {findings.passed:,} more", ""]
    lines += conversation_lines(_worth(summaries), room, palette)
    if len(summaries) > LISTED:
        lines.append(f"  and {len(summaries) - LISTED:,} more; streamdump conversations has them all")
    return "".join(f"{line}\n" for line in lines)
