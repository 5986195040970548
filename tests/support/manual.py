"""Writes what a wheel installs for shells and `man`, from the declared options: `python -m tests.support`."""

from __future__ import annotations

import re
from typing import Any

from typer._completion_shared import get_completion_script

from streamdump.cli.app import READ, command_of
from streamdump.cli.help import ABOUT, EXAMPLES, _entry
from streamdump.cli.run import COMMANDS
from tests.support.pages import ROOT, page

SHARE = ROOT / "cli" / "share"
COMPLETIONS = {
    "bash": "bash-completion/completions/streamdump",
    "zsh": "zsh/site-functions/_streamdump",
    "fish": "fish/vendor_completions.d/streamdump.fish",
}
MANUAL = "man/man1/streamdump.1"


def escaped(text: str) -> str:
    """Text for roff, which gives a meaning to backslashes, hyphens, and what a line begins with."""
    text = text.replace("\\", "\\e").replace("-", "\\-").replace("`", "")
    return f"\\&{text}" if text[:1] in (".", "'") else text


def options(parameters: list[Any]) -> list[str]:
    """Each option with what it does, below the heading of its group."""
    lines, heading = [], None
    for parameter in sorted(parameters, key=lambda one: GROUPS.index(one.rich_help_panel or GROUPS[-1])):
        if parameter.rich_help_panel != heading:
            heading = parameter.rich_help_panel
            lines += [f".SS {escaped(heading or GROUPS[-1])}"]
        name, text = _entry(parameter)
        lines += [".TP", f".B {escaped(name)}", escaped(text)]
    return lines


def examples(name: str) -> list[str]:
    """The examples of a command's help."""
    return [line for call, text in EXAMPLES.get(name, ()) for line in (".TP", f".B {escaped(call)}", escaped(text))]


def filters() -> list[str]:
    """The filter language, as its page has it: the names, then operators and values."""
    text = page("cli/docs/filters.md")
    lines = []
    for heading in ("Names", "Operators and values"):
        part = text.partition(f"## {heading}\n")[2].partition("\n## ")[0].partition("```")[0]
        lines += [f".SS {heading}"]
        for line in part.splitlines():
            line = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", line)
            if row := re.fullmatch(r"\| (.+?) \| (.+) \|", line):
                if row[1] not in ("name", "---", "| "):
                    lines += [".TP", f".B {escaped(row[1])}", escaped(row[2])]
            elif line.strip() and line[0] != "|":
                lines += [".PP", escaped(line.removeprefix("- "))]
    return lines


def manual() -> str:
    """The manual page: the options of plain calls, and of each command what these have not."""
    commands = command_of((READ, *COMMANDS)).commands
    plain = [one for one in commands[READ].params if one.param_type_name == "option"]
    known = {name for one in plain for name in one.opts}
    lines = ['.TH STREAMDUMP 1 "" streamdump "User Commands"', ".SH NAME", f"streamdump \\- {escaped(ABOUT.partition(' ')[2].rstrip('.'))}"]
    lines += [".SH SYNOPSIS", ".B streamdump", "[OPTIONS] FILE...", ".br", ".B streamdump", "COMMAND [OPTIONS] ..."]
    lines += [".SH EXAMPLES", *examples(""), ".SH OPTIONS", *options(plain), ".SH COMMANDS"]
    for name in COMMANDS:
        own = [one for one in commands[name].params if one.param_type_name == "option"]
        shared = [one.opts[0] for one in own if set(one.opts) <= known]
        lines += [f".SS {name}", escaped(commands[name].help or ""), *examples(name)]
        for one in own:
            if one.opts[0] not in shared:
                title, text = _entry(one)
                lines += [".TP", f".B {escaped(title)}", escaped(text)]
        if shared:
            lines += [".PP", f"As above: {escaped(', '.join(shared))}"]
    lines += [".SH FILTERS", *filters()]
    codes = re.findall(r"^\| (\d+) \| (.*) \|$", page("cli/README.md"), re.M)
    lines += [".SH EXIT STATUS", *(line for code, text in codes for line in (".TP", f".B {code}", escaped(text)))]
    return "\n".join(lines) + "\n"


GROUPS = ["Input", "Output", "Live capture", "Files written", "Limits", "Other"]


def files() -> dict[str, str]:
    """What is written below `cli/share`, by path."""
    scripts = {
        path: get_completion_script(prog_name="streamdump", complete_var="_STREAMDUMP_COMPLETE", shell=shell) + "\n"
        for shell, path in COMPLETIONS.items()
    }
    return {MANUAL: manual(), **scripts}


def write() -> None:
    """Writes all of them."""
    for path, text in files().items():
        (SHARE / path).parent.mkdir(parents=True, exist_ok=True)
        (SHARE / path).write_text(text)
