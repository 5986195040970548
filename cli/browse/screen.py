"""The screen, and how it is kept up to date."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from threading import Lock, Thread
from typing import Any, ClassVar

from textual.app import App, ComposeResult
from textual.containers import Container
from textual.events import Resize

from streamdump.errors import StreamdumpError, describe_exception
from streamdump.render.terminal import visible, width, wrapped

from ..indexed.index import Shown
from ..indexed.reading import Reader
from .listing import ANSWER, BAD, BOLD, CHOSEN, DIM, PLAIN, WARN, Bar, Listing, Prompt, Texts
from .places import Conversations, Fields, Findings, Messages, Place, TextPage
from .user_messages import UserMessages

TICK = 0.1
"""Seconds between two looks at what was read."""

WIDE, TALL = 160, 36
"""Columns from which on both parts of the screen stand side by side, and lines from which on the lower one is larger."""

LEAST = 6
"""Lines of the lower part, with the one that divides them, on a small terminal."""

WORK = "browse"
"""What threads are called that something is done in."""

EVERYWHERE = (("?", "help"), ("q", "quit"))
KEYS = {"esc": "escape", "/": "slash", ":": "colon", "?": "question_mark"}
"""What keys are called that have names."""


class Screen(App[None]):
    """A list of one of the places, and more of its chosen line."""

    ENABLE_COMMAND_PALETTE = False
    ALLOW_SELECT: ClassVar[bool] = False
    CSS = """
    Screen { background: ansi_default; color: ansi_default; }
    Bar { height: auto; max-height: 4; }
    #both { height: 1fr; }
    #list { height: 1fr; }
    #more { height: 6; border-top: solid ansi_bright_black; }
    .wide #both { layout: horizontal; }
    .wide #list { width: 1fr; height: 100%; }
    .wide #more { width: 78; height: 100%; border-top: none; border-left: solid ansi_bright_black; }
    #more.help, #more.latency { display: none; }
    #prompt { display: none; border: none; height: 1; padding: 0; background: ansi_default; color: ansi_default; }
    #prompt.open { display: block; }
    """

    def __init__(self, reader: Reader, title: str) -> None:
        super().__init__(ansi_color=True)
        self.reader, self.called = reader, title
        self.roots: tuple[Place, ...] = (Findings(reader), Conversations(reader), Messages(reader))
        self.stack: list[Place] = [self.roots[2]]
        """Where one is, and where one came from."""
        self.said: list[tuple[str, Any]] = []
        self.list = Listing(self.moved, lambda: self.simulate_key("enter"), "list")
        self.more = Listing(lambda: None, lambda: None, "more")
        self.both = Container(self.list, self.more, id="both")
        self.top, self.heading, self.saying, self.keys = [Bar(self.simulate_key, name) for name in ("top", "head", "said", "keys")]
        self.prompt = Prompt(id="prompt", compact=True, select_on_focus=False)
        self.failure: Exception | None = None
        self._wanted: tuple[int, Callable[[Shown], None]] | None = None
        self._fetching = False
        self._lock = Lock()
        """Held while these two change."""
        self._drawn: tuple[Place, int] | None = None
        self._detailed: tuple[Place, str, str] | None = None
        """The selected line whose details are shown."""
        self._following = reader.live

    @property
    def place(self) -> Place:
        return self.stack[-1]

    def compose(self) -> ComposeResult:
        yield self.top
        yield self.heading
        yield self.both
        yield self.prompt
        yield self.saying
        yield self.keys

    def on_mount(self) -> None:
        self.go(self.place)
        self.list.focus()
        self.reader.start()
        self.set_interval(TICK, self.tick)

    def on_resize(self, event: Resize) -> None:
        self.screen.set_class(event.size.width >= WIDE, "wide")
        self.screen.set_class(event.size.height >= TALL, "tall")
        self.call_after_refresh(self.choose)

    def go(self, place: Place, cursor: int | None = None, instead: bool = False) -> None:
        """Show a place, `instead` of where one is."""
        if instead:
            self.stack[-1] = place
        elif self.place is not place:
            self.place.cursor = self.list.cursor
            self.stack.append(place)
        place.update()
        self.more.set_classes(place.name)
        self.list.show(place, place.cursor if cursor is None else cursor)
        self.moved()

    def share(self) -> None:
        """Give the lower part the rows that the list does not need; with fields, give the list the rows that the bytes do not need."""
        screen, place, rows = self.screen, self.place, self.both.size.height
        least = rows * 45 // 100 if isinstance(place, Fields) else rows * 4 // 10 if screen.has_class("tall") else LEAST
        if isinstance(place, Fields):
            least = min(least, len(self.more.source) + 1)
        wanted = max(least, rows - max(1, len(place)))
        self.more.styles.height = None if screen.has_class("wide") or rows <= LEAST else wanted

    def tick(self) -> None:
        """Show what was read meanwhile."""
        if not self.screen_stack:
            # The browser closes
            return
        self.place.update()
        self.share()
        last = len(self.place) - 1
        if self._following and isinstance(self.place, Messages) and self.list.cursor < last:
            self.list.cursor = last
        if self._drawn != (self.place, last) or not self.reader.done:
            self._drawn = self.place, last
            self.list.settle()
        if last >= 0 and not self.reader.shown.is_set():
            self.call_after_refresh(self.reader.shown.set)
        if self._detailed != self._chosen():
            self._show_details()
        self.bars()

    def bars(self) -> None:
        """Show where one is, how far the reading is, and what the keys do."""
        reader, place = self.reader, self.place
        state = "" if reader.done else "live" if reader.live else f"reading {reader.progress or 0:.0%}"
        top = [(f" {self.called}  ", BOLD, "")]
        for at, one in enumerate(self.roots, 1):
            top += [(f"{at} {one.title()}", CHOSEN if one is self.stack[0] else PLAIN, str(at)), ("  ", PLAIN, "")]
        path = " > ".join([one.title() for one in self.stack[1:]])
        self.top.show([*top, (state, DIM, "")], *([[(f" > {path}", ANSWER, "escape")]] if path else []))
        self.heading.show([(place.head(self.list.size.width)[self.list.left :], DIM, "")])
        text, style, view = self._standing(), DIM, place.view
        if view is not None:
            text, style = view.failed or f"{len(view):,} match {place.asked}", WARN
            text += "" if view.done else f"  ({view.looked:,} of {len(reader.records):,} searched; esc stops)"
        problem = [(line, BAD) for line in wrapped(visible(reader.problem), self.size.width)[:2]]
        self.saying.show(*([(text, style, "")] for text, style in [*(self.said or [(text, style)]), *problem]))
        keys = (*place.keys, *EVERYWHERE)
        self.keys.show(*_lines([(f"{key} {what}", DIM, KEYS.get(key, key)) for key, what in keys], self.size.width))

    def _standing(self) -> str:
        """Where in the list one is, and what of it is not on the screen."""
        place, here, more = self.place, self.list, ""
        if isinstance(place, TextPage) and here.top + here.size.height < len(place):
            more = "   space shows more"
        elif width(self._chosen()[1]) > here.size.width + here.left:
            more = "   line continues: scroll with right and left"
        return f"{here.cursor + 1:,}/{len(place):,}{more}" if len(place) else "nothing here"

    def say(self, *lines: str, style: Any = WARN) -> None:
        """Show messages until another line is selected."""
        self.said = [(line, style) for line in lines]
        self.bars()

    def moved(self) -> None:
        """The user went to another line; at the last one of a capture that goes on the list follows."""
        self._following = self.reader.live and self.list.cursor >= len(self.place) - 1
        self.choose()

    def choose(self) -> None:
        """Another line is chosen: show more of it."""
        self._show_details()
        self.say()

    def index(self) -> int | None:
        """That of the message one is at."""
        if isinstance(self.place, Fields | UserMessages):
            return self.place.record.number - 1
        return self.place.index(self.list.cursor) if isinstance(self.place, Messages) and len(self.place) else None

    def _chosen(self) -> tuple[Place, str, str]:
        text = self.place.value(self.list.cursor, self.list.size.width) if len(self.place) else ""
        return self.place, text, self.reader.clock.form

    def _show_details(self) -> None:
        """Show more of the chosen line."""
        place, columns = self.place, self.more.size.width or self.size.width
        self._detailed = self._chosen()
        if isinstance(place, Messages) and len(place):
            # Who goes in does so even if the list goes on
            if self._wanted is None or self._wanted[1] == self._preview:
                self.fetch(place.index(self.list.cursor), self._preview)
        elif isinstance(place, Fields):
            self.more.show(*place.dump(self.list.cursor, columns))
        else:
            self.more.show(place.below(self.list.cursor, columns) if len(place) else Texts())

    def fetch(self, index: int, then: Callable[[Shown], None]) -> None:
        """Read a record again completely; of several requested meanwhile only the last one."""
        with self._lock:
            self._wanted, begins, self._fetching = (index, then), not self._fetching, True
        if begins:
            Thread(target=self._fetch, name=WORK, daemon=True).start()

    def background(self, work: Callable[[], Callable[[], None]]) -> None:
        """Run a slow function in a thread, then the function that it returns here."""
        Thread(target=self._work, args=(work,), name=WORK, daemon=True).start()

    def _work(self, work: Callable[[], Callable[[], None]]) -> None:
        try:
            then = work()
        except Exception as error:
            text = str(error) if isinstance(error, StreamdumpError) else f"internal error: {describe_exception(error)}"
            then = partial(self.say, text)
        # A caller that waited for that might wait for ever, as all may have ended meanwhile
        self.call_later(then)

    def _fetch(self) -> None:
        while True:
            with self._lock:
                wanted, self._wanted = self._wanted, None
                self._fetching = wanted is not None
            if wanted is None:
                return
            index, then = wanted
            self._work(lambda index=index, then=then: self._if_last(then, self.reader.full(index)))  # type: ignore[misc]

    def _if_last(self, then: Callable[[Shown], None], record: Shown) -> Callable[[], None]:
        return lambda: None if self._wanted is not None and then == self._preview else then(record)

    def _preview(self, record: Shown) -> None:
        if isinstance(self.place, Messages) and self.index() == record.number - 1:
            self.more.show(Fields(self.reader, record, in_order=False))
            self.share()

    def _fatal_error(self) -> None:
        """An internal error: restore the terminal; the caller reports it."""
        self.failure = self._exception
        self._close_messages_no_wait()


def _lines(parts: list[tuple[str, Any, str]], columns: int) -> list[list[tuple[str, Any, str]]]:
    """Return texts in lines of N columns, with a separator between them."""
    lines: list[list[tuple[str, Any, str]]] = [[]]
    for text, style, key in parts:
        if lines[-1] and sum(len(one[0]) for one in lines[-1]) + len(text) > columns:
            lines.append([])
        lines[-1] += [(text, style, key), ("  ", style, "")]
    return lines
