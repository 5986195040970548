"""One run over interfaces: opens them, hands batches of records on as they come, and says at the end what was captured."""

from __future__ import annotations

import os
import select
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from shlex import quote
from time import monotonic
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from streamdump.errors import InterfaceError, Report, UsageError, describe_exception, refuse
from streamdump.options import DEFAULTS, SETTINGS
from streamdump.render.terminal import those

from .exits import ENDING, ExitCode
from .keys import key_logs
from .options import (
    AutoStop,
    Buffer,
    CaptureFilter,
    EmbedKeys,
    Interfaces,
    Promiscuous,
    RingBuffer,
    Snap,
    WriteTo,
    conditions,
    packet_limit,
    size,
    whole_number,
)
from .output import PipeClosed, abandon, coloured, say, write_text
from .run import COMMANDS, INTERRUPTED, OPERATOR, FileRun, FilterCount, RunReport, account, check_html, slip_of

if TYPE_CHECKING:
    from rich.console import ConsoleDimensions

    from streamdump.capture.write import PcapngWriter, Ring
    from streamdump.model import Options, Packet, Record

SIGNALS = (signal.SIGINT, *ENDING)
KILOBYTE = 1000
"""Bytes of one unit of `filesize:N`, which is tshark's."""


SECURE_PORT = 7001
"""Where ScyllaDB's nodes talk through TLS: captured so that `conversations` can say so."""

REFRESH = 0.5
"""Seconds between two states of the table."""


class LiveOptions(NamedTuple):
    """What the options of live capture say."""

    interfaces: Interfaces = None
    expression: CaptureFilter = None
    buffer: Buffer = "32M"
    snap: Snap = "262144"
    promiscuous: Promiscuous = False
    write: WriteTo = None
    embed: EmbedKeys = False
    ring: RingBuffer = None
    stop: AutoStop = None


def check_without(wanted: LiveOptions, given: Options, writes: bool = False) -> None:
    """Options of live capture make no sense for files; `writes`: -w does."""
    options = (
        (None if writes else wanted.write, "-w"),
        (wanted.ring, "-b"),
        (wanted.promiscuous, "--promiscuous"),
        (wanted.buffer != LiveOptions().buffer, "-B"),
        (wanted.snap != LiveOptions().snap, "-s"),
        (wanted.embed and not writes, "--embed-keys"),
        # --closed-time also limits what waits for TLS keys in a file
        (given.answer_time_ns != DEFAULTS["answer_time_ns"], SETTINGS["answer_time_ns"].option),
        (given.idle_time_ns != DEFAULTS["idle_time_ns"], SETTINGS["idle_time_ns"].option),
    )
    belongs = "needs live capture; name an interface with -i (streamdump -D lists them)"
    refuse(
        (
            wanted.expression is not None,
            "-f filters live capture (-i); to filter a file use -Y, such as -Y 'port == 5552'",
        ),
        *((one not in (None, False, [], ()), f"{option} {belongs}") for one, option in options),
    )


def run_of(
    live: LiveOptions,
    names: Sequence[str],
    options: Options,
    colour: str,
    asked: FilterCount | None = None,
    messages: int | None = None,
    prints: bool = True,
    twice: bool = False,
    page: str | None = None,
    keeps_rows: bool = True,
) -> FileRun | LiveRun:
    """What captures from the interfaces that were asked for, else what reads captures (see `FileRun`); `page` is written at the end."""
    check_html(page, names)
    options = replace(options, keylog=key_logs(options.keylog, bool(live.interfaces)))
    run: FileRun | LiveRun
    if live.interfaces:
        run = LiveRun(live, names, options, colour, messages, page)
    else:
        check_without(live, options, twice)
        run = FileRun(names, options, packet_limit(live.stop), colour, messages, prints, twice, keeps_rows)
    run.ask(asked)
    return run


def _check(wanted: LiveOptions, files: Sequence[str]) -> None:
    """Raises `UsageError` for what does not go together."""
    if files:
        first, there = files[0], any(Path(name).exists() or "." in name for name in files)
        refuse(
            (first in COMMANDS or OPERATOR.search(first), slip_of(first)),
            (
                not (first.startswith("-") or there),
                f"-i captures from an interface and does not read files; to give a capture filter use -f {quote(' '.join(files))}",
            ),
            (True, f"-i captures from an interface, but {first} is a file; give one or the other"),
        )
    interfaces = set(wanted.interfaces or ())
    refuse(
        (
            wanted.write == "-",
            "-w -: live capture writes packets only to files; tcpdump -w - writes them to a pipe",
        ),
        (wanted.embed and wanted.write is None, "--embed-keys needs -w FILE"),
        ("any" in interfaces and len(interfaces) > 1, "-i any means all interfaces; omit the others"),
    )


class LiveRun(RunReport):
    """Captures with one inspector; the counterpart of `FileRun`."""

    def __init__(
        self, wanted: LiveOptions, files: Sequence[str], options: Options, colour: str, messages: int | None, page: str | None
    ) -> None:
        from streamdump.capture.live import Live
        from streamdump.inspector import Inspector
        from streamdump.protocols import known_ports
        from streamdump.tls.keys import KeyLog

        _check(wanted, files)
        super().__init__(colour, wanted.interfaces or (), messages)
        self.stops = stops(wanted)
        self.known_only = wanted.expression is None
        ring = ring_of(wanted)
        known = sorted({SECURE_PORT, *known_ports(options)})
        snap = whole_number("-s", wanted.snap)
        self.live = Live(
            wanted.interfaces or (),
            expression=wanted.expression,
            ports=known,
            buffer=size("-B", wanted.buffer),
            snap=snap,
            promiscuous=wanted.promiscuous,
        )
        self.keys = KeyLog(options.keylog, follow=bool(options.keylog))
        self.names.append(self.live.name)
        self.inspector = Inspector([self.live], options, keys=self.keys)
        self.embed = wanted.embed
        if self.embed:
            self.keys.used_lines = b""
        self.writer: PcapngWriter | None = None
        self._interrupted = 0
        try:
            if wanted.write is not None:
                from streamdump.capture.write import PcapngWriter

                self.writer = PcapngWriter(wanted.write, self.names, self.live.link, snap, ring)
        except BaseException:
            self.live.close()
            raise
        self._before = [(one, signal.signal(one, self._interrupt)) for one in SIGNALS]
        self._announce(wanted, known)
        if os.geteuid() == 0:
            from .privileges import drop_root

            self.keys.poll(0)
            say(f"{self.live.name}: {drop_root(os.environ, self.writer, ring is not None, None if page is None else Path(page))}")

    def _announce(self, wanted: LiveOptions, known: Sequence[int]) -> None:
        """Report the captured traffic, and what -w writes of it."""
        if wanted.expression is None:
            traffic = f"TCP on ports {', '.join(map(str, known))}"
        else:
            traffic = f"packets that match {wanted.expression!r}" if wanted.expression else "all TCP"
        say(f"{self.live.name}: capturing {traffic}; the kernel granted a buffer of {_amount(self.live.granted)}")
        if wanted.write is not None:
            secrets = "passwords, tokens and TLS keys" if wanted.embed else "passwords and tokens"
            say(f"-w {wanted.write}: writes packets as captured, including {secrets}")

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for one, handler in self._before:
            signal.signal(one, handler)
        self.live.close()
        self.keys.close()
        if self.writer is not None:
            self.writer.close(self.live.now_ns, self.live.packets + self.live.dropped, self.live.dropped)

    def each(self, show: Callable[[list[Record]], bool]) -> None:
        """Hand on the records as they come until `show` says that it has enough, a condition of -a is met, or the user ends it."""
        try:
            self._each(show)
        except InterfaceError as error:
            self.errors.append(error)
            show(self.inspector.finish(self.live.now_ns))

    def _each(self, show: Callable[[list[Record]], bool]) -> None:
        inspector, live, duration = self.inspector, self.live, self.stops.get("duration")
        ends = None if duration is None else monotonic() + duration
        reader_gone = _reader_gone()
        for batch in live.batches():
            self.report()
            enough = False
            if len(batch):
                batch, enough = self._limited(batch)
                records = inspector.process(batch) if self.embed else None
                if self.writer is not None:
                    if self.embed:
                        # Others want keys before the packets that need them
                        self.writer.secrets(self.keys.used_lines or b"")
                        self.keys.used_lines = b""
                    self.writer.write(batch)
                records = inspector.process(batch) if records is None else records
                self.warn()
                if show(records):
                    self.stopped = self.enough
                    return
            late = inspector.age(live.now_ns, self.leaving)
            if late and show(late):
                self.stopped = self.enough
                return
            if self.tick is not None:
                self.tick()
            if enough:
                self.stopped = "stopped by -a"
                break
            if ends is not None and monotonic() >= ends:
                self.stopped, ends = "stopped by -a", None
                live.stop()
            if not len(batch) and reader_gone():
                abandon(sys.stdout)
                raise PipeClosed
        show(inspector.finish(live.now_ns))

    def _limited(self, batch: list[Packet]) -> tuple[list[Packet], bool]:
        """The packets that -a still allows, and whether it allows no more."""
        rows, enough = len(batch), False
        left = self.stops.get("packets", sys.maxsize) - self.inspector.counters.packets
        if rows >= left:
            rows, enough = left, True
        if "filesize" in self.stops and self.writer is not None:
            fitting, full = self.writer.fitting(batch, self.stops["filesize"] * KILOBYTE)
            if full and fitting <= rows:
                rows, enough = fitting, True
        return batch[:rows], enough

    def closing_lines(self) -> list[str]:
        """Return what was captured, and what could be done better."""
        live = self.live
        live.close()
        twice = [f"{live.duplicates:,} seen twice and counted once"] if live.duplicates else []
        parts, _ = account(self.inspector, self.stopped, [f"{live.dropped:,} dropped by the kernel", *twice])
        parts += [] if self.asked is None else [self.asked.summary()]
        idle = not self.errors and not self.inspector.counters.packets and self.known_only
        return [
            f"{live.name}: {'; '.join(parts)}",
            *those(
                (live.dropped, "to avoid drops, use a larger buffer (-B 256M) or a narrower filter (-f)"),
                (idle, "no packets on these ports; -f '' captures all TCP, -i any captures on all interfaces"),
            ),
        ]

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        """The first time lets the run end in order, the second time ends it at once."""
        self._interrupted += 1
        if self._interrupted > 1:
            raise KeyboardInterrupt
        self.stopped = INTERRUPTED
        self.live.stop()


def stops(wanted: LiveOptions) -> dict[str, int]:
    """What `-a duration:N`, `-a packets:N` and `-a filesize:N` say."""
    found = conditions("-a", wanted.stop, "duration", "packets", "filesize")
    if "filesize" in found and wanted.write is None:
        raise UsageError("-a filesize:N needs -w FILE")
    return found


def ring_of(wanted: LiveOptions) -> Ring | None:
    """What `-b filesize:N`, `-b duration:N` and `-b files:N` say."""
    from streamdump.capture.write import Ring

    if not wanted.ring:
        return None
    if wanted.write is None:
        raise UsageError("-b needs -w FILE")
    found = conditions("-b", wanted.ring, "filesize", "duration", "files")
    if set(found) == {"files"}:
        raise UsageError("-b files:N limits the number of files; add -b filesize:N or duration:N for when to start the next")
    kilobytes, seconds = found.get("filesize"), found.get("duration")
    return Ring(
        None if kilobytes is None else kilobytes * KILOBYTE, None if seconds is None else seconds * 1_000_000_000, found.get("files")
    )


def ways_out() -> list[str]:
    """What to do without the permission to capture: by commands that run no file of the folder one stands in."""
    python = Path(sys.executable).resolve()
    own = Path(sys.prefix) / "bin" / "python-capture"
    return [
        f"1. as root: sudo {sys.executable} -I -m streamdump -i ...",
        f"2. with a copy of Python that has the capability: install -m 700 {python} {own} && sudo setcap cap_net_raw=ep {own}, "
        f"then {own} -I -m streamdump -i ...",
        f"3. through a pipe: sudo tcpdump -B 65536 --immediate-mode -U -i any -w - tcp | {sys.executable} -I -m streamdump -",
    ]


def list_interfaces() -> ExitCode:
    """What `-D` prints: the interfaces with state and addresses."""
    from streamdump.capture.interfaces import interfaces

    found = interfaces()
    rows = [[one.name, one.state, one.kind, ", ".join(one.addresses) or "no address"] for one in found]
    rows.append(["any", "up" if any(one.up for one in found) else "down", "all", "all interfaces together (Linux cooked)"])
    sizes = [max(len(row[column]) for row in rows) for column in range(3)]
    lines = ["  ".join([*(cell.ljust(size) for cell, size in zip(row[:3], sizes, strict=True)), row[3]]) for row in rows]
    write_text("".join(f"{line}\n" for line in lines))
    return ExitCode.DONE


class LiveTable:
    """A table on the terminal, refreshed as long as the capture goes on; elsewhere it does nothing."""

    def __init__(self, run: LiveRun, make: Callable[[ConsoleDimensions], Any], tick: Callable[[], None] = lambda: None) -> None:
        """`make` makes the table for a terminal of some size; `tick` is called after every batch."""
        run.tick = tick
        self._tick = tick
        self._run = run
        self._make = make
        self._screen: Any = None
        self._latest = 0.0
        self._failed: set[str] = set()

    def __enter__(self) -> Self:
        if sys.stdout.isatty():
            from rich.console import Console
            from rich.live import Live

            console = Console(file=sys.stdout, no_color=not coloured(self._run.colour, sys.stdout), highlight=False, markup=False)
            self._screen = Live(console=console, auto_refresh=False, transient=True)
            self._screen.start()
            self._run.tick = self._refresh
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._screen is not None:
            self._screen.stop()

    def report(self, error: Exception) -> None:
        """Report what would come again and again once."""
        what = describe_exception(error)
        if what not in self._failed:
            self._failed.add(what)
            self._run.report(Report(what, "the table is incomplete"))

    def _refresh(self) -> None:
        self._tick()
        now = monotonic()
        if now - self._latest >= REFRESH:
            self._latest = now
            try:
                table = self._make(self._screen.console.size)
            except Exception as error:
                self.report(error)
                return
            self._screen.update(table, refresh=True)


def _reader_gone() -> Callable[[], bool]:
    """Return a function that reports whether the reader of standard output has closed it."""
    poll = select.poll()
    try:
        poll.register(sys.stdout.fileno(), 0)
    except (OSError, ValueError):
        return lambda: False
    return lambda: any(events & (select.POLLERR | select.POLLNVAL) for _, events in poll.poll(0))


def _amount(number: int) -> str:
    for unit, name in ((1 << 20, "MiB"), (1 << 10, "KiB")):
        if number >= unit:
            return f"{number / unit:.4g} {name}"
    return f"{number} bytes"
