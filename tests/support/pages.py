"""The pages of the repository, and what they show of the command line. `python -m tests.support` writes anew what they print.

A block `console` has calls of streamdump (`$ streamdump ...`) with what a terminal of 96 columns shows of each. A line `...` stands for
lines that are left out; such a block is not rewritten. A block `mcp` has calls of the tools of `streamdump mcp`, with what each answers.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from contextlib import chdir
from pathlib import Path
from typing import Any

from tests.support.terminal import on_terminal

ROOT = Path(__file__).parents[2]
PAGES = [
    ROOT / "README.md",
    *sorted(path for room in (".github", "cli", "dissect", "captures", "tests") for path in (ROOT / room).rglob("*.md")),
]
"""All pages; `dissect/cli` is a link to `cli`, which `rglob` does not follow."""

COLUMNS = 96
CONSOLE = re.compile(r"(?<=^```console\n)(.*?)(?=^```$)", re.S | re.M)
LEFT_OUT = "..."
TRANSCRIPT = re.compile(r"(?<=^```mcp\n)(.*?)(?=^```$)", re.S | re.M)
GOLDEN = ROOT / "captures" / "golden"
"""The folder of the captures of transcripts."""


def page(name: str) -> str:
    """The text of one page."""
    return (ROOT / name).read_text()


def everything() -> str:
    """The text of all pages, one behind the other."""
    return "\n".join(path.read_text() for path in PAGES)


def shown(block: str) -> Iterator[tuple[str, list[str]]]:
    """Each call of a `console` block with the lines below it."""
    for part in re.split(r"^\$ (?=streamdump )", block, flags=re.M)[1:]:
        call, *lines = part.rstrip("\n").split("\n")
        yield call, lines


def printed(call: str) -> list[str]:
    """What a terminal shows of this call in the repository's folder, where its captures are read from there."""
    with chdir(ROOT):
        _, text = on_terminal(shlex.split(call)[1:], COLUMNS, {"NO_COLOR": "1"})
    return [line.rstrip() for line in text.rstrip("\n").split("\n")]


def rewritten(block: str) -> str:
    """The block with what its calls print now."""
    return "".join(f"$ {call}\n" + "".join(f"{line}\n" for line in printed(call)) for call, _ in shown(block))


def calls(block: str) -> Iterator[tuple[str, dict[str, Any], str]]:
    """Each call of an `mcp` block: the tool, its arguments, and what it answers."""
    for part in re.split(r"^> (?=\w+ \{)", block, flags=re.M)[1:]:
        call, _, answer = part.rstrip("\n").partition("\n")
        tool, _, given = call.partition(" ")
        yield tool, json.loads(given), answer


def answered(block: str) -> str:
    """The block with what its calls answer now."""
    from streamdump.cli.mcp.answers import LIMIT
    from streamdump.cli.mcp.captures import Call, Captures
    from streamdump.cli.mcp.tools import text_of
    from streamdump.options import Options

    captures = Captures([str(GOLDEN)], Options(findings=True))
    try:
        found = [(tool, given, text_of(tool, captures, given, Call(), LIMIT)) for tool, given, _ in calls(block)]
    finally:
        captures.close()
    return "".join(f"> {tool} {json.dumps(given)}\n{text}\n" for tool, given, text in found)


def write() -> None:
    """Writes what `console` blocks print anew."""
    for path in PAGES:
        text = path.read_text()
        text = CONSOLE.sub(lambda found: found[0] if LEFT_OUT in found[0].split("\n") else rewritten(found[0]), text)
        path.write_text(TRANSCRIPT.sub(lambda found: answered(found[0]), text))
