"""Draws the picture of the README from real output: `python -m tests.support` writes `cli/docs/terminal.svg`."""

from __future__ import annotations

import io
import re
import shlex
from contextlib import chdir

from rich.console import Console
from rich.text import Text

from tests.support.pages import ROOT
from tests.support.terminal import on_terminal

PICTURE = ROOT / "cli" / "docs" / "terminal.svg"
COLUMNS = 96
FOLDER, CAPTURE = ROOT / "captures" / "golden" / "rabbitmq-stream", "publisher_refused_310.pcap"
CALLS = (f"-Y 'number >= 9 and not name == Heartbeat' {CAPTURE}", f"diagnose -Y 'severity == error' {CAPTURE}")
FONTS = re.compile(r"\s*@font-face \{.*?\}\n", re.S)
"""What the picture would load from elsewhere."""


def shown() -> str:
    """What a terminal shows of the calls, with its colours."""
    parts = []
    with chdir(FOLDER):
        for call in CALLS:
            _, printed = on_terminal(shlex.split(call), COLUMNS, {"FORCE_COLOR": "1"})
            parts.append(f"\x1b[1m$ streamdump {call}\x1b[0m\n{printed}")
    return "\n".join(parts)


def picture(text: str) -> str:
    """The SVG of a terminal that shows this."""
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True)
    console.print(Text.from_ansi(text), soft_wrap=False)
    svg = FONTS.sub("", console.export_svg(title="streamdump", unique_id="terminal"))
    return "\n".join(line.rstrip() for line in svg.splitlines()) + "\n"


def write() -> None:
    """Draws it."""
    PICTURE.write_text(picture(shown()))
