"""`-w FILE` of files: the matching records are noted as the captures are read; then these are read again, and the packets are written."""

from __future__ import annotations

import os
import sys
from collections import OrderedDict
from pathlib import Path
from typing import TYPE_CHECKING

from streamdump.capture.atomic_files import in_place_of
from streamdump.capture.blocks import explain
from streamdump.capture.selection import PacketSelection, Spot, copy
from streamdump.capture.write import PcapngWriter, check, is_input
from streamdump.errors import CaptureError, UsageError
from streamdump.model import END, Exchange, Finding, Message
from streamdump.units import count

from .output import PipeClosed, say

if TYPE_CHECKING:
    from collections.abc import Iterable

    from streamdump.inspector import Inspector
    from streamdump.model import Record

    from .run import FileRun

STANDARD_OUTPUT = "standard output"

OPEN, ANSWERED = 1 << 17, 1 << 12
"""Requests without a response, and messages of late, of which it is remembered with which packets they came."""


class Selection:
    """What `-w` writes: complete conversations, or the packets of some records."""

    def __init__(self, path: str, names: Iterable[str], some: bool, alone: bool, keys: bool) -> None:
        """`some`: not all conversations; `alone`: the packets of matches alone; `keys`: those of TLS, too. Raises `UsageError` for what
        could not be written."""
        self.path = STANDARD_OUTPUT if path == "-" else path
        self._target = Path("/dev/stdout" if path == "-" else path)
        if path == "-":
            _check_output()
        check(str(self._target))
        if is_input(str(self._target), names):
            raise UsageError(f"-w {path}: is an input; inputs are never overwritten")
        self._keys = keys
        self._wanted: set[int] | None = set() if some else None
        self._spots: list[Spot] | None = [] if alone else None
        self._open: OrderedDict[int, list[Spot]] = OrderedDict()
        self._late: OrderedDict[int, list[Spot]] = OrderedDict()
        self._before: dict[tuple[int, str], Spot] = {}
        self._forgotten = 0

    @property
    def takes_all(self) -> bool:
        """Whether all packets of all conversations are written."""
        return self._wanted is None and self._spots is None

    def listen(self, inspector: Inspector) -> None:
        """Have the inspector record what writing needs."""
        inspector.link.pieces = {}
        if self._keys:
            inspector.keys.sessions_of = {}

    def note(self, records: Iterable[Record], wanted: Iterable[Record]) -> None:
        """Note all records, and those among them that match."""
        if self._wanted is not None:
            self._wanted.update([record.conversation for record in wanted if record.conversation is not None])
        if self._spots is None:
            return
        # Findings are counted by themselves
        asked = {id(record) for record in wanted}
        for record in records:
            found: list[Spot] = []
            if isinstance(record, Message):
                found = self._of(record)
                kept, most = (self._open, OPEN) if record.kind == "request" else (self._late, ANSWERED)
                _keep(kept, record.number, found, most)
                answered = None if record.request is None else self._open.pop(record.request, None)
                if answered is not None:
                    _keep(self._late, record.request or 0, answered, ANSWERED)
            elif isinstance(record, Exchange):
                found = self._named_by(record, asked)
                self._open.pop(record.request, None)
            elif isinstance(record, Finding):
                found = self._named_by(record, asked)
            if id(record) in asked:
                self._spots += found

    def _named_by(self, record: Exchange | Finding, asked: set[int]) -> list[Spot]:
        """Return the packets of the messages that a matching record names."""
        if id(record) not in asked:
            return []
        numbers = record.messages if isinstance(record, Finding) else [record.request, record.response]
        found: list[Spot] = []
        for number in [one for one in numbers if one is not None]:
            spots = self._open.get(number) or self._late.get(number, [])
            self._forgotten += not spots
            found += spots
        return found

    def _of(self, message: Message) -> list[Spot]:
        """The packets of a message; of one that began in an earlier file from the message before on."""
        first, last = message.packets
        side = message.conversation, message.src
        before = self._before.get(side)
        self._before[side] = spot = Spot(*side, message.file, last, last)
        if first is not None:
            return [spot._replace(first=first)]
        begin = before or spot._replace(file=0, last=1)
        files = range(begin.file, message.file + 1)
        return [
            spot._replace(file=one, first=begin.last if one == begin.file else 1, last=last if one == message.file else END)
            for one in files
        ]

    def write(self, run: FileRun) -> list[str]:
        """Write the packets, all or nothing; return lines that report it."""
        if not run.inspector.counters.packets:
            return []
        inspector = run.inspector
        flows = None if self.takes_all else inspector.flows()
        pick = PacketSelection(flows, self._wanted, inspector.link.pieces or {}, self._spots)
        keys = self._secrets(inspector)
        limits, most = [reader.packets for reader in run.readers], inspector.counters.packets
        try:
            with in_place_of(self._target, as_is=True) as file:
                writer = PcapngWriter(self.path, run.names, into=file.fileno())
                writer.secrets(keys)
                written, read = copy(run.again(), limits, most, type(inspector.link)(), pick, writer)
        except OSError as error:
            raise UsageError(f"-w {self.path}: cannot be written: {explain(error)}") from error
        except UsageError as error:
            if isinstance(error.__cause__, BrokenPipeError) and self.path == STANDARD_OUTPUT:
                raise PipeClosed from error
            raise
        except KeyboardInterrupt:
            say(f"-w {self.path}: interrupted; nothing was written")
            raise
        if read < most:
            reason = f"has only the first {read:,} of {count(most, 'packet')}: the captures shrank while they were read"
            run.errors.append(CaptureError(reason, f"-w {self.path}"))
        secrets = "passwords, tokens and TLS keys" if keys else "passwords and tokens"
        lines = [f"-w {self.path}: {written:,} of {count(read, 'packet')} written as captured, including {secrets}"]
        if self._forgotten:
            lines.append(
                f"-w {self.path}: without the packets of {count(self._forgotten, 'message')}, which came too long before their records"
            )
        if any("TLS" in one for one in inspector.run.tls_manager.inside.values()) and not self._keys:
            lines.append(f"-w {self.path}: TLS keys are not included; --embed-keys adds them")
        return lines

    def _secrets(self, inspector: Inspector) -> bytes:
        """The keys of the conversations that are written, as lines of a key log."""
        found = inspector.keys.sessions_of or {}
        wanted = sorted({session for index, some in found.items() if self._wanted is None or index in self._wanted for session in some})
        return b"".join([line for session in wanted for line in inspector.keys.lines(session)])


def _check_output() -> None:
    """Raise `UsageError` if standard output was closed: its replacement could be opened again, and the output would be lost."""
    try:
        os.write(sys.stdout.fileno(), b"")
    except OSError as error:
        raise UsageError(f"-w {STANDARD_OUTPUT}: cannot be written: {explain(error)}") from error


def _keep(kept: OrderedDict[int, list[Spot]], number: int, spots: list[Spot], most: int) -> None:
    kept[number] = spots
    if len(kept) > most:
        kept.popitem(last=False)
