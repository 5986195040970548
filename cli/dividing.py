"""What `--jobs` divides among processes, what each of them does for a command, and how what comes of it is shown."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stderr, suppress
from io import StringIO
from pathlib import Path
from stat import S_ISREG
from typing import TYPE_CHECKING, Any

from streamdump.cli.options import whole
from streamdump.cli.output import coloured, columns, say, write, write_text
from streamdump.cli.run import FileRun, RunReport, about, asking, blocks, lines_of
from streamdump.cli.showing import Failed, Shown, ViewForm, field_lines, form_of, text_settings
from streamdump.errors import Report, describe_exception
from streamdump.render.terminal import COLOURED, PLAIN

if TYPE_CHECKING:
    from streamdump.cli.live import LiveRun
    from streamdump.cli.run import FilterCount
    from streamdump.inspector import Inspector
    from streamdump.model import Options, Record
    from streamdump.parallel import Divided, Division, Told, Work
    from streamdump.render.terminal import Palette
    from streamdump.render.told import SaidLines

LARGE, MOST = 64 << 20, 4
"""Captures of so many bytes are divided without being asked to, among so many workers at most."""

CGROUPS = Path("/sys/fs/cgroup")

NAMES = ("number", "conversation", "request", "response")
"""The members of records that only the whole run knows, in the order of `Values`."""


def division_of(
    jobs: str | None,
    names: Sequence[str],
    options: Options,
    asked: FilterCount | None,
    reasons: Mapping[str, bool],
    make: Callable[..., Work],
    arguments: tuple[Any, ...],
) -> Division | None:
    """How these captures are read by several processes, if they are. `jobs`: what was asked for; `reasons`: why only one can, and whether
    that is so; `make` makes the workers' work of `arguments`."""
    wanted = None if jobs is None else whole("--jobs", jobs)
    sizes = [_size(one) for one in names]
    if wanted == 1 or (wanted is None and (sum(one or 0 for one in sizes) <= LARGE or _is_root())):
        return None
    once = not names or None in sizes or None in map(_size, options.keylog)
    numbers = asked is not None and asked.whole
    found = {"only files can be read several times": once, **reasons, "-Y asks for what only the whole run tells": numbers}
    reason = next((told for told, holds in found.items() if holds), None)
    if reason is not None:
        if wanted is not None:
            say(f"--jobs {wanted}: one process reads this, as {reason}")
        return None
    count = wanted or min(MOST, processors())
    if count == 1:
        return None
    from streamdump.parallel import Division

    return Division(count, make, arguments)


def processors() -> int:
    """How many this process may use at a time."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    for names in (("cpu.max",), ("cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us")):
        with suppress(OSError, ValueError):
            quota, period = " ".join([(CGROUPS / one).read_text("ascii") for one in names]).split()
            count = min(count, max(1, int(quota) // int(period)) if int(quota) > 0 else count)
    return count


def _size(name: str) -> int | None:
    """The size of a file; None of what is none."""
    try:
        status = Path(name).stat()
    except OSError:
        # Told when it is opened
        return None if name == "-" else 0
    return status.st_size if S_ISREG(status.st_mode) else None


def _is_root() -> bool:
    return hasattr(os, "geteuid") and os.geteuid() == 0


# What a worker does


class Holes:
    """Numbers that stand for those which only the whole run knows, and for the time since the first record. They are drawn, so that no
    capture has them."""

    def __init__(self) -> None:
        from secrets import randbelow

        drawn = randbelow(8 * 10**17) + 10**17
        self.of = dict(zip((*NAMES, "relative"), range(drawn * 10, drawn * 10 + 5), strict=True))
        self.of["tcp.stream"] = self.of["conversation"]
        self._in_bytes, self._in_text = re.compile(b"%d([0-4])" % drawn), re.compile(f"{drawn}([0-4])")

    def put(self, records: Sequence[Any], names: Sequence[str]) -> list[tuple[Any, str, int]]:
        """Put them into these members of records, where something is; what `restore` takes."""
        before = []
        for record in records:
            for name in names:
                value = getattr(record, name, None)
                if value is not None:
                    before.append((record, name, value))
                    setattr(record, name, self.of[name])
        return before

    def pieces(self, made: str | bytes) -> list[Any]:
        """What is around the holes; between two pieces stands which of `Values` belongs there."""
        parts: list[Any] = self._in_text.split(made) if isinstance(made, str) else self._in_bytes.split(made)
        parts[1::2] = map(int, parts[1::2])
        return parts


def restore(before: list[tuple[Any, str, int]]) -> None:
    """Let records be what they were."""
    for record, name, value in before:
        setattr(record, name, value)


class WorkerRun(RunReport):
    """Stands for the run in a worker: what there is to report, the whole run tells."""

    def __init__(self, inspector: Inspector) -> None:
        super().__init__("never")
        self.inspector = inspector

    def tell(self, *more: Report) -> None:
        self.inspector.reports += more

    def failed(self, record: Record, what: str) -> None:
        self.tell(about(record, what)._replace(cost="a record is not shown"))


class Asking:
    """Looks at what -Y asks for, and shows nothing."""

    run: WorkerRun

    def __init__(self, where: str | None, options: Options) -> None:
        with redirect_stderr(StringIO()):
            # The whole run says what looks like a slip
            self.asked, self.options = asking(where, options)

    def begin(self, inspector: Inspector) -> None:
        self.run = WorkerRun(inspector)

    def take(self, records: list[Record]) -> list[Any] | None:
        if self.asked is not None:
            self.asked.select(records, self.run.failed)
        return None

    def named(self) -> list[int]:
        return []

    def end(self) -> Any:
        return (None if self.asked is None else self.asked.counted(),)


class Noting(Asking):
    """Notes the conversations that have what is asked for."""

    def take(self, records: list[Record]) -> list[Any] | None:
        if self.asked is not None:
            self.asked.note(records, self.run.failed)
        return None


class Rendering(Asking):
    """Renders what is asked for."""

    def __init__(self, where: str | None, options: Options, shown: Shown) -> None:
        self.shown, self.form, self.holes = shown, form_of(shown), Holes()
        super().__init__(where, options)

    def take(self, records: list[Record]) -> list[Any] | None:
        self.learn(records)
        if self.asked is None:
            return self.rendered(records)
        chosen = self.asked.select(records, self.run.failed)
        found = dict(zip(map(id, chosen), self.rendered(chosen), strict=True))
        return [found.get(id(record)) for record in records]

    def learn(self, records: list[Record]) -> None:
        """Take note of records, whether they are shown or not."""

    def rendered(self, records: list[Any]) -> list[Any]:
        """What is shown of each of these."""
        raise NotImplementedError


class Values(Rendering):
    """JSON Lines, or chosen values."""

    def __init__(self, where: str | None, options: Options, shown: Shown, encoding: str) -> None:
        super().__init__(where, options, shown)
        from streamdump.render.jsonl import encode

        self._names: tuple[str, ...] = NAMES
        self._encode: Callable[[Any], bytes] = encode
        self._learn: Callable[[Any], None] = lambda records: None
        if self.form.fields:
            lines = field_lines(shown, self.form, self.options)
            # Who the client is, is known by the conversation
            self._names = ("number", "request", "response")
            for name in ("conversation", "tcp.stream", "relative"):
                lines.columns.replace(name, self.holes.of[name])
            self._learn = lines.columns.learn
            self._encode = lambda records: lines.lines(records).encode(encoding, "backslashreplace")

    def learn(self, records: list[Record]) -> None:
        self._learn(records)

    def rendered(self, records: list[Any]) -> list[Any]:
        before = self.holes.put(records, self._names)
        try:
            lines = b"".join(blocks(self._encode, records, lambda record, what: None)).splitlines(True)
            if len(lines) != len(records):
                # One cannot be shown, or is several lines
                lines = [b"".join(blocks(self._encode, [one], self.run.failed)) for one in records]
        finally:
            restore(before)
        return [self.holes.pieces(line) for line in lines]


class Text(Rendering):
    """What lines say, and the details below them."""

    def __init__(self, where: str | None, options: Options, shown: Shown, coloured: bool, width: int | None) -> None:
        super().__init__(where, options, shown)
        self._looks = COLOURED if coloured else PLAIN, width

    def begin(self, inspector: Inspector) -> None:
        from streamdump.model import Ending, Exchange, Message
        from streamdump.render.summary import Lines

        super().begin(inspector)
        self.kinds = Message, Exchange, Ending
        self.lines = Lines(**text_settings(self.shown, self.options, *self._looks, inspector))

    def learn(self, records: list[Record]) -> None:
        self.lines.learn(records)

    def rendered(self, records: list[Any]) -> list[Any]:
        return [self._said(record) for record in records]

    def _said(self, record: Any) -> tuple[Any, ...] | None:
        """The members of `Said`, in which what has holes is in pieces; and at last whether it is a `SaidEnding`."""
        lines, holes, kind = self.lines, self.holes, type(record)
        message, exchange, ending = [kind is one for one in self.kinds]
        # What a message says may depend on which one it answers
        before = holes.put((record,), NAMES[2:]) if exchange else []
        more: Any = None
        try:
            mark, name, latency_ns, text = lines.content(record)
            if message and lines.after is not None:
                before = holes.put((record,), NAMES[2:])
                more = holes.pieces(lines.after(record))
        except Exception as error:
            self.run.failed(record, describe_exception(error))
            return None
        finally:
            restore(before)
        place = record.time_ns, record.time, record.src, record.dst, None if exchange else record.sender, record.protocol
        told = holes.pieces(text) if exchange else text
        return *place, mark, name, latency_ns, told, more, lines.inside.get(record.conversation), ending

    def end(self) -> Any:
        return *super().end(), self.lines.marked


def work_of(shown: Shown, form: ViewForm, quiet: bool, colour: str) -> tuple[Callable[..., Work], tuple[Any, ...]]:
    """What makes a worker's work for such a view, and what it takes besides the filter and the options."""
    if quiet:
        return Asking, ()
    if form.json or form.fields:
        return Values, (shown, sys.stdout.encoding or "utf-8")
    return Text, (shown, coloured(colour, sys.stdout), columns(colour))


# What the whole run shows


def show_divided(run: FileRun | LiveRun, shown: Shown, form: ViewForm, quiet: bool, options: Options, colours: Palette) -> None:
    """Show what workers rendered, and count what they counted."""
    assert isinstance(run, FileRun) and run.divided is not None
    show: Callable[[list[Told]], bool] = show_values
    if form.fields and form.looks.header:
        write_text(field_lines(shown, form, options).header())
    if not (form.json or form.fields or quiet):
        from streamdump.render.told import SaidLines

        run.view = view = SaidLines(**text_settings(shown, options, colours, columns(run.colour), run.inspector))
        show = text_of(view, run.divided, run.failed)
    run.each(show)  # type: ignore[arg-type]
    for marked in add_up(run):
        if run.view is not None:
            run.view.marked |= any(marked)


def add_up(run: FileRun) -> list[list[Any]]:
    """Add what the workers counted of -Y; what else they told at their end."""
    assert run.divided is not None
    more = []
    for counted, *told in run.divided.of_work:
        if run.asked is not None:
            run.asked.add(counted, run.divided.conversations)
        more.append(told)
    return more


def shows_nothing(batch: list[Any]) -> bool:
    """For what is told at the end."""
    return False


def show_values(batch: list[Told]) -> bool:
    """Write what `Values` rendered; never enough."""
    found: list[bytes] = []
    for values, pieces in batch:
        pieces[1::2] = [str(values[at]).encode() for at in pieces[1::2]]
        found += pieces
    write(b"".join(found))
    return False


def text_of(view: SaidLines, divided: Divided, failed: Failed) -> Callable[[list[Told]], bool]:
    """Writes what `Text` said; never enough."""
    from streamdump.render.told import Said, SaidEnding

    header = view.columns is not None

    def filled(pieces: Any, values: Any) -> Any:
        if type(pieces) is not list:
            return pieces
        pieces[1::2] = [str(values[at]) for at in pieces[1::2]]
        return "".join(pieces)

    def show(batch: list[Told]) -> bool:
        nonlocal header
        records: list[Any] = []
        for values, (*said, ending) in batch:
            record = (SaidEnding if ending else Said)(*said)
            record.number, record.conversation = values[:2]
            record.text, record.more = filled(record.text, values), filled(record.more, values)
            records.append(record)
        if view.clock.form == "r" and divided.begun_ns is not None:
            view.clock.begin(divided.begun_ns)
        if records:
            text = lines_of(view, records, failed)
            write_text(view.header() + text if header else text)
            header = False
        return False

    return show
