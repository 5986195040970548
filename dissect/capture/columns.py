"""Gathers fixed headers that lie at any offset of a buffer into columns."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray


def gather(buffer: bytes, at: NDArray[np.int64], layout: DTypeLike) -> NDArray[Any]:
    """The items of type `layout` at the byte offsets `at`, all of which must fit into the buffer.

    One copy of each item: a void type has an alignment of one byte, so the whole buffer can be seen as overlapping items.
    """
    kind = np.dtype(layout)
    if not len(at):
        return np.empty(0, kind)
    room = len(buffer) - kind.itemsize + 1
    view: NDArray[np.void] = np.ndarray((room,), f"V{kind.itemsize}", buffer, 0, (1,))
    return view[at].view(kind)
