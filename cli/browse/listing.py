"""A list of any length on a terminal, of which only the lines that are seen are made; and a line to type into.

Lines are texts with their styles, never markup, so that what was captured is nothing but text.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, Protocol

from rich.segment import Segment
from rich.style import Style
from textual.binding import Binding, BindingType
from textual.events import Click, Key, MouseScrollDown, MouseScrollUp
from textual.geometry import Size
from textual.strip import Strip
from textual.suggester import Suggester
from textual.widget import Widget
from textual.widgets import Input

from streamdump.filter.grammar import printable
from streamdump.render.terminal import visible

from ..options import filter_words

Parts = list[tuple[str, Style]]
"""A line."""

PLAIN, DIM, BOLD, CHOSEN = Style(), Style(dim=True), Style(bold=True), Style(reverse=True)
BAD, WARN, ASK, ANSWER = Style(color="red", bold=True), Style(color="yellow"), Style(color="cyan"), Style(color="green")
LOUD = {"!": BAD, "*": WARN}
COLOURS = tuple(Style(color=name) for name in ("blue", "magenta", "yellow", "cyan", "green"))
"""As in the text view."""

STEP = 3
"""Lines that a wheel turns, and `ASIDE` columns that an arrow moves."""

ASIDE = 8


class Source(Protocol):
    """What a list shows."""

    def __len__(self) -> int: ...

    def line(self, at: int, width: int) -> Parts: ...


class Texts(list[Parts]):
    """Lines that are there already."""

    def line(self, at: int, width: int) -> Parts:
        return self[at]


class Listing(Widget, can_focus=True):
    """A list with a line that is chosen."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("down,j", "move(1)"),
        Binding("up,k", "move(-1)"),
        Binding("pagedown,space", "page(1)"),
        Binding("pageup", "page(-1)"),
        Binding("home,g", "to(0)"),
        Binding("end,G", "to(-1)"),
        Binding("right", "aside(1)"),
        Binding("left", "aside(-1)"),
    ]

    def __init__(self, chosen: Callable[[], None], entered: Callable[[], None], id: str) -> None:
        """Call `chosen` when another line is selected, `entered` when the selected line is clicked."""
        super().__init__(id=id)
        self.source: Source = Texts()
        self.cursor = self.top = self.left = 0
        self._chosen, self._entered = chosen, entered

    def show(self, source: Source, cursor: int = 0) -> None:
        """Show something else."""
        self.source, self.top, self.left = source, 0, 0
        self.cursor = min(cursor, max(0, len(source) - 1))
        self.settle()

    def settle(self) -> None:
        """Show what there is now, with the chosen line on the screen."""
        height = max(1, self.size.height)
        last = len(self.source) - 1
        self.cursor = max(0, min(self.cursor, last))
        self.top = max(0, min(max(self.top, self.cursor - height + 1), self.cursor, last - height + 1))
        self.refresh()

    def action_move(self, lines: int) -> None:
        self.action_to(max(0, min(self.cursor + lines, len(self.source) - 1)))

    def action_page(self, pages: int) -> None:
        self.top += pages * self.size.height
        self.action_move(pages * self.size.height)

    def action_to(self, at: int) -> None:
        """Choose this line, or the last one."""
        self.cursor = at if at >= 0 else len(self.source) - 1
        self.settle()
        self._chosen()

    def action_aside(self, way: int) -> None:
        self.left = max(0, self.left + way * ASIDE)
        self.refresh()

    def on_click(self, event: Click) -> None:
        """Choose what was clicked, or enter it."""
        at = self.top + event.y
        if at == self.cursor:
            self._entered()
        elif at < len(self.source):
            self.action_to(at)

    def on_mouse_scroll_down(self, event: MouseScrollDown) -> None:
        self.action_move(STEP)

    def on_mouse_scroll_up(self, event: MouseScrollUp) -> None:
        self.action_move(-STEP)

    def on_resize(self) -> None:
        self.settle()

    def render_line(self, y: int) -> Strip:
        at, width = self.top + y, self.size.width
        if at >= len(self.source):
            return Strip.blank(width)
        strip = strip_of(self.source.line(at, width), self.left, width)
        return strip.apply_style(CHOSEN) if at == self.cursor and self.has_focus else strip


class Bar(Widget):
    """Some lines of which parts can be clicked."""

    def __init__(self, pressed: Callable[[str], None], id: str) -> None:
        super().__init__(id=id)
        self.lines: list[list[tuple[str, Style, str]]] = []
        """Texts, styles, and the keys that they stand for."""
        self._pressed = pressed

    def show(self, *lines: list[tuple[str, Style, str]]) -> None:
        """Show these lines, where they are others."""
        if self.lines != [*lines]:
            self.lines = [*lines]
            self.refresh(layout=True)

    def on_click(self, event: Click) -> None:
        """Press the key of what was clicked."""
        column = event.x
        for text, _, key in self.lines[event.y] if event.y < len(self.lines) else ():
            if 0 <= column < len(text) and key:
                self._pressed(key)
            column -= len(text)

    def render_line(self, y: int) -> Strip:
        line = self.lines[y] if y < len(self.lines) else []
        return strip_of([part[:2] for part in line], 0, self.size.width)

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        return len(self.lines)


class Names(Suggester):
    """Completes filters."""

    def __init__(self) -> None:
        super().__init__(use_cache=False, case_sensitive=True)

    async def get_suggestion(self, value: str) -> str | None:
        return next((one for one in filter_words(value) if one != value), None) if value else None


class Prompt(Input):
    """A line to type into; the tab key accepts the proposal. Characters that act on a terminal become escapes, also when pasted."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("tab", "cursor_right")]

    def validate_value(self, value: str) -> str:
        return printable(value)

    async def _on_key(self, event: Key) -> None:
        """Obey keys that move and delete in the order in which all came; letters would overtake them else."""
        for binding in self._bindings.key_to_bindings.get(event.key, ()):
            event.stop()
            event.prevent_default()
            await self.run_action(binding.action)
            return
        await super()._on_key(event)


def strip_of(parts: Parts, left: int, width: int) -> Strip:
    """Return a line as it is shown: escaped, and cut to N columns."""
    strip = Strip([Segment(visible(text), style) for text, style in parts])
    return strip.crop(left, left + width).adjust_cell_length(width)
