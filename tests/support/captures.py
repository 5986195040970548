"""The golden captures, for tests that look at all of them: a case for each family, in which each capture is a subtest."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from streamdump.model import ConversationRow

GOLDEN = Path(__file__).parents[2] / "captures" / "golden"
CAPTURES = sorted(GOLDEN.rglob("*.pcap*"))
ACCEPT = "If this is right: pytest tests/golden --update-golden"


def capture_name(path: Path) -> str:
    return f"{path.parent.name}/{path.name}"


def every_family(captures: list[Path], short: int = 1) -> pytest.MarkDecorator:
    """Give the captures of one family after the other to the parameter `paths` of a test; the short tests have every `short`-th of them."""
    families: dict[str, list[Path]] = {}
    for path in captures:
        families.setdefault(path.parent.name, []).append(path)
    cases = [pytest.param(paths[::short], id=family) for family, paths in families.items()]
    for family, paths in families.items():
        if others := [path for at, path in enumerate(paths) if at % short]:
            cases.append(pytest.param(others, id=f"{family}, others", marks=pytest.mark.sweep))
    return pytest.mark.parametrize("paths", cases)


def plain_bytes(row: ConversationRow) -> Sequence[int]:
    """The bytes of each side that positions count: those inside of WebSocket, else those inside of TLS."""
    sizes: Sequence[int] = row.facts.get("websocket_plain_bytes", row.facts.get("tls_plain_bytes", row.bytes))
    return sizes
