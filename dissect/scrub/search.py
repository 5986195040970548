"""Whether a secret is left anywhere in a file: as it is, in hex, in base64, in UTF-16."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable
from mmap import mmap

import numpy as np

LEAST = 8
"""Shorter secrets are found everywhere by chance."""

BLOCK = 1 << 20


def forms(secret: bytes) -> set[bytes]:
    """What a secret may look like."""
    found = {secret, secret.hex().encode(), secret.hex().upper().encode()}
    for lead in range(3):
        # the first and the last characters depend on what is around
        text = b64encode(bytes(lead) + secret)
        text = text[(0, 2, 3)[lead] : (len(secret) + lead) * 8 // 6]
        found |= {text, text.replace(b"+", b"-").replace(b"/", b"_")}
    wide = secret.decode("latin-1")
    found |= {wide.encode("utf-16-le"), wide.encode("utf-16-be")}
    return {one for one in found if len(one) >= LEAST}


def first(file: mmap | bytes, secrets: Iterable[bytes]) -> tuple[int, bytes] | None:
    """The first place where one of the secrets, of at least `LEAST` bytes, is; and which it is."""
    heads: dict[int, list[tuple[bytes, bytes]]] = {}
    longest = 0
    for secret in secrets:
        if len(secret) >= LEAST:
            for form in forms(secret):
                heads.setdefault(int.from_bytes(form[:LEAST], "little"), []).append((form, secret))
                longest = max(longest, len(form))
    if not heads:
        return None
    wanted = np.array(sorted(heads), np.uint64)
    size = len(file)
    for base in range(0, size, BLOCK):
        data = bytes(file[base : base + BLOCK + longest])
        places: list[int] = []
        for shift in range(LEAST):
            count = (len(data) - shift) // LEAST
            if count <= 0:
                break
            words = np.frombuffer(data, "<u8", count, shift)
            index = np.minimum(np.searchsorted(wanted, words), len(wanted) - 1)
            places += (np.flatnonzero(wanted[index] == words) * LEAST + shift).tolist()
        for place in sorted(places):
            for form, secret in heads[int.from_bytes(data[place : place + LEAST], "little")]:
                if data.startswith(form, place) and place < BLOCK:
                    return base + place, secret
    return None
