"""The line to type into: filters, where to go, what to write."""

from __future__ import annotations

from functools import partial
from typing import Any

from textual.widgets import Input

from streamdump.errors import FilterError

from ..indexed.reading import Reader, View
from . import saving
from .listing import BAD, Names
from .places import Fields, Messages, Place
from .screen import Screen

ASKS = {
    "/": "filter, such as outcome == refused or latency > 20ms",
    ":": "a message's number, seconds such as 12.5s, or a time of day such as 08:15:00",
    "e": "file to export to: NAME.jsonl as JSON Lines, else text",
    "w": "file for the packets of these conversations, as captured, including passwords and tokens",
}


class Asking(Screen):
    """The screen with that line."""

    def __init__(self, reader: Reader, title: str, where: str | None) -> None:
        super().__init__(reader, title)
        self.asking = ""
        """What the prompt is for."""
        self._before = where or ""
        """The filter that there was before one was asked for another."""

    def on_mount(self) -> None:
        self.filter(self._before)

    def to(self, index: int) -> None:
        """Go to one of the messages shown."""
        place = self.place
        if isinstance(place, Messages) and len(place):
            self.list.action_to(min(place.at(index), len(place) - 1))
            if not place.has(index):
                self.say(f"message {index + 1} is not among those shown; this is the nearest one")

    def looked_at(self) -> tuple[Place, int]:
        """The place of the line one is at, which may be in the other part of the screen, and where in it that is."""
        if self.more.has_focus and isinstance(self.more.source, Fields):
            return self.more.source, self.more.cursor
        return self.place, self.list.cursor

    def asks(self) -> str:
        """Return a filter for the selected value; empty where there is none."""
        from streamdump.filter import compile_filter

        place, at = self.looked_at()
        for text in place.asks(at) if len(place) else ():
            try:
                compile_filter(text, self.reader.options)
            except FilterError:
                continue
            return text
        return ""

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """What opens the prompt is a letter like others in it."""
        return not (action == "ask" and self.asking)

    def action_ask(self, what: str) -> None:
        """Open the prompt."""
        if what in dict(self.place.keys):
            self.asking, self._before = what, self.place.asked
            self.prompt.add_class("open")
            self.prompt.placeholder, self.prompt.suggester = ASKS[what], Names() if what == "/" else None
            self.prompt.value = self.place.asked if what == "/" else ""
            self.screen.set_focus(self.prompt)
            self.say(ASKS[what])

    def close(self, keeps: bool = False) -> None:
        """Close the prompt; unless one keeps it, the filter is what it was before."""
        what, self.asking = self.asking, ""
        self.prompt.remove_class("open")
        self.list.focus()
        if what == "/" and not keeps:
            self.filter(self._before)
        self.choose()

    def on_input_changed(self, event: Input.Changed) -> None:
        if self.asking == "/":
            self.filter(event.value)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        what, text, place = self.asking, event.value.strip(), self.place
        if what == "/":
            self.filter(text)
            if text != place.asked:
                return
        elif text and what in "ew" and (refused := saving.refused(text, self.reader)):
            self.say(refused, style=BAD)
            return
        self.close(True)
        if text and what == ":" and isinstance(place, Messages):
            found = place.named(text)
            if isinstance(found, int):
                self.to(found)
            else:
                self.say(found or f"{text}: not {ASKS[':']}", style=BAD)
        elif text and what in "ew":
            save: Any = saving.export if what == "e" else saving.write_packets
            self.say("writing...")
            self.background(lambda: partial(self.say, save(place, text, self.reader)))

    def filter(self, text: str) -> None:
        """Show the records of the filter; while it is invalid, those of the last valid one."""
        from streamdump.filter import compile_filter

        place = self.place
        if text.strip() == place.asked:
            self.choose()
            return
        try:
            asked = compile_filter(text, self.reader.options) if text.strip() else None
            if asked is not None and self.reader.clock.base is not None:
                asked.begin(self.reader.clock.base)
        except FilterError as error:
            self.say(*str(error).splitlines(), style=BAD)
            return
        index = self.index()
        view = None if asked is None else View(self.reader, getattr(place, "conversation", None), asked)
        place.refilter(view, text.strip())
        self.go(place, place.at(index) if isinstance(place, Messages) and view is None and index is not None else 0)
