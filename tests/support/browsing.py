"""`browse` driven by textual's pilot, and an event loop that reports when it has nothing to do."""

from __future__ import annotations

import asyncio
from asyncio import Future, SelectorEventLoop
from collections.abc import Awaitable, Callable
from pathlib import Path
from selectors import DefaultSelector, SelectorKey
from threading import enumerate as enumerate_threads
from typing import Any
from unittest.mock import patch

from streamdump.cli.browse.app import Browser
from streamdump.cli.browse.screen import WORK
from streamdump.cli.indexed.reading import Reader
from streamdump.cli.run import FileRun
from streamdump.model import Options
from streamdump.render.clock import Clock
from tests.support.waiting import PATIENCE

REFRESH = 0.001
"""Seconds between two refreshes of a screen; 1/60 for a user."""

STEP = 0.002
"""Seconds between two looks at threads. A timer that is due by then is waited for: what it does belongs to what was done."""


class IdleSelector(DefaultSelector):
    """Lets waiters of an event loop go on when all its tasks wait for a timer or for input, and no thread works for them."""

    def __init__(self, works: Callable[[], bool]) -> None:
        super().__init__()
        self._works, self._waiters = works, list[Future[None]]()

    def select(self, timeout: float | None = None) -> list[tuple[SelectorKey, int]]:
        if not self._waiters or (timeout is not None and timeout <= STEP):
            return super().select(timeout)
        if self._works():
            return super().select(STEP)
        # A thread that ended just now has left what it found
        if events := super().select(0):
            return events
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
        self._waiters.clear()
        return []

    async def idle(self, *_: float) -> None:
        """Wait until there is nothing to do."""
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        async with asyncio.timeout(PATIENCE):
            await waiter


class Browsing:
    """The interface on some captures, and a hand on its keys."""

    def __init__(self, *paths: Path, where: str | None = None, **options: Any) -> None:
        run = FileRun([str(path) for path in paths], Options(findings=True, **options))
        self.reader = Reader(run, run.inspector.options, Clock("r"))
        self.app = Browser(self.reader, "captures", where)
        self.pilot: Any = None

    def drive(self, steps: Callable[[Browsing], Awaitable[None]], size: tuple[int, int] = (120, 40)) -> None:
        """Take these steps once all is read."""
        selector = IdleSelector(self.works)

        async def run() -> None:
            async with self.app.run_test(size=size) as pilot:
                self.pilot = pilot
                await self.settle()
                await steps(self)

        # Textual's own takes a process for idle that took little CPU time for 20 ms, and is called several times for each key
        try:
            with (
                patch("textual.app.wait_for_idle", selector.idle),
                patch("textual.pilot.wait_for_idle", selector.idle),
                patch("textual.screen.UPDATE_PERIOD", REFRESH),
                asyncio.Runner(loop_factory=lambda: SelectorEventLoop(selector)) as runner,
            ):
                runner.run(run())
        finally:
            self.reader.stop()

    def works(self) -> bool:
        """Whether the captures are still read, or a thread looks for something that will be shown."""
        view = self.place.view
        return not self.reader.done or any(one.name == WORK for one in enumerate_threads()) or not (view is None or view.done)

    async def settle(self) -> None:
        """Wait until nothing is being done."""
        await self.pilot.pause()
        self.app.tick()
        await self.pilot.pause()

    async def press(self, *keys: str) -> None:
        for key in keys:
            await self.pilot.press(key)
            await self.settle()

    async def type(self, text: str) -> None:
        await self.pilot.press(*[NAMES.get(one, one) for one in text])
        await self.settle()

    @property
    def text(self) -> str:
        """The screen."""
        return "\n".join("".join(part.text for part in line).rstrip() for line in self.app.screen._compositor.render_strips())

    @property
    def place(self) -> Any:
        return self.app.place

    def lines(self) -> list[str]:
        """All lines of the list, as wide as they are."""
        return [self.place.value(at, 200) for at in range(len(self.place))]


NAMES = {" ": "space", "=": "equals_sign", "/": "slash", ":": "colon", ".": "full_stop", "_": "underscore", "<": "less_than_sign"}
