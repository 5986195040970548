"""How wide lines are where standard output is no terminal: what COLUMNS says, or the terminal at which a pager is read."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from streamdump.cli.exits import ExitCode
from tests.support.terminal import Drain, called, opened

CAPTURE = Path(__file__).parents[2] / "captures" / "golden" / "rabbitmq-stream" / "publishers_310.pcap"
KEPT = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "NO_COLOR", "FORCE_COLOR")}


def printed(argv: list[str], columns: str | None = None, terminal: int | None = None) -> str:
    """What a call prints into a pipe, with a terminal of so many columns for errors where there is one."""
    environment = KEPT | ({} if columns is None else {"COLUMNS": columns})
    master, slave = opened(terminal or 80)
    reading, writing = os.pipe()
    nothing = os.open(os.devnull, os.O_RDWR)
    printed = Drain(reading)
    try:
        code = called([*argv, str(CAPTURE)], environment, (nothing, writing, nothing if terminal is None else slave))
    finally:
        for number in (master, slave, writing, nothing):
            os.close(number)
    assert code == ExitCode.DONE
    return printed.text()


@pytest.mark.parametrize("argv", [[], ["conversations"], ["diagnose"], ["latency"], ["follow", "0"], ["stats"]], ids=" ".join)
def test_columns_give_the_form_of_a_terminal(argv: list[str]) -> None:
    lines = printed(argv, "72").splitlines()
    assert lines and all(len(line) <= 72 for line in lines)
    wide = printed(argv).splitlines()
    assert wide != lines
    assert printed(argv, "no number").splitlines() == wide


def test_colour_for_a_pager_comes_in_the_width_of_the_terminal() -> None:
    told = printed(["--color", "always"], terminal=70)
    assert "\x1b[" in told and told.count("127.0.0.1:37172") == 1
    assert len(told.splitlines()[3]) < 70 + told.splitlines()[3].count("\x1b") * 8
    assert printed(["--color", "always"]).count("127.0.0.1:37172") > 20, "nobody looks at a terminal"
    assert printed([], terminal=70).count("127.0.0.1:37172") > 20, "no colour, no pager"


def test_values_are_never_cut() -> None:
    for argv in (["--json"], ["-T", "fields", "-e", "src", "-e", "fields"], ["stats", "--csv"]):
        assert printed(argv, "40") == printed(argv)
