"""The golden captures, for tests that look at all of them: a case for each family, in which each capture is a subtest."""

from __future__ import annotations

from pathlib import Path

import pytest

GOLDEN = Path(__file__).parents[2] / "captures" / "golden"
CAPTURES = sorted(GOLDEN.rglob("*.pcap*"))
ACCEPT = "If this is right: pytest tests/golden --update-golden"


def capture_name(path: Path) -> str:
    return f"{path.parent.name}/{path.name}"


def every_family(captures: list[Path]) -> pytest.MarkDecorator:
    """Give the captures of one family after the other to the parameter `paths` of a test."""
    families: dict[str, list[Path]] = {}
    for path in captures:
        families.setdefault(path.parent.name, []).append(path)
    return pytest.mark.parametrize("paths", families.values(), ids=families)
