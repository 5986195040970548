"""What is left of conversations that were forgotten: their rows, in as few bytes as they take, and counts."""

from __future__ import annotations

from typing import Any, get_type_hints

import msgspec

from streamdump.capture.selection import ConversationSpan
from streamdump.model import ConversationRow
from streamdump.protocols import PORTS

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(tuple[(int, int, *get_type_hints(ConversationRow).values())]).decode  # type: ignore[misc]


class ForgottenCounts(msgspec.Struct):
    """What is still known of conversations whose rows were dropped: what the closing line says of them."""

    conversations: int = 0
    limit_hits: int = 0
    unread: dict[str, int] = msgspec.field(default_factory=dict)
    """Those of no known protocol that carried bytes, by what they are."""
    ports: set[int] = msgspec.field(default_factory=set)
    """Of those of which nobody knows what they are, the ports that protocols of ours use."""
    examples: dict[tuple[Any, ...], ConversationRow] = msgspec.field(default_factory=dict)
    """The first one of each protocol and of such ports."""

    def add(self, row: ConversationRow) -> None:
        """Count one more."""
        self.conversations += 1
        self.limit_hits += row.limit_hits
        ports = PORTS.intersection(int(end.rpartition(":")[2]) for end in (row.endpoints if row.server is None else (row.server,)))
        if row.protocol is not None:
            self.examples.setdefault((row.protocol, *sorted(ports)), row)
        elif any(row.bytes):
            # There may be very many
            name = row.name or "unknown"
            self.unread[name] = self.unread.get(name, 0) + 1
            self.ports.update(ports if row.name is None else ())


class PackedRows:
    """Rows by conversation. Their numbers are given when they are asked for."""

    def __init__(self) -> None:
        self._rows: dict[int, tuple[str | None, bytes]] = {}

    def __len__(self) -> int:
        return len(self._rows)

    def add(self, row: ConversationRow, order: int, file: int) -> None:
        """Keep the row of a conversation whose first packet is `order`, in this file."""
        self._rows[row.conversation] = row.protocol, _encode((order, file, *msgspec.structs.astuple(row)))

    def protocols(self) -> dict[int, str | None]:
        """What the conversations speak."""
        return {index: protocol for index, (protocol, _) in self._rows.items()}

    def row(self, index: int, number: int) -> ConversationRow:
        """The row of one."""
        row = ConversationRow(*_decode(self._rows[index][1])[2:])
        row.number = number
        return row

    def flow(self, index: int, separate: bool) -> ConversationSpan:
        """What tells the packets of one."""
        order, file, *values = _decode(self._rows[index][1])
        return ConversationSpan(index, ConversationRow(*values).endpoints, order, file if separate else 0)
