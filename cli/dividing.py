"""What `--jobs` divides among processes, what each of them does for a command, and how what comes of it is shown."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, redirect_stderr, suppress
from io import StringIO
from pathlib import Path
from stat import S_ISREG
from typing import TYPE_CHECKING, Any

from streamdump.cli.options import whole
from streamdump.cli.output import say, write, write_text
from streamdump.cli.run import FileRun, RunReport, about, asking, blocks
from streamdump.cli.showing import RecordView, Showing, Shown, ViewForm, field_lines, form_of, text_settings
from streamdump.errors import Report

if TYPE_CHECKING:
    from streamdump.cli.run import FilterCount
    from streamdump.inspector import Inspector
    from streamdump.model import Options, Record
    from streamdump.parallel import Division, Told, Values, Work
    from streamdump.render.told import Said

LARGE, MOST = 64 << 20, 4
"""Captures of so many bytes are divided without being asked to, among so many workers at most."""

CGROUPS = Path("/sys/fs/cgroup")

Renders = tuple[Callable[[list[Any]], Any], Callable[[list[Any]], list[Any]]]
"""What is told of all records, and what renders those that are shown."""

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
            quota, period = " ".join([(CGROUPS / one).read_text(encoding="ascii") for one in names]).split()
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
    """Numbers that stand for those which only the whole run knows. They are drawn, so that no capture has them."""

    def __init__(self) -> None:
        from secrets import randbelow

        drawn = randbelow(8 * 10**17) + 10**17
        self.of = dict(zip((*NAMES, "relative"), range(drawn * 10, drawn * 10 + 5), strict=True))
        self.of["tcp.stream"] = self.of["conversation"]
        self._mark = re.compile(f"{drawn}([0-4])"), re.compile(b"%d([0-4])" % drawn)

    @contextmanager
    def put(self, records: Sequence[Any], names: Sequence[str]) -> Iterator[None]:
        """They stand in these members of records, where something is."""
        before = [(one, name, value) for one in records for name in names if (value := getattr(one, name, None)) is not None]
        for record, name, _ in before:
            setattr(record, name, self.of[name])
        try:
            yield
        finally:
            for record, name, value in before:
                setattr(record, name, value)

    def pieces(self, made: Any) -> list[Any]:
        """What is around the holes of a text or of bytes; between two pieces stands which of `Values` belongs there."""
        parts: list[Any] = self._mark[isinstance(made, bytes)].split(made)
        parts[1::2] = map(int, parts[1::2])
        return parts


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

    def __init__(self, where: str | None, options: Options) -> None:
        with redirect_stderr(StringIO()):
            # The whole run says what looks like a slip
            self.asked, self.options = asking(where, options)

    def begin(self, inspector: Inspector) -> None:
        self.run = WorkerRun(inspector)
        self.run.asked = self.asked

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
    """Renders what is asked for: values, or lines, as `encoding` or `width` belong to."""

    def __init__(self, where: str | None, options: Options, shown: Shown, *looks: Any) -> None:
        super().__init__(where, options)
        self.shown, self.looks = shown, looks
        self.marked = False

    def begin(self, inspector: Inspector) -> None:
        super().begin(inspector)
        form = form_of(self.shown)
        make = self._values if form.json or form.fields else self._lines
        learn, self._rendered = make(form, *self.looks)
        self._showing = Showing(self.run, RecordView(shows_nothing, learn=learn), None)

    def take(self, records: list[Record]) -> list[Any]:
        chosen = self._showing.chosen(records)
        rendered = self._rendered(chosen)
        if chosen is records:
            return rendered
        found = dict(zip(map(id, chosen), rendered, strict=True))
        return [found.get(id(record)) for record in records]

    def end(self) -> Any:
        return *super().end(), self.marked

    def _values(self, form: ViewForm, encoding: str) -> Renders:
        """JSON Lines, or chosen values."""
        from streamdump.render.jsonl import encode

        holes, failed = Holes(), self.run.failed
        learn: Callable[[list[Any]], Any] = shows_nothing
        make: Callable[[Any], bytes] = encode
        names: Sequence[str] = NAMES
        if form.fields:
            lines = field_lines(self.shown, form, self.options)
            # Who the client is, is known by the conversation
            learn, names = lines.columns.learn, ("number", "request", "response")
            for name in ("conversation", "tcp.stream", "relative"):
                lines.columns.replace(name, holes.of[name])

            def make(records: Any) -> bytes:
                return lines.lines(records).encode(encoding, "backslashreplace")

        def rendered(records: list[Any]) -> list[Any]:
            with holes.put(records, names):
                made = b"".join(blocks(make, records, shows_nothing)).splitlines(True)
                if len(made) != len(records):
                    # One cannot be shown, or is several lines
                    made = [b"".join(blocks(make, [one], failed)) for one in records]
            return [holes.pieces(line) for line in made]

        return learn, rendered

    def _lines(self, form: ViewForm, colour: bool, width: int | None) -> Renders:
        """The members of `Said` but for the numbers; what may have holes is in pieces."""
        from streamdump.model import Exchange, Message
        from streamdump.render.summary import Lines
        from streamdump.render.terminal import COLOURED, PLAIN

        lines = Lines(**text_settings(self.shown, self.options, COLOURED if colour else PLAIN, width, self.run.inspector))
        holes, names, after = Holes(), NAMES[2:], lines.after

        def said(record: Any) -> tuple[Any, ...]:
            kind = type(record)
            # What a message says may depend on which one it answers
            with holes.put((record,), names) if kind is Exchange else nullcontext():
                *content, text = lines.content(record)
            more = None
            if after is not None and kind is Message:
                with holes.put((record,), names):
                    more = holes.pieces(after(record))
            place = record.time_ns, record.time, record.src, record.dst, getattr(record, "sender", None), record.protocol
            told = holes.pieces(text) if kind is Exchange else [text]
            return *place, content, told, more, lines.inside.get(record.conversation), getattr(record, "how", None)

        def rendered(records: list[Any]) -> list[Any]:
            found: list[Any] = []
            for record in records:
                found += [*blocks(lambda one: said(one[0]), [record], self.run.failed)] or [None]
            self.marked = lines.marked
            return found

        return lines.learn, rendered


def shows_nothing(*ignored: Any) -> Any:
    """For what is told at the end, or by others; never enough."""
    return False


# What the whole run shows


def add_up(run: FileRun) -> list[list[Any]]:
    """Add what the workers counted of -Y; what else they told at their end."""
    assert run.divided is not None
    more = []
    for counted, *told in run.divided.of_work:
        if run.asked is not None:
            run.asked.add(counted, run.divided.conversations)
        more.append(told)
    return more


def show_divided(run: FileRun, view: RecordView) -> None:
    """Show what workers rendered: lines in this view, or values, which need but be joined."""

    def show(batch: list[Told]) -> bool:
        if run.view is None:
            write(b"".join([_filled(*one) for one in batch]))
        elif batch:
            records: list[Any] = [_said(values, made) for values, made in batch]
            # Relative times begin with the first record of all, shown or not
            view.begin(records[0]._replace(time_ns=records[0].time_ns - batch[0][0][4]))
            view.show(records, run.failed)
        return False

    write_text(view.header)
    run.each(show)  # type: ignore[arg-type]
    for marked in add_up(run):
        if run.view is not None:
            run.view.marked |= any(marked)


def _said(values: Values, made: list[Any]) -> Said:
    from streamdump.render.told import Said

    *place, content, text, more, inside, how = made
    return Said._make((*place, content, _filled(values, text), _filled(values, more), inside, how, *values[:2]))


def _filled(values: Values, pieces: list[Any] | None) -> Any:
    """The pieces with what belongs between them."""
    if pieces is None or len(pieces) == 1:
        return pieces and pieces[0]
    numbers = [str(values[at]) for at in pieces[1::2]]
    nothing = pieces[0][:0]
    pieces[1::2] = numbers if nothing == "" else [one.encode() for one in numbers]
    return nothing.join(pieces)
