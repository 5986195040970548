"""Captures and their golden files: which belong together, whether they agree, and writing golden files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec

from ..capture.atomic_files import in_place_of
from ..capture.blocks import explain
from ..capture.files import NAMES, named_as_capture, open_capture
from ..errors import CaptureError, InternalError, MissingCodec, NoCapture, UsageError
from ..inspector import Inspector
from ..model import ConversationRow, Options, Record
from .compare import GOLDEN_FILE, OLD_CAPTURE, Difference, differences
from .model import Transcript
from .normalise import LINES, Normaliser
from .settings import CheckSettings
from .text import GoldenError, parsed, written
from .untrusted_files import Unfit, read_text, readable

SUFFIX = ".golden"
SIZE = 8 << 20
"""Bytes that a golden file may have."""

Outcome = Literal["same", "different", "no golden", "written", "unchanged", "unreadable", "internal error"]


FAILED: dict[type[Exception], Outcome] = {GoldenError: "different", CaptureError: "unreadable", InternalError: "internal error"}


class Checked(msgspec.Struct, tag_field="record", tag="check"):
    """What became of one capture; a line of `check --json`."""

    v: int
    capture: str
    golden: str
    outcome: Outcome
    differences: list[Difference] = msgspec.field(default_factory=list)
    error: str | None = None
    missing_codec: bool = False
    """Whether it could be read if the package of its compression were installed."""
    unread: list[str] = msgspec.field(default_factory=list)
    """What the conversations in TLS are of which nothing could be read: "TLS" without any keys, "TLS, keys missing"..."""
    empty: bool = False
    """Whether the golden file that was written holds no conversation."""
    bounded: bool = False
    """Whether the comparison reached the bound on its effort, so that more differences may be listed than there are."""


class Task(NamedTuple):
    """A capture and the golden file that belongs to it."""

    capture: Path
    golden: Path


class Tasks(NamedTuple):
    """The captures to check, the golden files of none of them, and the number of files that only have the name of a capture."""

    tasks: list[Task]
    unused: list[Path]
    others: int


def tasks(names: Sequence[str], golden: str | None = None) -> Tasks:
    """The captures that `names` stand for, folders being searched; `golden` is the folder in which their golden files are."""
    found: dict[Path, Path] = {}
    searched: list[Path] = []
    kept = None if golden is None else Path(golden)
    others = 0
    for name in names:
        path = Path(name)
        if path.is_dir():
            places = {one: golden_of(one if kept is None else kept / one.relative_to(path)) for one in captures_in(path)}
            captures = {one: place for one, place in places.items() if place.exists() or not _is_other(one)}
            others += len(places) - len(captures)
            if not captures:
                raise UsageError(f"{name}: no captures in this folder (names that end in {', '.join(NAMES)}, packed or not)")
            found |= {capture: place for capture, place in captures.items() if capture not in found}
            searched.append(path if kept is None else kept)
        else:
            if path.name.endswith(SUFFIX):
                capture = path.with_name(path.name.removesuffix(SUFFIX))
                raise UsageError(f"{name} is a golden file; name the capture{f', {capture}' if capture.exists() else ' that it is of'}")
            found.setdefault(path, golden_of(path if kept is None else kept / path.name))
    twice: dict[Path, Path] = {}
    for capture, place in found.items():
        if twice.setdefault(place, capture) != capture:
            raise UsageError(f"{twice[place]} and {capture} would both have the golden file {place}; give the folder that holds both")
    known = set(found.values())
    unused = sorted({one for folder in searched for one in folder.rglob(f"*{SUFFIX}") if _is_ours(one) and one not in known})
    return Tasks([Task(capture, place) for capture, place in found.items()], unused, others)


def _is_other(path: Path) -> bool:
    """Return whether a file is not a capture, whatever its name."""
    try:
        open_capture(path).close()
    except CaptureError as error:
        # Any other error is reported when it is read
        return isinstance(error, NoCapture)
    return False


def captures_in(folder: Path) -> list[Path]:
    """The captures below a folder, by their names."""
    return sorted(path for path in folder.rglob("*") if not path.name.startswith(".") and named_as_capture(path.name) and path.is_file())


def golden_of(capture: Path) -> Path:
    """The golden file beside a capture."""
    return capture.with_name(capture.name + SUFFIX)


def _is_ours(path: Path) -> bool:
    return named_as_capture(path.name.removesuffix(SUFFIX))


def read_golden(path: Path) -> str | None:
    """Return the text of a golden file; None where there is none."""
    try:
        return read_text(path, SIZE)
    except FileNotFoundError:
        return None
    except Unfit as error:
        raise GoldenError(str(path), 1, str(error)) from error


def write_golden(path: Path, transcript: Transcript) -> bool:
    """Write a golden file, completely or not at all; return whether that changed it."""
    data = written(transcript).encode("utf-8", "backslashreplace")
    if len(data) > SIZE or data.count(b"\n") >= LINES:
        raise UsageError(
            f"{path}: would have more than {LINES:,} lines or {SIZE >> 20} MiB, and could not be read again; --only handshake needs less"
        )
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_file() and path.stat().st_size == len(data) and path.read_bytes() == data:
            return False
        with in_place_of(path, 0o666) as file:
            file.write(data)
    except OSError as error:
        raise UsageError(f"{path}: cannot be written: {explain(error)}") from error
    return True


Source = Callable[[Normaliser], Transcript]
"""Feeds records to a normaliser, and returns its transcript."""


def capture_source(capture: str | Path, options: Options, meanwhile: Callable[[], None] = lambda: None) -> Source:
    """A file, or standard input (`-`); raises `CaptureError` for one that cannot be read to its end, `InternalError` where we fail.
    `meanwhile` is called after each batch."""

    def give(normaliser: Normaliser) -> Transcript:
        if Path(capture).exists() and not Path(capture).is_file():
            raise CaptureError("is not a regular file", str(capture))
        inspector = Inspector([open_capture(capture)], replace(options, bytes_as="raw", show_secrets=False), finite=True)
        for batch in inspector.batches():
            normaliser.feed(batch)
            meanwhile()
        inspector.raise_errors()
        return normaliser.finish(inspector.rows())

    return give


def record_source(records: Iterable[Record], rows: Sequence[ConversationRow]) -> Source:
    """Records that are there already; they were made with `bytes_as="raw"`."""

    def give(normaliser: Normaliser) -> Transcript:
        normaliser.feed(records)
        return normaliser.finish(rows)

    return give


def check(
    name: str,
    golden: Path,
    source: Source,
    settings: CheckSettings,
    update: bool = False,
    used: set[str] | None = None,
    old: Source | None = None,
) -> Checked:
    """Compare a source with its golden file, or write that file; or compare it with an `old` source, called `golden`."""
    checked = Checked(1, readable(name), readable(str(golden)), "same")
    try:
        expected, text = None, None
        if old is not None:
            expected = old(Normaliser(settings, used=used, name=str(golden)))
        elif not update:
            text = read_golden(golden)
        head = expected or (Transcript(heartbeats=True) if text is None else parsed(text.partition("\nconversation ")[0], str(golden)))
        normaliser = Normaliser(settings, head.only, head.heartbeats, used, name)
        got = source(normaliser)
        checked.unread = got.unread
        if update:
            checked.outcome, checked.empty = "written" if write_golden(golden, got) else "unchanged", not got.conversations
        elif text is None and expected is None:
            checked.outcome = "no golden"
        elif text is None or settings.limits_latency or text != written(got):
            expected = expected or parsed(text or "", str(golden))
            normaliser.again(expected)
            found = differences(expected, got, settings, GOLDEN_FILE if old is None else OLD_CAPTURE)
            checked.differences, checked.bounded = [*found], found.bounded
            checked.outcome = "different" if found else "same"
    except tuple(FAILED) as error:
        checked.outcome = next(outcome for kind, outcome in FAILED.items() if isinstance(error, kind))
        checked.error = readable(str(error))
        checked.missing_codec = isinstance(error, MissingCodec)
    return checked
