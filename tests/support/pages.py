"""The pages of the repository, for the tests that do what pages say."""

from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted(path for room in ("cli", "dissect", "captures", "tests") for path in (ROOT / room).rglob("*.md"))]
"""All pages; `dissect/cli` is a link to `cli`, which `rglob` does not follow."""


def page(name: str) -> str:
    """The text of one page."""
    return (ROOT / name).read_text()


def everything() -> str:
    """The text of all pages, one behind the other."""
    return "\n".join(path.read_text() for path in PAGES)
