"""Parses what `tshark -T json` writes to standard input, one packet of its only array after the other, and prints how many there were.

tshark -r CAPTURE -T json | python tests/bench/parse.py
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import BinaryIO

END = b"\n  }"
"""Where an object ends: that of a packet is indented by two, what is in it by more, and text holds no line ends."""

CHUNK = 1 << 20


def objects(stream: BinaryIO) -> Iterator[bytes]:
    """The text of each packet."""
    rest = b""
    while chunk := stream.read(CHUNK):
        *whole, rest = (rest + chunk).split(END)
        for one in whole:
            yield one[one.index(b"{") :] + b"}"


def main() -> None:
    count = 0
    for one in objects(sys.stdin.buffer):
        json.loads(one)
        count += 1
    print(count)


if __name__ == "__main__":
    main()
