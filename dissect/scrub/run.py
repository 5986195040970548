"""Makes a capture that can be published: copy, find private data, overwrite it, search for secrets that are left, rename.

The copy is changed in place and only its owner may read it; until all is done it has no name, and what fails leaves nothing.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from mmap import mmap
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import msgspec

from ..capture.atomic_files import in_place_of
from ..capture.blocks import explain
from ..capture.files import PACKED, CaptureReader, open_capture
from ..capture.link import ip_header
from ..capture.write import is_input
from ..conversation.conversation import Conversation, united
from ..errors import CaptureError, UsageError, refuse
from ..inspector import Inspector
from ..layers.frames import FrameTrace
from ..model import Gap, Message, Options, Span
from ..protocols import PROTOCOLS
from ..protocols.scrub_rules import ScrubRules, SensitivePart
from ..units import count
from .files import CaptureCopy, copied
from .packets import CapturePackets, ConversationEdits, Echoes, Edit, Edits, End, end_of
from .proxy import ProxyReplacements
from .replace import FILL, AddressReplacements, NameReplacements, prose
from .sealed import TlsOverwriter, TlsSide
from .search import LEAST, Range, SecretSearch, pieces
from .sensitive_parts import parts
from .websocket import outside

SCRUB_RULES: dict[str, ScrubRules | None] = {protocol.name: protocol.loaded.scrub_rules for protocol in PROTOCOLS}


class ScrubOptions(NamedTuple):
    """The kinds of data that are overwritten besides secrets."""

    payloads: bool = False
    names: bool = False
    addresses: bool = False
    echoes: bool = False
    """Pieces of secrets wherever they stand."""
    foreign: bool = False
    """Leave packets that are not dissected, and may hold complete connections, as they are."""

    @property
    def anything(self) -> bool:
        return self.payloads or self.names or self.addresses


class SecretLeft(UsageError):
    """A secret stands, or may stand, where it would not be overwritten, so nothing was written."""


class ScrubResult(msgspec.Struct):
    """What was done."""

    packets: int = 0
    messages: int = 0
    parts: Counter[str] = msgspec.field(default_factory=Counter)
    """Overwritten parts by what they were."""
    packed: int = 0
    """Messages in which compressed bytes were overwritten, which do not unpack any more."""
    unread: int = 0
    """Conversations that nothing is known of and that stay as they are."""
    sealed: int = 0
    """Conversations in TLS."""
    foreign: int = 0
    """Packets that carry something else than TCP and stay as they are."""
    left_out: int = 0
    """Blocks and options of a pcapng file that were left out: comments, names, keys."""
    unsought: set[int] = msgspec.field(default_factory=set)
    """The sizes of secrets that were not searched for elsewhere, for they may be any bytes."""
    error: CaptureError | None = None
    """Why only a part of a damaged capture was read."""


def scrub(source: str | Path | BinaryIO, target: Path, wanted: ScrubOptions, options: Options, name: str | None = None) -> ScrubResult:
    """Write `source` to `target` without its secrets and what else is `wanted`; a file object must be one that can be read twice."""
    name = name or str(source)
    refuse(
        (str(target).endswith(PACKED), f"{target}: captures are written unpacked; leave {target.suffix} off the name"),
        (target.exists() and not target.is_file(), f"{target}: is not a file"),
        (
            is_input(str(target), [str(source)] if isinstance(source, str | Path) else []),
            f"{target}: is the input, which is never overwritten",
        ),
    )
    try:
        with in_place_of(target) as file:
            return _scrub(source, file, wanted, options, name)
    except OSError as error:
        raise UsageError(f"{target}: cannot be written: {explain(error)}") from error


def _scrub(source: str | Path | BinaryIO, file: BinaryIO, wanted: ScrubOptions, options: Options, name: str) -> ScrubResult:
    copy = copied(source, file, name)
    plan = _Plan(wanted)
    file.seek(0)
    inspector = Inspector([open_capture(file, name=name)], replace(options, **_ALL))
    inspector.run.traces = {}
    if wanted.anything:
        inspector.run.tls_manager = plan.tls_manager = TlsOverwriter(inspector.options, inspector.keys, plan.side)
    for batch in inspector.batches():
        plan.feed(batch)
    if inspector.reports:
        # What was not dissected may hold anything
        inspector.raise_errors()
    done = plan.done
    done.packets, done.left_out, done.error = len(copy.offsets), copy.left_out, copy.error
    if copy.offsets:
        with mmap(file.fileno(), 0) as memory:
            packets = _overwrite(memory, copy, _again(file, name), plan, inspector.table.conversations)
            if packets.unread and not wanted.anything and not wanted.foreign:
                kinds = ", ".join(f"{count(number, 'packet')} {what}" for what, number in packets.unread.most_common())
                raise SecretLeft(
                    f"{name}: nothing was written, because packets that are not decoded may contain secrets: {kinds}; "
                    "--payloads empties them, --leave-foreign leaves them as they are"
                )
            search = plan.search()
            ranges = united([*search.everywhere(memory), *packets.streams.across(search, memory)] if search else [])
            if wanted.echoes and ranges:
                done.parts["echo"] += len(ranges)
                _pass(Echoes(memory, ranges), copy, _again(file, name))
                ranges = united(search.everywhere(memory))
            if ranges:
                raise SecretLeft(_secret_left(ranges, copy, wanted, name))
            memory.flush()
    return done


_ALL: dict[str, Any] = {"detail": True, "bytes_as": "raw", "show_secrets": False, "exchanges": False, "bodies": True, "keylog": ()}


def _again(file: BinaryIO, name: str) -> CaptureReader:
    file.seek(0)
    return open_capture(file, name=name)


def _overwrite(
    memory: mmap, copy: CaptureCopy, reader: CaptureReader, plan: _Plan, conversations: Sequence[Conversation]
) -> CapturePackets:
    wanted = plan.wanted
    addresses = AddressReplacements() if wanted.addresses else None
    talks = plan.talks(conversations, addresses)
    packets = CapturePackets(memory, talks, wanted.anything, wanted.payloads, addresses)
    _pass(packets, copy, reader)
    if not wanted.anything:
        plan.done.foreign = packets.foreign
    return packets


def _pass(packets: CapturePackets, copy: CaptureCopy, reader: CaptureReader) -> None:
    """Make the edits, packet by packet."""
    for batch in reader.batches():
        for packet in batch:
            ip, kind, _ = ip_header(packet)
            order = packet.number - 1
            offset = copy.offsets[order]
            packets.packet(order, offset, copy.sizes[order], packet.wire, packet.link, offset + ip - packet.offset, kind)
    packets.finish()


def _secret_left(ranges: Sequence[Range], copy: CaptureCopy, wanted: ScrubOptions, name: str) -> str:
    """Return the error: where parts of secrets are left, and the options that overwrite more."""
    places: dict[str, None] = {}
    for start, _ in ranges:
        place = bisect_right(copy.offsets, start)
        inside = place and start < copy.offsets[place - 1] + copy.sizes[place - 1]
        places[f"packet {place}" if inside else f"byte {start}"] = None
    where, *more = places
    others = f" and in {count(len(more), 'other place')}" if more else ""
    options = (("--overwrite-echoes", wanted.echoes), ("--payloads", wanted.payloads), ("--names", wanted.names))
    left = [option for option, given in options if not given]
    advice = f"; {', '.join(left)} overwrite{'s' if len(left) == 1 else ''} more" if left else ""
    return f"{name}: nothing was written, because {LEAST} bytes or more of a secret also occur in {where}{others}{advice}"


class _Plan:
    """The edits of each byte stream."""

    def __init__(self, wanted: ScrubOptions) -> None:
        self.wanted = wanted
        self.done = ScrubResult()
        self.secrets: set[bytes] = set()
        self.shown: set[bytes] = set()
        self._beside: set[bytes] = set()
        """Those of messages with a secret."""
        self.tls_manager: TlsOverwriter | None = None
        self._names = NameReplacements()
        self._edits: defaultdict[tuple[int, str], Edits] = defaultdict(Edits)
        """By conversation and sender."""

    def feed(self, records: Iterable[Any]) -> None:
        for record in records:
            if isinstance(record, Message):
                self._message(record)
            elif isinstance(record, Gap):
                # bytes that were not dissected
                self._edits[record.conversation, record.src].add(record.position, record.position + (record.size or 0), FILL[0])

    def talks(
        self, conversations: Sequence[Conversation], addresses: AddressReplacements | None
    ) -> dict[frozenset[End], list[tuple[int, ConversationEdits]]]:
        """The conversations by their ends, in the order of their first packets."""
        found: dict[frozenset[End], list[tuple[int, ConversationEdits]]] = {}
        proxies = None if addresses is None else ProxyReplacements(addresses)
        for conversation in conversations:
            tcp = conversation.tcp
            known = conversation.protocol is not None
            edits = self._edits[tcp.index, tcp.endpoints[0]], self._edits[tcp.index, tcp.endpoints[1]]
            if conversation.tls.unread is not None:
                self.done.sealed += 1
                if self.tls_manager is not None:
                    one, other = self.tls_manager.sides[tcp.index]
                    one.end()
                    other.end()
                    known, edits = True, (one.edits, other.edits)
            elif not known and any(tcp.stream_bytes) and not self.wanted.payloads:
                self.done.unread += 1
            websocket = conversation.websocket
            if websocket is not None and websocket.sides is not None and websocket.traces is not None:
                edits = self._through(edits[0], websocket.traces[0], known), self._through(edits[1], websocket.traces[1], known)
                known = known or not self.wanted.payloads
            header = conversation.proxy_header
            if header is not None:
                known = known or not self.wanted.payloads
                edits[header.side].shift(len(header.raw))
                for edit in [] if proxies is None else proxies.edits(header):
                    edits[header.side].add(*edit)
                    self.done.parts["address"] += 1
            ends = [end_of(one) for one in tcp.endpoints]
            found.setdefault(frozenset(ends), []).append((tcp.first[0], ConversationEdits(tcp, known, ends[0], edits, [0, 0])))
        for talks in found.values():
            talks.sort(key=lambda one: one[0])
        return found

    def _through(self, inside: Edits, trace: Sequence[FrameTrace], known: bool) -> Edits:
        """Return the edits of a side in WebSocket, by position outside of it."""
        return outside(inside, sorted(trace, key=lambda one: one.outside), self._of_websocket, known)

    def _of_websocket(self, what: str, data: bytes) -> bytes | int | None:
        """What comes instead of a part that is not inside; None where it stays."""
        if what == "other":
            return FILL[0]
        if what == "name":
            return self._host(data) if self.wanted.names or self.wanted.addresses else None
        if what == "secret":
            self.done.parts["secret"] += 1
        return self._instead(SensitivePart(0, len(data), "secret" if what == "secret" else "payload"), data)

    def search(self) -> SecretSearch:
        """Return what to search for: pieces of secrets, except of secrets that are shown as a name, and of names shown beside them."""
        secrets = self.secrets - self.shown - self._beside
        names = [name for name in self._beside if len(name) >= LEAST and any(name in secret for secret in secrets)]
        return SecretSearch({piece for one in secrets for piece in pieces(one)}.difference(*map(pieces, names)))

    def side(self) -> TlsSide:
        """What of one side of a conversation in TLS is overwritten."""
        names = self.wanted.names or self.wanted.addresses
        return TlsSide(self.wanted.payloads, self._host if names else None)

    def _host(self, name: bytes) -> bytes:
        self.done.parts["name"] += 1
        return self._names.of(name)

    def _message(self, message: Message) -> None:
        self.done.messages += 1
        assert message.raw is not None
        frame = message.raw["frame"]
        scrub_rules = SCRUB_RULES.get(message.protocol)
        found = list(parts(message, scrub_rules))
        shown = self._beside if any(part.what == "secret" for part in found) else self.shown
        edits: list[Edit] = []
        for part in found:
            data = self._instead(part, frame[part.start : part.end])
            if data is not None and part.end > part.start and data != frame[part.start : part.end]:
                edits.append((part.start, part.end, data))
                self.done.parts[part.what] += 1
            elif part.what not in ("payload", "key"):
                shown.add(frame[part.start : part.end])
        spans = message.spans or []
        self._note_shown(shown, spans, found, edits)
        stream = self._edits[message.conversation, message.src]
        compressed = () if scrub_rules is None else scrub_rules.packed
        if edits and any(span.buffer != "frame" or (span.leaf and span.name in compressed) for span in spans):
            self.done.packed += 1
        if edits and scrub_rules is not None and scrub_rules.sums is not None:
            edits += _sums(scrub_rules, frame, edits, spans)
        for start, end, data in edits:
            stream.add(message.position + start, message.position + end, data)
        if message.size > len(frame):
            # behind the damage
            stream.add(message.position + len(frame), message.position + message.size, FILL[0])

    def _instead(self, part: SensitivePart, data: bytes) -> bytes | int | None:
        """What comes instead of a part; None where it stays."""
        wanted = self.wanted
        if part.what == "secret":
            # passwords have no zero bytes, but headers in a damaged frame do
            for one in filter(None, data.split(b"\0")):
                if len(one) >= LEAST and len(set(one)) > 1:
                    self.secrets.add(one)
                else:
                    self.done.unsought.add(len(one))
        elif not (wanted.payloads if part.what in ("payload", "key") else wanted.names or (wanted.addresses and part.what == "address")):
            return None
        if part.what in ("secret", "payload"):
            return 0 if part.number else FILL[0]
        return prose(data) if part.what == "text" else self._names.of(data)

    def _note_shown(self, shown: set[bytes], spans: Sequence[Span], found: Sequence[SensitivePart], edits: Sequence[Edit]) -> None:
        """Keep the texts that are shown afterwards, bodies left aside: a secret equal to one of them does not count as one."""
        hidden = bytearray(max((span.offset + span.length for span in spans), default=0))
        for start, end in [edit[:2] for edit in edits] + [(part.start, part.end) for part in found if part.what in ("payload", "key")]:
            hidden[start:end] = b"\1" * (end - start)
        for span in spans:
            # a secret of `LEAST` bytes may be a text of fewer characters
            if not span.leaf or span.secret or span.buffer != "frame" or type(span.value) is not str or len(span.value) < LEAST // 4:
                continue
            # a user's name, of which the bytes are in another field, has no length
            if span.length and hidden.find(1, span.offset, span.offset + span.length) < 0:
                shown.add(span.value.encode("utf-8", "surrogatepass"))


def _sums(scrub_rules: ScrubRules, frame: bytes, edits: Sequence[Edit], spans: Sequence[Span]) -> Iterator[Edit]:
    """The bytes of checksums that are to be changed with the rest of a frame."""
    assert scrub_rules.sums is not None
    after = bytearray(frame)
    for start, end, data in edits:
        after[start:end] = bytes((data,)) * (end - start) if isinstance(data, int) else data
    before = bytes(after)
    scrub_rules.sums(frame, after, [span for span in spans if span.buffer == "frame"])
    for at, (one, other) in enumerate(zip(before, after, strict=True)):
        if one != other:
            yield at, at + 1, other
