"""The tables of the current protocol and its draft, and the search for frames in bytes without a known start."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from struct import Struct
from typing import Any

from ...errors import Malformed
from ...layout import UNREADABLE, Layout, Style, decoder, walk
from ...layout.types import Array, Field, Fixed, Number, minimum
from ...quota import PLENTY, ValueQuota
from ..dissector import SEARCH_WINDOW
from ..work_budget import STEP, WorkBudget
from . import layouts, layouts_draft, sasl_redaction
from .chunk import (
    CURRENT,
    DRAFT,
    DRAFT_TIMED,
    MAGIC,
    ChunkForm,
    EntryReader,
    FixedHeader,
    HeaderField,
    begins_published,
    draft_form,
    fixed_header,
)
from .layouts import PUBLISH_2

SIZE_LIMIT = 64 << 20
"""No frame is looked for that is longer: 1 MiB is usual, and Deliver frames are not held to it."""

CHAIN = 3
"""The number of consecutive valid frames that are certain."""

NO, MAYBE, LATER, YES = range(4)
"""Whether frames begin somewhere. LATER: more bytes may show it, but without them none do."""

SCANNED, READ, NUMBERS = 2, 16, 2
"""The work budget that a byte costs in which `pattern` is looked for, one of a frame that is read, and one of a frame of numbers only."""

ENTRY, WITH_ENTRIES = 40, 200
"""The same for each entry of a Publish or Deliver, and for such a frame besides; a byte of it costs an eighth, for the checksum."""

UNSOUND: dict[str, Any] = {"": None}
"""In the place of the fields of a frame that has a flaw."""

_HANDSHAKE = frozenset(("PeerProperties", "SaslHandshake", "SaslAuthenticate", "Open", "Close"))

Table = dict[int, tuple[Layout, ...]]
"""Layouts by key and version (one number)."""

_HEAD = Struct(">II").unpack_from
_DEFAULT_STYLE = Style()


class Language:
    """The tables of one of the two protocols.

    - `protocol`: its name
    - `client`, `server`: what each side may send; `words`: the keys and versions of both
    - `costs`: the work budget that reading a byte of each layout costs
    - `heads`: the fixed fields before the entries of Publish and Deliver
    - `pattern`: finds every offset at which a frame could begin (no size is below 4)
    - `accepted`: the response codes that do not refuse; `challenge`: the one of a SASL challenge
    - `login_inside`: finds SaslAuthenticate inside other bytes
    - `mark`: the bit of a key that marks a response
    """

    __slots__ = (
        "accepted",
        "bounds",
        "challenge",
        "client",
        "commands",
        "costs",
        "delivered",
        "forms",
        "heads",
        "login_inside",
        "mark",
        "numbers",
        "pattern",
        "protocol",
        "published",
        "server",
        "words",
    )

    def __init__(
        self,
        protocol: str,
        client: Iterable[Layout],
        server: Iterable[Layout],
        both: Iterable[Layout],
        heads: dict[Layout, FixedHeader],
        forms: tuple[ChunkForm, ...],
        pattern: bytes,
        commands: Mapping[int, str],
        accepted: frozenset[int],
        authenticate: Layout,
        mark: int,
    ) -> None:
        self.protocol = protocol
        self.mark = mark
        self.client = _table((*client, *both))
        self.server = _table((*server, *both))
        self.words = frozenset((*self.client, *self.server))
        self.heads = heads
        self.published = frozenset(layout for layout in heads if layout.name == "Publish")
        self.delivered = frozenset(layout for layout in heads if layout.name == "Deliver")
        self.forms = forms
        self.pattern = re.compile(pattern, re.DOTALL)
        self.commands = commands
        self.numbers = {name: number for number, name in commands.items()}
        self.accepted = accepted
        self.challenge = max(accepted)
        self.login_inside = re.compile(re.escape(word_of(authenticate).to_bytes(4, "big")) + sasl_redaction.LOGIN_INSIDE, re.DOTALL)
        every = {layout for table in (self.client, self.server) for each in table.values() for layout in each}
        self.bounds = {layout: _bounds(layout) for layout in every}
        self.costs = {layout: NUMBERS if _has_but(layout, Number, Fixed, Array) else READ for layout in every}

    def tables(self, client: bool | None) -> tuple[Table, ...]:
        """What a side may send that is the client, the server, or not known to be either."""
        if client is None:
            return (self.client, self.server)
        return (self.client,) if client else (self.server,)

    def header(self, tables: tuple[Table, ...], data: bytes, at: int, end: int) -> tuple[int, list[Layout]]:
        """Return the length of the frame whose header could be at `at`, and its possible layouts; (0, []) if none."""
        size, word = _HEAD(data, at)
        length = size + 4
        found: list[Layout] = []
        if length <= SIZE_LIMIT:
            for table in tables:
                for layout in table.get(word, ()):
                    least, most = self.bounds[layout]
                    if least <= length <= most and (layout not in self.delivered or self.fits(layout, data, at, end, length)):
                        found.append(layout)
        return (length, found) if found else (0, found)

    def fits(self, layout: Layout, data: bytes, at: int, end: int, length: int) -> bool:
        """Return whether the captured part of a Deliver is a chunk of the right size."""
        begin = at + self.heads[layout].size
        if begin < end and data[begin] != MAGIC:
            return False
        for form in self.forms:
            if begin + form.header.size > end:
                return True
            chunk = form.header.values(data, begin)
            left = at + length - begin - form.header.size
            section = chunk["data_length"]
            if (
                0 < chunk["num_entries"] <= chunk["num_records"]
                and chunk.get("chunk_type", 0) <= 2
                and left in (section, section + chunk.get("trailer_length", 0))
            ):
                return True
        return False

    def read_sound(self, layout: Layout, data: bytes, start: int, end: int, work_budget: WorkBudget) -> dict[str, Any] | None:
        """Return the fields of a frame that matches `layout` without fault or note, those of Publish and Deliver without the contents of
        entries; UNSOUND if it does not match, and None if the work budget is used up. Text that is not UTF-8 is no flaw in a handshake."""
        if layout in self.heads:
            return self._read_sound_entries(layout, data, start, end, work_budget)
        if not work_budget.spend(self.costs[layout] * (end - start)):
            return None
        try:
            fields = decoder(layout, _DEFAULT_STYLE)(data, start, end)
        except UnicodeDecodeError:
            if layout.name not in _HANDSHAKE:
                return UNSOUND
            if not work_budget.spend(4 * READ * (end - start)):
                return None
            fields, _, _, fault = walk(layout, data, start, end, _DEFAULT_STYLE, None)
            if fault is not None:
                return UNSOUND
        except UNREADABLE:
            return UNSOUND
        return UNSOUND if "trailing" in fields else fields

    def _read_sound_entries(self, layout: Layout, data: bytes, start: int, end: int, work_budget: WorkBudget) -> dict[str, Any]:
        values, fields = ValueQuota(SIZE_LIMIT), dict[str, Any]()
        reader = EntryReader(self.forms[0], start, bytes, None, values, False)
        try:
            complete = self.read_entries(reader, layout, data, start, end, fields) == end
        except Malformed:
            complete = False
        work_budget.spend((end - start >> 3) + WITH_ENTRIES + ENTRY * (SIZE_LIMIT - values.left))
        return fields if complete and not reader.counted else UNSOUND

    def read_entries(self, reader: EntryReader, layout: Layout, data: bytes, start: int, end: int, fields: dict[str, Any]) -> int:
        """Read a Publish or Deliver into `fields`, whose entries no table can express; return where it ends, or raise `Malformed`."""
        at = reader.header(self.heads[layout], data, start, end, fields, 0)
        try:
            if layout in self.delivered:
                name = "chunk."
                if layout is layouts_draft.DELIVER:
                    reader.form = draft_form(data, at, end)
                chunk = fields["chunk"] = {}
                return reader.chunk(data, at, end, chunk, "chunk", 0)
            name = ""
            if layout is layouts_draft.PUBLISH:
                at = reader.text("stream", data, at, end, fields, 0)
            entries: list[dict[str, Any]] = []
            name = "published_messages"
            fields[name] = entries
            return reader.published(data, at, end, entries, name, 0, layout is PUBLISH_2)
        except Malformed as wrong:
            wrong.field = name + wrong.field
            raise

    def each_entry(self, layout: Layout, data: bytes, values: ValueQuota) -> Iterator[dict[str, Any]]:
        """Yield the entries of the frame `data`, a Publish or Deliver, one by one, with their bytes as such; the limit of `values` is
        that of each. Raises `Malformed` after the last complete one."""
        end = len(data)
        at = self.entries_at(layout, data, 0, end)
        reader = EntryReader(self.forms[0], 0, bytes, None, values)
        if layout in self.published:
            return reader.each_published(data, at, end, layout is PUBLISH_2)
        if layout is layouts_draft.DELIVER:
            reader.form = draft_form(data, at, end)
        return reader.each_of_chunk(data, at, end)

    def entries_at(self, layout: Layout, data: bytes, start: int, end: int) -> int:
        """Return where the chunk of a Deliver or the messages of a Publish begin; `end` if the fields before them are not valid."""
        at = start + self.heads[layout].size
        if layout is layouts_draft.PUBLISH:
            reader = EntryReader(self.forms[0], start, bytes, None, PLENTY)
            try:
                at = reader.text("stream", data, at, end, {}, 0)
            except Malformed:
                return end
            if reader.counted:
                return end
        return at

    def is_identified(self, layouts: list[Layout], at: int, end: int) -> bool:
        """Return whether a partial frame is identified: a chunk header is long and full of sizes."""
        needed = self.forms[-1].header.size
        return any(layout in self.delivered and end - at >= self.heads[layout].size + needed for layout in layouts)

    def continues(self, layouts: list[Layout], data: bytes, at: int, end: int, length: int, work_budget: WorkBudget) -> bool:
        """Return whether a frame too long to be read completely is identified: a Publish by its first messages."""
        if self.is_identified(layouts, at, end):
            return True
        if length <= SEARCH_WINDOW:
            return False
        found = [
            begins_published(self.forms[0], layout is PUBLISH_2, data, self.entries_at(layout, data, at, end), end, at + length)
            for layout in layouts
            if layout in self.published
        ]
        work_budget.spend(ENTRY * sum(found))
        return any(found)

    def search(self, client: bool | None, data: bytes, at: int, end: int, final: bool, work_budget: WorkBudget) -> tuple[bool, int, bool]:
        """(True, p): from p on frames certainly follow each other. (False, p): none begins before p, as far as effort was left. Then,
        whether that might be another if this is not `final` and were."""
        if end - at < 8:
            return False, end if final else at, False
        tables = self.tables(client)
        keep = -1
        hinges = False
        going = work_budget.spend(SCANNED * (end - at))
        for match in self.pattern.finditer(data, at, end):
            place = match.start()
            if not going:
                # Not examined: the next search begins here
                return False, end if final else keep if keep >= 0 else place, True
            answer = self.chain(tables, data, place, end, final, keep >= 0, work_budget)
            if answer == YES:
                return True, place, keep >= 0
            if answer != NO:
                hinges = hinges or answer == MAYBE
                if keep < 0:
                    keep = place
            going = work_budget.spend(3 * STEP)
        if final:
            return False, end, False
        return False, keep if keep >= 0 else max(at, end - 7), hinges

    def chain(self, tables: tuple[Table, ...], data: bytes, at: int, end: int, final: bool, inside: bool, work_budget: WorkBudget) -> int:
        """Whether frames begin at `at`; `inside`: an earlier candidate would cover it, so more is asked for.

        `end` is the end of a segment, where frames often end too.
        """
        sound = 0
        strong = False
        needed = 2 if inside else 1
        while True:
            left = end - at
            if left == 0:
                return YES if sound >= needed else MAYBE
            if left < 8:
                if sound >= 2 or (final and strong and sound >= needed):
                    return YES
                return NO if final else MAYBE
            length, layouts = self.header(tables, data, at, end)
            if not length:
                return NO
            if length > left:
                if sound >= needed:
                    return YES
                if self.continues(layouts, data, at, end, length, work_budget):
                    return NO if inside and final else MAYBE if inside else YES
                return NO if final else MAYBE if sound else LATER
            work_budget.spend(2 * STEP)
            found = [self.read_sound(layout, data, at, at + length, work_budget) for layout in layouts]
            if all(fields is None or fields is UNSOUND for fields in found):
                return YES if sound >= 2 else NO if final or None not in found else MAYBE
            sound += 1
            strong = strong or length > 12
            if sound >= CHAIN:
                return YES
            at += length


def is_sound(layout: Layout, data: bytes, start: int, end: int) -> bool:
    """Return whether the frame matches `layout` without fault or note."""
    try:
        return "trailing" not in decoder(layout, _DEFAULT_STYLE)(data, start, end)
    except UNREADABLE:
        return False


def word_of(layout: Layout) -> int:
    """Key and version of a layout as one number."""
    version = next(field.default for field in layout.fields if isinstance(field, Field) and field.name == "version")
    assert isinstance(layout.key, int)
    return layout.key << 16 | int(version)


def _table(all_layouts: tuple[Layout, ...]) -> Table:
    table: Table = {}
    for layout in all_layouts:
        word = word_of(layout)
        table[word] = (*table.get(word, ()), layout)
    return table


def _bounds(layout: Layout) -> tuple[int, int]:
    """Return the least and greatest size in bytes of a frame of this layout, size field included."""
    least = minimum(layout.fields)
    return least, least if _has_but(layout, Number, Fixed) else SIZE_LIMIT


def _has_but(layout: Layout, *types: type) -> bool:
    return all(isinstance(entry, Field) and isinstance(entry.type, types) for entry in layout.fields)


_FRAME = (HeaderField("size", 4, "I"), HeaderField("key", 2, "H"), HeaderField("version", 2, "H"))

CURRENT_LANGUAGE = Language(
    "rabbitmq-stream",
    layouts.CLIENT_LAYOUTS,
    layouts.SERVER_LAYOUTS,
    layouts.BOTH_LAYOUTS,
    {
        layouts.PUBLISH: fixed_header(*_FRAME, HeaderField("publisher_id", 1, "B")),
        layouts.PUBLISH_2: fixed_header(*_FRAME, HeaderField("publisher_id", 1, "B")),
        layouts.DELIVER: fixed_header(*_FRAME, HeaderField("subscription_id", 1, "B")),
        layouts.DELIVER_2: fixed_header(*_FRAME, HeaderField("subscription_id", 1, "B"), HeaderField("committed_chunk_id", 8, "Q")),
    },
    (CURRENT,),
    rb"(?=(?!\x00\x00\x00[\x00-\x03])[\x00-\x03]...[\x00\x80][\x01-\x1f]\x00[\x01\x02])",
    layouts.COMMANDS,
    frozenset((0x01, 0x0A)),
    layouts.SASL_AUTHENTICATE,
    layouts.RESPONSE,
)

DRAFT_LANGUAGE = Language(
    "rabbitmq-stream-draft",
    layouts_draft.CLIENT_LAYOUTS,
    layouts_draft.SERVER_LAYOUTS,
    layouts_draft.BOTH_LAYOUTS,
    {
        layouts_draft.PUBLISH: fixed_header(*_FRAME),
        layouts_draft.DELIVER: fixed_header(*_FRAME, HeaderField("subscription_id", 4, "I")),
    },
    (DRAFT, DRAFT_TIMED),
    rb"(?=(?!\x00\x00\x00[\x00-\x03])[\x00-\x03]...(?:\x00[\x00-\x0e]|\x03[\xe6\xe7])\x00\x00)",
    layouts_draft.COMMANDS,
    frozenset((0, 9)),
    layouts_draft.SASL_AUTHENTICATE,
    0,
)
