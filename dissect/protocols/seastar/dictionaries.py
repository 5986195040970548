"""Dictionaries of ScyllaDB's compression, which a user exports from the table system.dicts: `--dict FILE`.

Control blocks name them by their SHA-256.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from functools import cached_property, lru_cache
from hashlib import sha256
from pathlib import Path
from typing import Any

from ...errors import UsageError
from ...lz4 import REACH
from ...zstd import codec

LARGEST = 4 << 20
"""Bytes of a dictionary. ScyllaDB's have about 100 KiB."""

LEAST = 8
"""zstd accepts no shorter one."""

MOST = 64
"""Dictionaries of one run."""

FORMATTED = bytes.fromhex("37a430ec")
"""How a dictionary in zstd's own format begins; any other one is raw history."""


class Dictionary:
    """A dictionary as both algorithms use it: zstd the complete one, LZ4 its last bytes."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.sha256 = sha256(data).digest()
        self.tail = data[-REACH:]

    @cached_property
    def zstd(self) -> Any:
        return codec().ZstdDict(self.data, is_raw=not self.data.startswith(FORMATTED))


@lru_cache(16)
def dictionaries(contents: tuple[bytes, ...]) -> tuple[Dictionary, ...]:
    """Return the dictionaries of a run; one that is there twice counts once."""
    return tuple(Dictionary(one) for one in dict.fromkeys(contents))


def load_dictionaries(paths: Iterable[str]) -> tuple[bytes, ...]:
    """Return the contents of these files, each of which holds the bytes of a dictionary, or its hex digits as cqlsh prints them."""
    found = tuple(dict.fromkeys(_load(path) for path in paths))
    if len(found) > MOST:
        raise UsageError(f"--dict: {len(found)} dictionaries were given, {MOST} can be used")
    return found


def _load(path: str) -> bytes:
    try:
        with Path(path).open("rb") as file:
            data = file.read(3 * LARGEST)
    except (OSError, ValueError) as error:
        raise UsageError(f"--dict {path}: {getattr(error, 'strerror', None) or error}") from error
    with suppress(ValueError):
        # CQL puts 0x in front of a blob
        data = bytes.fromhex(data.decode("ascii").strip().removeprefix("0x"))
    if len(data) < LEAST:
        raise UsageError(f"--dict {path}: {len(data)} bytes are no dictionary; export the column data of system.dicts")
    if len(data) > LARGEST:
        raise UsageError(f"--dict {path}: a dictionary has {LARGEST >> 20} MiB at most, ScyllaDB's about 100 KiB")
    return data
