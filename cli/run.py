"""One run over some captures: opens them, hands batches of records on, and says at the end what was read and what could not be."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from difflib import get_close_matches
from functools import partial
from operator import length_hint
from pathlib import Path
from shlex import quote
from time import monotonic
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from streamdump.errors import CaptureError, Report, UsageError, describe_exception
from streamdump.render.terminal import those
from streamdump.units import count, duration_text

from .exits import ExitCode, code_of
from .options import JOINS, OPERATORS, WHEN, one_of
from .output import coloured, say, write_json
from .pager import PAGER

if TYPE_CHECKING:
    from collections import Counter

    from streamdump.capture.files import CaptureReader
    from streamdump.capture.link import PacketCounters
    from streamdump.inspector import Inspector
    from streamdump.model import ConversationRow, Entry, Options, Record
    from streamdump.render.summary import Lines

    R = TypeVar("R", bound=Record | Entry)

COMMANDS = (
    "browse",
    "check",
    "conversations",
    "diagnose",
    "diff",
    "entries",
    "follow",
    "help",
    "latency",
    "mcp",
    "metrics",
    "pipeline",
    "protocols",
    "schema",
    "scrub",
    "stats",
    "wireshark",
)

OF_FILTERS = (*OPERATORS, *JOINS, "not")
"""Words of a filter without quotes that are read as file names."""

OPERATOR = re.compile("[=!<>]=|[<>~]|&&|[|][|]")
"""An operator, by which a filter without spaces is recognised."""

SHORTEST = 3
"""Letters that identify a command."""

STOPPED, READY, INTERRUPTED = "stopped by -c", "stopped by --until ready", "interrupted"

PORTS_NAMED = 4
"""The most ports of undecoded conversations for which the closing line says how to have them decoded."""

LINKS_NAMED = 8
"""Unsupported link types that are reported one by one."""

PATIENCE = 1.0
"""Seconds after which a run is long enough for a progress bar."""

OTHERS = 64
"""Files that are open besides the captures."""


class FilterCount:
    """The filter of -Y, and a count of its matches."""

    def __init__(self, text: str, options: Options, entries: bool) -> None:
        """Says what looks like a slip; `entries`: the records are entries."""
        from streamdump.filter import compile_filter
        from streamdump.model import Finding

        self._filter = compile_filter(text, options, entries)
        self._drops_raw = self._filter.reads_raw and not options.detail
        self._records = 0
        self._conversations: set[int] | None = None
        self._forgotten = 0
        for hint in self._filter.hints:
            say(f"-Y: {hint}")
        if self._filter.kinds == {Finding} and not options.findings:
            say("-Y: only findings can match; use streamdump diagnose, or --findings to show them among messages")

    def needs(self, options: Options) -> Options:
        """Return the options that evaluating the filter needs; messages that cannot match are decoded no further."""
        reads = self._filter
        bodies, detail = options.bodies or reads.reads_fields, options.detail or reads.reads_raw
        return replace(options, bodies=bodies, times=True, detail=detail, wanted=reads.wanted)

    def select(self, records: list[R], failed: Callable[[Any, str], None]) -> list[R]:
        """Return and count the matching records; call `failed` for each that the filter cannot evaluate."""
        kept = [record for some in blocks(self._filter.select, records, failed) for record in some]
        self._records += len(kept)
        for record in kept if self._drops_raw else ():
            # The view asked for none of that
            if hasattr(record, "spans"):
                record.raw = record.spans = None
        return kept

    def watch(self, records: list[Record]) -> None:
        """Learn from records that are not selected themselves, such as which side is the client."""
        self._filter.learn(records)

    def begin(self, time_ns: int) -> None:
        """Count relative times from the first packet of the capture."""
        self._filter.begin(time_ns)

    def rows(self, rows: list[ConversationRow]) -> list[ConversationRow]:
        """Return the rows of conversations with a match."""
        return [row for row in rows if self.has(row.conversation)]

    def has(self, conversation: int) -> bool:
        """Return whether a conversation has a match."""
        return conversation in (self._conversations or ())

    def note(self, records: list[Record], failed: Callable[[Record, str], None]) -> None:
        """Remember the conversations of matching records, instead of counting these."""
        if self._conversations is None:
            self._conversations = set()
        self._conversations.update([one.conversation for one in self.select(records, failed) if one.conversation is not None])

    def forget(self, rows: list[ConversationRow]) -> None:
        """Forget conversations that will have no more records, so that memory is bounded."""
        gone = {row.conversation for row in self.rows(rows)}
        self._forgotten += len(gone)
        if self._conversations is not None:
            self._conversations -= gone

    def summary(self) -> str:
        """Return the count of matches, for the closing line."""
        what, number = "record", self._records
        if self._conversations is not None:
            what, number = "conversation", self._forgotten + len(self._conversations)
        return f"{count(number, what)} match{'es' if number == 1 else ''} -Y"


def joined(where: Sequence[str] | None, options: Options, entries: bool = False) -> str | None:
    """Return the filter that holds where every `-Y` does; raises `FilterError` with a place in the one that is wrong."""
    if not where:
        return None
    if len(where) == 1:
        return where[0]
    from streamdump.filter import compile_filter

    for one in where:
        compile_filter(one, options, entries)
    return " and ".join(f"({one})" for one in where)


def asked_of(where: Sequence[str] | None, options: Options, entries: bool = False) -> FilterCount | None:
    """Return what -Y asks for; None without it."""
    text = joined(where, options, entries)
    return None if text is None else FilterCount(text, options, entries)


def asking(where: Sequence[str] | None, options: Options) -> tuple[FilterCount | None, Options]:
    """Return what -Y asks for, and the options with what evaluating it needs."""
    asked = asked_of(where, options)
    return asked, options if asked is None else asked.needs(options)


class RunReport:
    """What runs over captures and over interfaces have in common."""

    inspector: Inspector
    stopped: str | None = None
    tick: Callable[[], None] | None = None
    """Called live after every batch, about ten times a second or more; and while a pipe is silent."""
    leaving: Callable[[list[ConversationRow]], None] | None = None
    """Called live with the rows of conversations that are forgotten."""

    def __init__(self, colour: str, given: Sequence[str], messages: int | None) -> None:
        """`given`: the files or interfaces that the call names; `messages`: how many are enough."""
        self.colour = one_of("--color", colour, WHEN)
        self._given = given
        self.names: list[str] = []
        """Those of the inputs."""
        self.enough = STOPPED
        """What ended the run if it is the one who shows the records that has enough."""
        self.say: Callable[[str], None] = say
        """Where warnings go."""
        self.holds_reports = False
        """Internal errors are reported later: a terminal shows something else."""
        self._warned = False
        self._failed = False
        self.errors: list[CaptureError] = []
        """Those of the inputs."""
        self.left: int | None = messages
        """Messages still to show, None for all."""
        self.asked: FilterCount | None = None
        """What -Y asks for, whose count the closing line has."""
        self.view: Lines | None = None
        """What shows the records as lines, where these are asked for."""
        self.current_commands: Sequence[str] = ()
        """Commands whose output this is; the closing line does not suggest them."""

    def __enter__(self) -> Self:
        return self

    def files(self) -> dict[int | None, str]:
        """By conversation the input that it begins in, where there are several."""
        each = self.inspector.table.conversations if len(self.names) > 1 else ()
        return {one.index: self.names[one.tcp.first[2]] for one in each}

    def ask(self, asked: FilterCount | None) -> None:
        """Let the closing line have the count of what -Y asks for, whose relative times begin with the first packet."""
        self.asked = asked
        if asked is not None:
            self.inspector.begins.append(asked.begin)

    def warn(self) -> None:
        """Say once what could show secrets: that `-d` has a conversation read as what it is not."""
        row = self.inspector.run.suspected
        if row is not None and not self._warned:
            self._warned = True
            self.say(suspicion(row))

    def select(self, records: list[R]) -> list[R]:
        """Return those of these records that -Y asks for, and count them."""
        return records if self.asked is None else self.asked.select(records, self.failed)

    def first(self, records: list[Record]) -> list[Record]:
        """Return these records up to the last message that is still to be shown."""
        if self.left is None:
            return records
        if not self.left:
            return []
        from streamdump.model import Message

        for index, record in enumerate(records):
            if type(record) is Message:
                self.left -= 1
                if not self.left:
                    return records[: index + 1]
        return records

    def report(self, *more: Report) -> None:
        """Report internal errors, one line each."""
        reports = self.inspector.reports
        reports += more
        if self.holds_reports:
            return
        for one in reports:
            self._failed = True
            file = 0 if one.file is None and len(self.names) == 1 else one.file
            say(one.text(None if file is None else self.names[file]))
        reports.clear()

    def failed(self, record: Record, what: str) -> None:
        """Say that a record cannot be shown."""
        self.report(about(record, what))

    def write_html(self, path: str, command: str, page: Callable[..., str], *shown: Any) -> None:
        """Write the page that `page` makes of a title, an introduction and `shown`; none if there was no packet."""
        from streamdump.render.html.page import write_page

        if not self.inspector.counters.packets:
            return
        named = [Path(one).name if one != "-" else "standard input" for one in self._given] or ["standard input"]
        title = f"streamdump {command}: {named[0] if len(named) == 1 else count(len(named), 'file')}"
        write_page(path, page(title, [", ".join(self._given) or "standard input", *self.introduction()], *shown))
        say(f"--html {path}: written")

    def introduction(self) -> list[str]:
        """Return when it was captured, and how much it is."""
        from streamdump.render.clock import utc

        rows = [row for some in self.inspector.each_rows(related=False) for row in some]
        begin, end = min((row.time_ns for row in rows), default=0), max((row.time_ns + row.duration_ns for row in rows), default=0)
        span = [f"Captured from {utc(begin)} to {utc(end)} ({duration_text(end - begin)})"] if rows else []
        return [*span, "; ".join(account(self.inspector, self.stopped)[0])]

    def end(self, more: Sequence[str] = ()) -> ExitCode:
        """Say on standard error what was read, then `more` and what went wrong; return the exit code."""
        said = self.closing_lines()
        self.report()
        errors = self.errors + self.inspector.errors
        for text in (*said, *more, *(f"{error}{advice_on(error)}" for error in errors)):
            say(text)
        if self.stopped == INTERRUPTED and not self.inspector.counters.packets:
            return ExitCode.INTERRUPTED
        return min(map(code_of, errors), default=ExitCode.INTERNAL if self._failed else ExitCode.DONE)

    def closing_lines(self) -> list[str]:
        """Return what was read, and hints."""
        raise NotImplementedError


class Aborted(BaseException):
    """Showing what became certain while a pipe was silent has failed; no `Exception`, as that of an input is reported as a bug of ours."""

    def __init__(self, reason: Exception) -> None:
        self.reason = reason


def _meanwhile(run: RunReport, show: Callable[[list[Record]], bool], records: list[Record]) -> None:
    """Show what becomes certain while a pipe is silent, in the middle of reading it."""
    try:
        if records:
            show(records)
        if run.tick is not None:
            run.tick()
    except Exception as error:
        raise Aborted(error) from error


_latest: list[Inspector] = []
"""Keeps the conversations of the last run: a process that ends frees nothing, see `__main__`."""


class FileRun(RunReport):
    """Reads captures with one inspector and keeps what went wrong."""

    def __init__(
        self,
        files: Sequence[str],
        options: Options,
        packets: int | None = None,
        colour: str = "auto",
        messages: int | None = None,
        prints: bool = True,
        twice: bool = False,
        keeps_rows: bool = True,
    ) -> None:
        """`packets` and `messages`: how many are enough. `prints`: results come meanwhile. `twice`: the captures can be read `again`.
        `keeps_rows`: somebody asks for those of conversations that were forgotten. Raises the error of a capture if none can be opened."""
        from streamdump.capture.files import open_capture
        from streamdump.inspector import Inspector

        if not files and sys.stdin.isatty():
            raise UsageError("no capture given; name a file, or - for standard input")
        names = files or ["-"]
        if names.count("-") > 1:
            raise UsageError("- means standard input and may be given only once")
        # Report a slip before reading all other captures
        for name in names if len(names) > 1 else ():
            if (slip := slip_of(name)) and not Path(name).exists():
                raise CaptureError(f"no such file; {slip}", name)
        super().__init__(colour, files, messages)
        self.readers: list[CaptureReader] = []
        self.packets = packets
        self.messages = messages
        self.prints = prints
        self._inputs: list[Callable[[], CaptureReader]] = []
        _let_open(len(names))
        for file in names:
            try:
                if twice:
                    from streamdump.capture.spool import open_twice

                    reader, again = open_twice(file)
                    self.readers.append(reader)
                    self._inputs.append(again)
                else:
                    self.readers.append(open_capture(file))
            except CaptureError as error:
                self.errors.append(error)
        if not self.readers:
            # Results of nothing would look like those of a capture without packets
            *others, last = sorted(self.errors, key=code_of, reverse=True)
            for one in others:
                say(f"{one}{advice_on(one)}")
            last.args = (f"{last}{advice_on(last)}",)
            raise last
        self.names += [reader.name for reader in self.readers]
        PAGER.allowed = all(Path(name).is_file() for name in names)
        self.inspector = Inspector(self.readers, options, finite=True, keeps_rows=keeps_rows)
        _latest[:] = [self.inspector]

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for reader in self.readers:
            reader.close()

    def each(self, show: Callable[[list[Record]], bool]) -> None:
        """Hand on the records batch by batch until `show` says that it has enough; an interruption ends them early."""
        progress = _Progress(self.readers, self.colour, self.prints)
        self.inspector.watch_pipes(partial(_meanwhile, self, show))
        try:
            for batch in self.inspector.batches(self.packets):
                self.warn()
                enough = show(batch)
                self.report()
                if enough:
                    self.stopped = self.enough
                    break
                # records still held while the next are made do not fit in the cache with them
                del batch
                progress.step()
        except KeyboardInterrupt:
            self.stopped = INTERRUPTED
        except Aborted as aborted:
            raise aborted.reason from None
        finally:
            progress.close()

    def again(self) -> list[CaptureReader | None]:
        """The captures opened once more; None for one that no longer opens, which `end` reports."""
        found: list[CaptureReader | None] = []
        for again in self._inputs:
            try:
                found.append(again())
            except CaptureError as error:
                found.append(None)
                self.errors.append(error)
        return found

    def closing_lines(self) -> list[str]:
        """Return what was read, and which files differ."""
        # Packets after the handshake were read as far as a batch happened to reach
        said = [self._summary()] if self.stopped != READY else []
        return [*said, *self._conflicts()]

    def _conflicts(self) -> list[str]:
        """Report files whose bytes differ for one conversation, as in captures of different networks with equal addresses."""
        found = [one.tcp for one in self.inspector.table.conversations if one.tcp.other_file is not None]
        if not found:
            return []
        first = min(found, key=lambda one: one.index)
        files = " and ".join(self.readers[index].name for index in sorted({first.first[2], first.other_file or 0}))
        others = f", and of {count(len(found) - 1, 'other')}" if len(found) > 1 else ""
        return [
            f"the bytes of conversation {first.index} ({' - '.join(first.endpoints)}){others} differ between {files}: "
            "the first ones were kept; --separate treats each file as a separate network"
        ]

    def _summary(self) -> str:
        if self.stopped == STOPPED and self.messages is not None:
            # Packets after the last message were read as far as a batch happened to reach.
            said, command = [f"{count(self.messages, 'message')}, {STOPPED}"], None
        else:
            said, command = account(self.inspector, self.stopped)
            if self.view is not None and self.view.marked:
                command = "diagnose"
            said += [] if self.asked is None else [self.asked.summary()]
        if command is not None and command not in self.current_commands:
            said.append(f"more: streamdump {command}")
        return f"{self.names[0] if len(self.names) == 1 else count(len(self.names), 'file')}: {'; '.join(said)}"


def check_html(path: str | None, names: Sequence[str]) -> None:
    """Raises `UsageError` for a page that could not be written."""
    if path is not None:
        from streamdump.render.html.page import check_page

        check_page(path, names)


def suspicion(row: ConversationRow) -> str:
    """Return the warning for a `-d` that lets secrets of another protocol pass as ordinary bytes."""
    return (
        f"conversation {row.conversation} ({row.endpoints[0]} - {row.endpoints[1]}) is decoded as {row.protocol} because of -d, "
        f"but contains {row.facts['looks_like']}: its secrets are not recognised and may be shown; check -d"
    )


def account(inspector: Inspector, stopped: str | None, lost: Sequence[str] = ()) -> tuple[list[str], str | None]:
    """Return the parts of the closing line, and the command that shows more; `lost`: further counts of packets."""
    from streamdump.conversation.table import counts_of
    from streamdump.protocols import BY_NAME

    counters, ended = inspector.counters, counts_of(inspector.table)
    names, hints = ended.unread, dict[str, str | None]()
    for row in ended.examples.values():
        hint = None if row.protocol is None else BY_NAME[row.protocol].loaded.hint
        if row.protocol is not None and hint is not None and hints.get(row.protocol) is None:
            hints[row.protocol] = _hint(inspector, hint, row)
    packets = ", ".join([count(counters.packets, "packet"), *lost])
    conversations = len(inspector.table)
    said = [f"{packets}, {count(counters.messages, 'message')} in {count(conversations, 'conversation')}"]
    timers = inspector.table.timers
    if timers is not None and not timers.ends_only and inspector.forgotten.conversations:
        said[0] += f" ({inspector.forgotten.conversations:,} forgotten)"
    if stopped:
        said[0] += f", {stopped}"
    problems = _problems(inspector, ended.limit_hits)
    if counters.by_server:
        said[0] += f", {counters.by_server:,} ended by the server"
    if problems:
        said.append(", ".join(problems))
    unread = _unread(names)
    if unread:
        said.append(unread)
        said += _by_hand(ended.ports)
    said += _refused(inspector.run.refused)
    said += _about_keys(inspector, names)
    said += _skipped_packets(inspector.link.counters)
    said += [hint for hint in hints.values() if hint is not None]
    wrong = counters.unanswered or counters.refused or counters.unconnected or counters.broken_off or counters.unacknowledged
    return said, None if not conversations else "diagnose" if wrong else "conversations" if unread or problems else None


def lines_of(view: Lines, records: list[Record], failed: Callable[[Record, str], None]) -> str:
    """Return the lines of these records; call `failed` for each that cannot be shown."""
    lines: list[str] = []
    left = iter(records)
    before = 0
    while before < len(records):
        try:
            view.add(left, lines)
            break
        except Exception as error:
            what = describe_exception(error)
        at = len(records) - length_hint(left)
        if at == before:
            # It was not even looked at
            next(left)
            at += 1
        failed(records[at - 1], what)
        before = at
    return "\n".join([*lines, ""])


def blocks(make: Callable[[list[Any]], Any], records: list[Any], failed: Callable[[Any, str], None]) -> Iterator[Any]:
    """Yield what `make` returns for all records at once, or one by one if that fails; call `failed` for each failure."""
    try:
        yield make(records)
        return
    except Exception as error:
        describe_exception(error)
    for record in records:
        try:
            yield make([record])
        except Exception as error:
            failed(record, describe_exception(error))


def print_json(records: list[Any], failed: Callable[[Any, str], None], colour: str) -> None:
    """Write records as JSON Lines; call `failed` for each that cannot be."""
    from streamdump.render.jsonl import encode

    for block in blocks(encode, records, failed):
        write_json(block, colour)


def report_interval(asked_ns: int | None, used_ns: int | None) -> None:
    """Say that another interval is used than the one that was asked for."""
    if asked_ns is not None and used_ns is not None and used_ns != asked_ns:
        say(f"--interval: {duration_text(used_ns)} used; shorter intervals would be too many")


def about(record: Any, what: str) -> Report:
    """What to report of a record that cannot be shown."""
    packets, file = getattr(record, "packets", None), getattr(record, "file", None)
    between = f"{record.src} > {record.dst} {record.protocol}"
    return Report(what, f"record {record.number} is not shown", packets[1] if packets else None, file, record.conversation, between)


def counts(rows: Mapping[str, int], what: Sequence[str] = ("message", "exchange", "conversation", "gap", "error")) -> str:
    """How many rows tables have."""
    return ", ".join([count(rows.get(f"{one}s", 0), one) for one in what])


def _hint(inspector: Inspector, hint: Callable[[ConversationRow, Options], str | None], row: ConversationRow) -> str | None:
    try:
        return hint(row, inspector.options)
    except Exception as error:
        inspector.reports.once(Report(describe_exception(error), "a hint is missing from the closing line"))
        return None


def _problems(inspector: Inspector, limits: int) -> list[str]:
    """Return the problems of a run, counted."""
    counters = inspector.counters
    # Inside TLS, the size of some gaps is unknown
    missing = count(counters.gap_bytes, "byte") if counters.gap_bytes else "some bytes"
    return those(
        (counters.failures, count(counters.failures, "internal error")),
        (counters.gaps, f"{count(counters.gaps, 'gap')} ({missing} missing or skipped)"),
        (counters.faults - counters.unreadable, f"{counters.faults - counters.unreadable:,} damaged"),
        (counters.unreadable, f"{counters.unreadable:,} not readable (newer version)"),
        (counters.unanswered, f"{counters.unanswered:,} unanswered"),
        (counters.refused, f"{counters.refused:,} refused"),
        (counters.unconnected, f"{count(counters.unconnected, 'connection')} refused or never answered"),
        (counters.broken_off, f"{count(counters.broken_off, 'handshake')} broken off"),
        (counters.unacknowledged, f"data of {count(counters.unacknowledged, 'connection')} never acknowledged"),
        (limits, f"{count(limits, 'limit')} reached"),
    )


def _unread(names: Mapping[str, int]) -> str:
    """Return a count of conversations without a known protocol, by kind, the most frequent first."""
    ordered = sorted(names.items(), key=lambda one: -one[1])
    text = ", ".join(f"{number:,} {name}" if len(names) > 1 else name for name, number in ordered[:4])
    return f"{count(sum(names.values()), 'conversation')} not decoded ({text}{', ...' if len(names) > 4 else ''})" if names else ""


def _by_hand(silent: Collection[int]) -> list[str]:
    """Return hints that force the usual protocol on ports of undetected conversations; `silent`: these ports."""
    from streamdump.protocols import PROTOCOLS

    found = [(port, protocol.name) for protocol in PROTOCOLS for port in protocol.ports if port in silent]
    ports = dict(reversed(found))
    return [f"-d tcp.port=={port},{name} decodes port {port} as {name} anyway" for port, name in list(ports.items())[:PORTS_NAMED]]


def _refused(ports: Counter[int]) -> list[str]:
    """Return a count of connections refused on unknown ports, and how to list them."""
    named = [str(port) for port in sorted(ports, key=lambda port: (-ports[port], port))[:PORTS_NAMED]]
    if not named:
        return []
    where = f"port{'s' if len(ports) > 1 else ''} {', '.join(named)}{', ...' if len(ports) > PORTS_NAMED else ''}"
    return [f"{count(ports.total(), 'connection')} refused on {where}; -d tcp.port=={named[0]},PROTOCOL lists them"]


def _about_keys(inspector: Inspector, names: Collection[str]) -> list[str]:
    """How TLS could be read, or why not all of it was."""
    keys = inspector.keys
    if not keys.given:
        return ["--keylog FILE decrypts TLS"] if "TLS" in names else []
    missing = "TLS, keys missing" in names
    empty = keys.named and missing and not (keys or keys.errors or keys.damaged)
    notices = those(
        (keys.damaged, f"{count(keys.damaged, 'line')} of the key log not understood"),
        (empty, "the key log contains no secrets"),
        (keys.rsa and missing, f"{count(keys.rsa, 'line')} with RSA premaster secrets ignored: log CLIENT_RANDOM lines instead"),
        (keys.dropped, f"{count(keys.dropped, 'session')} of the key log dropped in favour of newer ones"),
    )
    return [*keys.errors, *notices]


def _skipped_packets(counters: PacketCounters) -> list[str]:
    """Packets that may well have carried messages, but were not looked at."""
    links = sorted(counters.unknown_links.items())
    others = [packets for _, packets in links[LINKS_NAMED:]]
    damaged = counters.undecoded - sum(counters.unknown_links.values())
    return those(
        *((packets, f"{count(packets, 'packet')} of unsupported link type {link}") for link, packets in links[:LINKS_NAMED]),
        (others, f"{count(sum(others), 'packet')} of {count(len(others), 'more unsupported link type')}"),
        (counters.not_tcp and not (counters.tcp or counters.undecoded or counters.tunnels), "no TCP packets"),
        (counters.fragments and not counters.reassembled, f"{count(counters.fragments, 'fragment')} of incomplete datagrams"),
        (counters.untimed, f"{count(counters.untimed, 'packet')} without times: latencies are unknown"),
        (damaged, f"{count(damaged, 'packet')} with truncated or malformed headers"),
        *((packets, f"{count(packets, 'packet')} in {tunnel} not decoded") for tunnel, packets in sorted(counters.tunnels.items())),
    )


def _let_open(files: int) -> None:
    """Raise the limit on open files if possible, as all inputs are merged by time: shells start with 1,024."""
    try:
        import resource
    except ImportError:
        # Windows, which counts otherwise
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = files + OTHERS
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted if hard == resource.RLIM_INFINITY else min(wanted, hard), hard))


def advice_on(error: CaptureError) -> str:
    """What to do next, where that is known."""
    advice = "everything before it was read" if error.packet else ""
    if error.reason == "no such file" and error.file:
        advice = slip_of(error.file)
    elif error.reason == "is a directory":
        advice = f"{str(error.file).rstrip('/')}/* names the files in it"
    return f"; {advice}" if advice else ""


def slip_of(name: str) -> str:
    """What was probably meant by the name of a file that is not there: a command, or a part of a filter."""
    known = {
        **dict.fromkeys(COMMANDS, f"put the command first: streamdump {name} FILE"),
        **dict.fromkeys(OF_FILTERS, "quote the filter, so that it is one argument: -Y 'name == Open'"),
        "help": "streamdump --help lists all commands and options",
    }
    if name in known or not name.isalpha():
        return known.get(name, f"to filter, use -Y {quote(name)}" if OPERATOR.search(name) else "")
    prefix = name.removesuffix("s")
    near = [one for one in COMMANDS if len(prefix) >= SHORTEST and one.startswith(prefix)] or get_close_matches(name, COMMANDS, 1)
    if near:
        return f"did you mean the command {near[0]}?"
    return "streamdump --help lists the commands; to filter, use -Y, such as -Y 'name == Open'"


class _Progress:
    """A bar on standard error, from the moment a run turns out to be long; nothing where it would be in the way."""

    def __init__(self, readers: Sequence[CaptureReader], colour: str, prints: bool) -> None:
        """`prints`: results are printed meanwhile, which on a terminal is progress enough."""
        self.readers = readers
        self.colour = colour
        self.since = monotonic()
        self.bar: Any = None
        wanted = sys.stderr.isatty() and not (prints and sys.stdout.isatty())
        self.totals = [reader.bytes_total for reader in readers] if wanted else [None]

    def step(self) -> None:
        if None in self.totals or monotonic() - self.since < PATIENCE:
            return
        if self.bar is None:
            self._begin()
        self.bar.update(self.bar.task_ids[0], completed=sum(reader.bytes_read for reader in self.readers))
        self.bar.refresh()

    def close(self) -> None:
        if self.bar is not None:
            self.bar.stop()

    def _begin(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

        from streamdump.render.terminal import visible

        console = Console(stderr=True, no_color=not coloured(self.colour, sys.stderr))
        name = self.readers[0].name if len(self.readers) == 1 else f"{len(self.readers)} files"
        columns = (TextColumn("{task.description}", markup=False), BarColumn(), DownloadColumn(), TimeRemainingColumn())
        self.bar = Progress(*columns, console=console, auto_refresh=False, transient=True)
        self.bar.add_task(visible(Path(name).name), total=sum(total or 0 for total in self.totals))
        self.bar.start()
