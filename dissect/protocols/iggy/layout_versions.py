"""The wire layouts of Apache Iggy, which no frame states: their names, order and releases.

The names are this project's own. L0 to L9 are the classic framing (a length or a status first), V1 to V5 the one with a
header of 256 bytes. No server of V5 was seen: it rests on published clients, which state version 0.12.0 of the protocol.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

LAYOUTS = ("L0", "L1", "L2", "L3", "L4", "L5", "L6", "L7", "L8", "L9", "V1", "V2", "V3", "V4", "V5")
"""From the oldest to the newest."""

CLASSIC = LAYOUTS[:10]
LONG = LAYOUTS[10:]

RANK: Mapping[str, int] = {layout: rank for rank, layout in enumerate(LAYOUTS)}

RELEASES: Mapping[str, tuple[str, str]] = {
    "L0": ("0.0.1", "0.0.29"),
    "L1": ("0.0.30", "0.0.30"),
    "L2": ("0.0.31", "0.0.32"),
    "L3": ("0.0.33", "0.1.8"),
    "L4": ("0.1.9", "0.2.12"),
    "L5": ("0.2.13", "0.2.24"),
    "L6": ("0.3.0", "0.4.999"),
    "L7": ("0.5.0", "0.5.999"),
    "L8": ("0.6.0", "0.6.999"),
    "L9": ("0.7.0", "0.8.999"),
    "V1": ("0.9.0-edge.1", "0.9.0-edge.2"),
    "V2": ("0.9.0-edge.3", "0.9.0-edge.3"),
    "V3": ("0.9.0-edge.4", "0.9.0-edge.4"),
    "V4": ("0.9.0-edge.5", "0.9.999"),
    "V5": ("protocol 0.12.0", "protocol 0.12.0"),
}
"""First and last server release of each layout; of V5 the version of the protocol, as no server was seen."""

V5_VERSION = 12 << 10
"""The version 0.12.0 of the protocol, packed: clients that state it, or a later one, speak V5."""


def in_words(layouts: Sequence[str]) -> str:
    """The servers that have one of these layouts, as people call them: "server 0.5.x"."""
    if layouts[-1] == "V5":
        # its servers are not known, they may be those of 0.9.x
        return in_words(layouts[:-1]) if len(layouts) > 1 else RELEASES["V5"][0]
    first, last = RELEASES[layouts[0]][0], RELEASES[layouts[-1]][1]
    shown = last.replace(".999", ".x")
    if first == last or (f"{first.rpartition('.')[0]}.x" == shown and first.endswith(".0")):
        return f"server {shown}"
    return f"server {first} to {shown}"


CLIENT_VERSIONS: Mapping[str, str] = {"0.5": "L6", "0.6": "L6", "0.7": "L7", "0.8": "L8", "0.9": "L9", "0.10": "L9"}
SERVER_VERSIONS: Mapping[str, str] = {"0.4": "L6", "0.5": "L7", "0.6": "L8", "0.7": "L9", "0.8": "L9"}
"""The layouts of the Rust library and of the server, by the version they state, down to the second number."""

EDGES: Mapping[str, str] = {
    "0.9.0-edge.2": "V1",
    "0.9.0-edge.3": "V2",
    "0.9.0-edge.4": "V3",
    "0.11.0-edge.1": "V1",
    "0.11.0-edge.2": "V2",
    "0.11.0-edge.3": "V3",
}
"""Those of the pre-releases, of both; later ones are V4."""


def hinted(version: str, server: bool) -> str | None:
    """The layout that a stated version speaks for: a hint only, for libraries of other languages count on their own."""
    if version in EDGES:
        return EDGES[version]
    known = SERVER_VERSIONS if server else CLIENT_VERSIONS
    return known.get(".".join(version.split(".")[:2]))


NEWEST, NEWEST_SERVER, FROM_CLIENTS = (0, 11), (0, 9), (0, 12)
"""The latest version of the protocol, and of the server, whose layouts were checked with a real server; and the latest of the protocol
that is known from clients only, so that it may have more than is known."""


def is_newer(version: Any, newest: tuple[int, int]) -> bool:
    """Return whether a stated version is newer than all whose layouts are known."""
    found = re.match(r"(\d{1,9})\.(\d{1,9})", version) if isinstance(version, str) else None
    return found is not None and (int(found[1]), int(found[2])) > newest


FRAMINGS: Mapping[bool, str] = {False: "classic", True: "256-byte"}
