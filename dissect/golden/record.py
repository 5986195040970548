"""Captures on an interface while something else runs."""

from __future__ import annotations

from collections.abc import Sequence
from threading import Event, Thread
from time import monotonic
from types import TracebackType
from typing import Self

from ..capture.live import Live
from ..capture.write import PcapngWriter
from ..inspector import Inspector
from ..model import ConversationRow, Options, Record
from ..protocols import known_ports
from ..tls.keys import KeyLog

LINGER = 1.0
"""Seconds at most that one waits for the last packets when what ran has ended: until none came for a moment."""


class Recorder:
    """Captures from when it is made until the end of its `with`; then `records` and `rows` are what was said.

    Raises `InterfaceError` without the permission, and at its end where the interface went away, or `InternalError` where we fail.
    """

    def __init__(self, interfaces: Sequence[str], options: Options, expression: str | None = None, ports: Sequence[int] = ()) -> None:
        """`expression` is a filter as tcpdump writes it; without one, TCP of `ports` is captured, or of the known ports."""
        self.live = Live(interfaces, expression=expression, ports=ports or sorted(known_ports(options)))
        self.records: list[Record] = []
        self.writer: PcapngWriter | None = None
        self.keys = KeyLog(options.keylog, follow=bool(options.keylog))
        self.inspector = Inspector([self.live], options, keys=self.keys)
        self._ending = Event()
        self._error: Exception | None = None
        self._thread = Thread(target=self._run, name="streamdump", daemon=True)

    @property
    def rows(self) -> list[ConversationRow]:
        return self.inspector.rows()

    def write_to(self, path: str) -> None:
        """Keep the packets as well, as captured."""
        self.writer = PcapngWriter(path, [self.live.name], self.live.link, 262_144)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._ending.set()
        self._thread.join()
        self.live.close()
        self.keys.close()
        if self.writer is not None:
            self.writer.close(self.live.now_ns, self.live.packets + self.live.dropped, self.live.dropped)
        if error is None:
            if self._error is not None:
                raise self._error
            self.inspector.raise_errors()

    def _run(self) -> None:
        ends: float | None = None
        stopped = False
        try:
            for batch in self.live.batches():
                if len(batch):
                    if self.writer is not None:
                        self.writer.write(batch)
                    self.records += self.inspector.process(batch)
                if ends is None and self._ending.is_set():
                    ends = monotonic() + LINGER
                if ends is not None and not stopped and (not len(batch) or monotonic() >= ends):
                    stopped = True
                    self.live.stop()
        except Exception as error:
            self._error = error
        # Keys that were logged behind the last packet
        self.keys.poll(self.inspector.counters.packets)
        self.records += self.inspector.finish(self.live.now_ns)
