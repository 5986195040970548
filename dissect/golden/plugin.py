"""The pytest plugin: what a test's client and server said, read or captured, and compared with a golden file.

    def test_login(streamdump):
        with streamdump.capture(port=5552) as seen:
            login()
        assert seen.matches("golden/login")

Loaded with every pytest where streamdump is installed, so nothing but pytest is imported until a test asks for the fixture.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from ..model import ConversationRow, Gap, Message, Record

SUFFIX = ".golden"
OUTPUT = "streamdump_golden"

__all__ = ["Recording", "Streamdump", "streamdump"]


class _Session:
    """What became of golden files in one run of pytest."""

    def __init__(self) -> None:
        self.used: set[str] = set()
        self.written: set[str] = set()
        self.reported: set[str] = set()
        """Warnings for the end of the run."""


_SESSION = pytest.StashKey[_Session]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("streamdump", "golden captures")
    group.addoption("--streamdump-update", action="store_true", help="rewrite the golden files that tests compare with")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--streamdump-update") and os.environ.get("CI"):
        raise pytest.UsageError("--streamdump-update: golden files are not written if CI is set: there, a missing golden file is a failure")
    config.stash[_SESSION] = _Session()


class Recording:
    """What was said: `records` in the order of the command line's output, `messages` alone, and `conversations`.

    Bytes are `bytes`.
    """

    def __init__(self, place: Streamdump, hides: bool) -> None:
        self._place = place
        self._hides = hides
        self._records: list[Record] | None = None
        self._rows: list[ConversationRow] = []
        self._first_ns: int | None = None

    @property
    def records(self) -> list[Record]:
        """All messages, gaps and exchanges."""
        if self._records is None:
            raise RuntimeError("captured records are available only after the `with` block")
        return self._records

    @property
    def messages(self) -> list[Message]:
        """The messages alone."""
        from ..model import Message

        return [record for record in self.records if isinstance(record, Message)]

    @property
    def gaps(self) -> list[Gap]:
        """Bytes that belong to no message."""
        from ..model import Gap

        return [record for record in self.records if isinstance(record, Gap)]

    @property
    def conversations(self) -> list[ConversationRow]:
        """Who talked to whom, in which protocol."""
        return self._rows

    def where(self, expression: str) -> list[Record]:
        """Return the records that match a filter in the language of `streamdump -Y`: `seen.where("outcome == refused")`."""
        from ..filter import compile_filter

        asked = compile_filter(expression)
        if asked.reads_raw:
            raise ValueError("raw: the bytes of messages are not kept here; streamdump.read(..., where=...) looks at them")
        if self._first_ns is not None:
            asked.begin(self._first_ns)
        return asked.select(self.records)

    def _begin(self, time_ns: int) -> None:
        self._first_ns = time_ns

    def __iter__(self) -> Iterator[Message]:
        return iter(self.messages)

    def __len__(self) -> int:
        return len(self.messages)

    def matches(
        self,
        golden: str | Path,
        *,
        only: str | None = None,
        unordered: bool | None = None,
        heartbeats: bool | None = None,
        ignore: Sequence[str] = (),
    ) -> bool:
        """Return True if this equals the golden file (path relative to the folder of the test); otherwise fail with the differences.

        The settings are those of `streamdump check` for that folder, overridden by these arguments.
        """
        __tracebackhide__ = True
        if not self._hides:
            raise ValueError("matches() compares without secrets; leave show_secrets out")
        report = self._place._compare(self, Path(golden), only, unordered, heartbeats, ignore)
        if report:
            raise AssertionError("\n".join(report))
        return True

    def __repr__(self) -> str:
        return "<nothing seen yet>" if self._records is None else f"<{len(self.messages)} messages seen>"


class Streamdump:
    """What the fixture `streamdump` is."""

    def __init__(self, folder: Path, session: _Session, update: bool) -> None:
        self._folder = folder
        self._session = session
        self._update = update

    def read(self, path: str | Path, where: str | None = None, **options: Any) -> Recording:
        """Return the records of a capture, or those that match the filter `where`; `path` is relative to the folder of the test, `options`
        are those of `streamdump.read`. Without `keylog`, the keys of TLS are read from the file that SSLKEYLOGFILE names."""
        from ..capture.files import open_capture
        from ..inspector import Inspector

        inspector = Inspector([open_capture(self._path(path))], self._options(options), finite=True)
        seen = Recording(self, not options.get("show_secrets"))
        inspector.begins.append(seen._begin)
        seen._records = list(inspector.records())
        inspector.raise_errors()
        if where is not None:
            seen._records = seen.where(where)
        seen._rows = inspector.rows()
        return seen

    @contextmanager
    def capture(
        self, port: int | Sequence[int] | None = None, *, interface: str = "lo", filter: str | None = None, **options: Any
    ) -> Iterator[Recording]:
        """Capture on an interface during the `with`; the records are there after it.

        `port`: TCP of one or several ports, by default the known ones; `filter`: an expression of tcpdump instead. Without permission to
        capture, the test is skipped; where `CI` is set, it fails.
        """
        from ..errors import InterfaceError
        from .record import Recorder

        ports = () if port is None else (port,) if isinstance(port, int) else tuple(port)
        seen = Recording(self, not options.get("show_secrets"))
        try:
            recorder = Recorder((interface,), self._options(options, True), filter, ports)
        except InterfaceError as error:
            if not isinstance(error.__cause__, PermissionError):
                raise
            raise _not_captured(str(error), _PERMITTED) from None
        except AttributeError:
            raise _not_captured("only Linux has packet sockets", "Run this test on Linux") from None
        recorder.inspector.begins.append(seen._begin)
        with recorder:
            yield seen
        seen._records, seen._rows = recorder.records, recorder.rows

    def _path(self, path: str | Path) -> Path:
        """A path from the folder of the test, or else from the current one."""
        inside = self._folder / path
        return inside if inside.exists() else Path(path)

    def _compare(
        self, seen: Recording, golden: Path, only: str | None, unordered: bool | None, heartbeats: bool | None, ignore: Sequence[str]
    ) -> list[str]:
        from . import report
        from .check import check, record_source
        from .settings import ONLY, field_name, settings_for

        if only is not None and only not in ONLY:
            raise ValueError(f"only={only!r} must be one of {', '.join(ONLY)}")
        path = self._folder / (golden if golden.name.endswith(SUFFIX) else golden.with_name(golden.name + SUFFIX))
        settings = settings_for(path).with_more(only, unordered, heartbeats, map(field_name, ignore))
        self._session.used.add(str(path))
        checked = check("what was seen", path, record_source(seen.records, seen.conversations), settings, self._update)
        if checked.outcome == "written":
            self._session.written.add(str(path))
        if checked.empty:
            self._session.reported.add(f"{path} contains no conversation, because nothing could be compared")
        if checked.unread:
            self._session.reported.add(
                f"some conversations were not decoded, and were not compared with {path} ({', '.join(sorted(set(checked.unread)))})"
            )
        if checked.outcome == "no golden":
            return [f"there is no golden file {path}; pytest --streamdump-update writes it"]
        return report.text(checked)

    def _options(self, options: dict[str, Any], live: bool = False) -> Any:
        from ..model import Options
        from ..tls.keys import check, log_of

        if "bytes_as" in options:
            raise TypeError("bytes are bytes here; leave bytes_as out")
        if "keylog" not in options:
            keylog, warning = log_of(os.environ, live)
            if warning is not None:
                self._session.reported.add(warning)
        else:
            given = options["keylog"]
            keylog = tuple(str(self._path(one)) for one in ((given,) if isinstance(given, str | Path) else given))
            if not live:
                check(keylog)
        return Options(bytes_as="raw", **options | {"keylog": keylog})


_PERMITTED = "Run pytest as root, in a container with `--cap-add NET_RAW`, or with a Python that may capture (`setcap cap_net_raw=ep`)"


def _not_captured(why: str, advice: str) -> BaseException:
    """Return what skips the test, or fails it where `CI` is set: a skipped comparison would not be noticed there."""
    if not os.environ.get("CI"):
        return pytest.skip.Exception(f"nothing can be captured here: {why}")
    return pytest.fail.Exception(f"nothing can be captured here: {why}\n{advice}, or exclude this test where CI is set.", pytrace=False)


@pytest.fixture
def streamdump(request: pytest.FixtureRequest) -> Streamdump:
    """Reads and captures what clients and servers say, and compares it with golden files."""
    return Streamdump(request.path.parent, request.config.stash[_SESSION], bool(request.config.getoption("--streamdump-update")))


# At the end


def pytest_sessionfinish(session: pytest.Session) -> None:
    output = getattr(session.config, "workeroutput", None)
    if output is not None:
        output[OUTPUT] = {name: sorted(found) for name, found in vars(session.config.stash[_SESSION]).items()}


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """A worker of pytest-xdist has ended."""
    for name, found in getattr(node, "workeroutput", {}).get(OUTPUT, {}).items():
        getattr(node.config.stash[_SESSION], name).update(found)


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    mine = config.stash.get(_SESSION, None)
    if mine is None:
        return
    for line in sorted(mine.reported):
        terminalreporter.write_line(f"streamdump: {line}", yellow=True)
    if not mine.used:
        return
    if mine.written:
        from ..units import count

        terminalreporter.write_line(f"streamdump: {count(len(mine.written), 'golden file')} written")
    if _narrowed(terminalreporter, config):
        return
    folders = {Path(path).parent for path in mine.used}
    unused = sorted(str(path) for folder in folders for path in folder.glob(f"*{SUFFIX}") if str(path) not in mine.used and _is_ours(path))
    for path in unused:
        terminalreporter.write_line(f"streamdump: no test compared with the golden file {path}", yellow=True)


def _narrowed(terminalreporter: Any, config: pytest.Config) -> bool:
    """Return whether only some tests were run: then unused golden files are unknown."""
    some = any("::" in argument or argument.endswith(".py") for argument in config.args)
    return some or any(terminalreporter.stats.get(outcome) for outcome in ("deselected", "error", "skipped"))


def _is_ours(path: Path) -> bool:
    """Whether a golden file is not one of `streamdump check`, which stands beside its capture."""
    return not path.with_name(path.name.removesuffix(SUFFIX)).exists()
