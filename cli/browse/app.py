"""What the keys do."""

from __future__ import annotations

from functools import partial
from typing import ClassVar

from textual.binding import Binding, BindingType

from streamdump.model import Entry
from streamdump.render.clock import Clock
from streamdump.render.terminal import visible
from streamdump.units import count

from ..indexed.index import Shown
from ..indexed.reading import View
from . import saving
from .asking import Asking
from .places import TIMES, Conversations, Fields, Findings, Messages, Place, TextPage
from .user_messages import UserMessages

FORMS = tuple(TIMES)

ENTRIES = 10_000
"""User messages of a message that are shown."""

HELP = """\
1 2 3        findings, conversations, messages
enter, esc   open, go back; a click on the selected line opens it, too
tab          switch panes
j k, arrows  next and previous line; right and left scroll
g G          first and last line; at the last one, a live list follows
space, page  page down; page up and down
/            filter in the language of -Y: tab or right accepts the
             suggestion, enter keeps the filter, esc restores the previous
             one; in the list, esc removes the filter
:            go to a message: its number, seconds since the first packet
             (12.5s), or a time of day (08:15:00, UTC)
n N          next and previous message with !;
             among fields, next and previous message
r            from a request to its response, and back
u            the user messages that a message carries
f            add the selected value to the filter
s            sort
m d          mark a message; show times relative to the mark
t            switch times: since the first packet, local, UTC, epoch
l            latency of the messages shown
y Y          copy the line or value; copy a filter that matches it
e            export the lines shown to a new file: NAME.jsonl as JSON Lines,
             any other name as text
w            write the packets of the conversations shown to a new file,
             as captured, including passwords and tokens
ctrl+z       suspend; fg resumes
q, ctrl+c    quit"""


class Browser(Asking):
    """The application."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "enter"),
        Binding("escape,backspace", "leave"),
        Binding("1", "root(0)"),
        Binding("2", "root(1)"),
        Binding("3", "root(2)"),
        Binding("tab", "other"),
        # At once, before other keys that came with them are given to the list
        *(Binding(key, f"ask('{what}')", priority=True) for key, what in (("slash", "/"), ("colon", ":"), ("e", "e"), ("w", "w"))),
        Binding("n", "next(1)"),
        Binding("N", "next(-1)"),
        Binding("r", "answer"),
        Binding("u", "entries"),
        Binding("f", "filter_value"),
        Binding("s", "sort"),
        Binding("m", "mark"),
        Binding("d", "since"),
        Binding("t", "times"),
        Binding("l", "latency"),
        Binding("y", "copy"),
        Binding("Y", "copy_filter"),
        Binding("question_mark", "help"),
        Binding("q", "quit"),
        Binding("ctrl+z", "suspend_process"),
        Binding("ctrl+c", "quit", priority=True),
    ]

    # To other places

    def action_enter(self) -> None:
        """Go in."""
        place, at = self.place, self.list.cursor
        if not len(place):
            return
        if isinstance(place, Findings):
            found = place.rows[at]
            inside = Messages(self.reader, found.conversation)
            there, notice = inside.place_of(found)
            self.go(inside, there)
            self.say(*notice)
        elif isinstance(place, Conversations):
            self.go(Messages(self.reader, place.rows[at].conversation))
        elif isinstance(place, Messages):
            self.fetch(place.index(at), lambda record: self.go(Fields(self.reader, record)))

    def action_leave(self) -> None:
        """Go back: out of the prompt, of a filter, of a place."""
        if self.asking:
            self.close()
        elif self.place.view is not None:
            self.filter("")
        elif len(self.stack) > 1:
            self.stack.pop()
            self.go(self.place)

    def action_root(self, number: int) -> None:
        self.place.cursor = self.list.cursor
        for one in self.stack[1:]:
            one.refilter(None, "")
        self.stack = [self.roots[number]]
        self.go(self.place)

    def action_other(self) -> None:
        (self.more if self.list.has_focus else self.list).focus()

    def action_help(self) -> None:
        if self.place.name != "help":
            self.go(TextPage(self.reader, "help", HELP))

    # To other lines

    def action_next(self, way: int) -> None:
        """Go to the next message with something wrong, or from fields to the next message."""
        if isinstance(self.place, Fields):
            messages = self.stack[-2]
            if isinstance(messages, Messages) and 0 <= messages.cursor + way < len(messages):
                messages.cursor += way
                self.fetch(messages.index(messages.cursor), self._instead)
        elif isinstance(self.place, Messages):
            place, at = self.place, self.list.cursor
            self.background(lambda: partial(self._found, place.next_marked(at, way)))

    def _found(self, at: int | None) -> None:
        if at is None:
            self.say("no more messages with !")
        else:
            self.list.action_to(at)

    def _instead(self, record: Shown) -> None:
        if isinstance(self.place, Fields):
            self.go(Fields(self.reader, record), instead=True)

    def action_answer(self) -> None:
        """Go from a request to its response, or back."""
        index = self.index()
        found = None if index is None else self.reader.answer(index)
        if found is None:
            self.say("no matching request or response")
        elif isinstance(self.place, Fields):
            self.fetch(found, self._instead)
        elif isinstance(self.place, UserMessages) or (
            isinstance(self.place, Messages) and self.place.view is not None and not self.place.has(found)
        ):
            self.fetch(found, lambda record: self.go(Fields(self.reader, record)))
        else:
            self.to(found)

    def action_entries(self) -> None:
        """Open the user messages of a message."""
        index, place = self.index(), self.place
        if index is not None and not isinstance(place, UserMessages):
            self.say("reading...")
            self.background(lambda: partial(self._entries, place, index, self.reader.entries(index, ENTRIES + 1)))

    def _entries(self, place: Place, index: int, entries: list[Entry]) -> None:
        if self.place is not place:
            return
        if entries:
            record = self.reader.records.row(index).record
            self.go(UserMessages(self.reader, record, entries[:ENTRIES], len(entries) > ENTRIES))
        else:
            self.say("this message carries no user messages")

    # What is shown

    def action_sort(self) -> None:
        place, view = self.place, self.place.view
        if place.orders:
            index, order = self.index(), (place.order + 1) % len(place.orders)
            self.say("sorting...")
            self.background(lambda: partial(self._sorted, place, view, index, order, place.sort(order)))

    def _sorted(self, place: Place, view: View | None, index: int | None, order: int, some: list[int]) -> None:
        """Of the messages by number the first line is shown then, else the one that was chosen there: what ran beside it is near."""
        if self.place is place and place.view is view:
            chosen = place.order and self.list.cursor
            place.order, place.sorted = order, some
            self.go(place, place.at(index) if isinstance(place, Messages) and index is not None and (chosen or not order) else 0)
            self.say(f"sorted by {place.orders[order]}")

    def action_mark(self) -> None:
        self.reader.marked = self.index()
        self.list.refresh()

    def action_since(self) -> None:
        """Show times since the mark, or as before."""
        if self.reader.marked is None:
            self.say("mark a message first, with m")
            return
        since = Clock(signed=True)
        since.begin(self.reader.records.row(self.reader.marked).record.time_ns)
        self.reader.since = since if self.reader.since is None else None
        self.list.refresh()
        self.bars()

    def action_times(self) -> None:
        clock = self.reader.clock
        clock.form, self.reader.since = FORMS[(FORMS.index(clock.form) + 1) % len(FORMS)], None
        self.list.refresh()
        self.say(f"times: {TIMES[clock.form][0]}")

    def action_latency(self) -> None:
        place = self.place
        if isinstance(place, Messages):
            self.say("counting...")
            self.background(lambda: partial(self.go, TextPage(self.reader, "latency", saving.latency(place, self.size.width))))

    def action_copy(self) -> None:
        place, at = self.looked_at()
        self._copy(place.value(at, self.list.size.width) if len(place) else "")

    def action_copy_filter(self) -> None:
        self._copy(self.place.asked or self.asks())

    def _copy(self, text: str) -> None:
        """Copy text as it is seen."""
        copied = visible(text)
        if copied:
            self.copy_to_clipboard(copied)
        self.say(f"copied {count(len(copied), 'character')} to the terminal's clipboard (OSC 52): {copied}")

    # Filters and other things to type

    def action_filter_value(self) -> None:
        text = self.asks()
        if not text:
            self.say("no filter for this line")
            return
        while isinstance(self.place, Fields | UserMessages):
            self.action_leave()
        if not isinstance(self.place, Messages):
            self.action_root(2)
        self.filter(f"({self.place.asked}) and {text}" if self.place.asked else text)
