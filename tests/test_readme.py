"""What the README shows works, and it names what there is."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

import pytest

from tests.cli.terminal import on_terminal

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def test_the_library_example_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    example = re.search(r"```python\n(.*?)```", README, re.S)
    assert example is not None
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        exec(compile(example[1], "README.md", "exec"), {})
    assert "client" in said.getvalue()
    assert "server" in said.getvalue()


def test_the_captures_it_names_are_there() -> None:
    named = re.findall(r"captures/golden/[\w./-]+pcap\w*", README)
    assert named
    assert all((ROOT / name).exists() for name in named)


def test_the_lines_it_shows_are_printed() -> None:
    shown = re.search(r"^On a terminal \(`streamdump (\S+)`\):\n\n```\n(.*?)```", README, re.S | re.M)
    assert shown is not None
    _, printed = on_terminal([str(ROOT / shown[1])], columns=96, environment={"NO_COLOR": "1"})
    lines = {line.rstrip() for line in printed.splitlines()}
    assert [line for line in shown[2].splitlines() if line not in lines] == ["  ..."]
