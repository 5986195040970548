"""Completion: every option of every command, as bash, zsh and fish ask for it, and in those shells themselves."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.completion import get_completion_script

from streamdump.cli.app import READ, command_of, main
from streamdump.cli.run import COMMANDS
from tests.support.waiting import PATIENCE

VARIABLE = "_STREAMDUMP_COMPLETE"
COMMAND = command_of((READ, *COMMANDS))
SHELLS = ("bash", "zsh", "fish")


@pytest.fixture
def complete(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """What a shell would be offered for the last of some words."""

    def ask(shell: str, *words: str) -> list[str]:
        line = " ".join(words)
        monkeypatch.setenv(VARIABLE, f"complete_{shell}")
        monkeypatch.setenv("COMP_WORDS", line)
        monkeypatch.setenv("COMP_CWORD", str(len(words) - 1))
        monkeypatch.setenv("_TYPER_COMPLETE_ARGS", line)
        monkeypatch.setenv("_TYPER_COMPLETE_FISH_ACTION", "get-args")
        with pytest.raises(SystemExit) as ended:
            main([])
        out, err = capsys.readouterr()
        assert (ended.value.code, err) == (0, ""), f"{shell}: {line}: {out}{err}"
        if shell == "zsh":
            return [one.replace(r"\\:", ":") for one in re.findall(r'^(?:_arguments .*\(\()?"((?:[^"]|"")*)"', out, re.M)]
        return [one.partition("\t")[0] for one in out.splitlines() if one]

    return ask


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize("name", (READ, *COMMANDS))
def test_every_option_of_every_command(name: str, shell: str, complete: Any) -> None:
    begun = ["streamdump", *([] if name == READ else [name])]
    for parameter in COMMAND.commands[name].params:
        if parameter.param_type_name != "option":
            continue
        for option in parameter.opts:
            assert option in complete(shell, *begun, option)
            # A value, or what stands behind a flag
            offered = complete(shell, *begun, option, "")
            if parameter._custom_shell_complete is not None and not parameter.is_flag:
                assert offered, option
                # One that is begun
                assert offered[0] in complete(shell, *begun, option, offered[0][:1])


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--j",), ["--json"]),
        (("conv",), ["conversations"]),
        (("x.pcap", "--show-s"), ["--show-secrets"]),
        (("-t", ""), ["r", "ad", "ud", "e", "d", "dd"]),
        (("-T", ""), ["text", "json", "fields", "tabs", "csv"]),
        (("-T", "t"), ["text", "tabs"]),
        (("-E", ""), ["header=y", "separator=,", "quote=d"]),
        (("check", "--only", ""), ["all", "handshake", "names"]),
        (("diff", "--only", "h"), ["handshake"]),
        (("protocols", "ig"), ["iggy"]),
        (("follow", "0", "--until", ""), ["ready"]),
    ],
)
def test_completion(words: tuple[str, ...], expected: list[str], shell: str, complete: Any) -> None:
    assert complete(shell, "streamdump", *words) == expected


ASKED = {
    "bash": '''COMP_WORDS=(streamdump {words} ""); COMP_CWORD={count}; _streamdump_completion streamdump; echo "${{COMPREPLY[*]}}"''',
    "zsh": """_arguments() {{ print -r -- "$@" }}; words=(streamdump {words} ""); CURRENT=$#words; _streamdump_completion""",
    "fish": '''complete --do-complete "streamdump {words} "''',
}
"""What each shell runs to complete words, behind the script that `--install-completion` writes."""


@pytest.mark.witness
@pytest.mark.parametrize("shell", SHELLS)
def test_the_shells_themselves(shell: str, tmp_path: Path) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    program = tmp_path / "streamdump"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m streamdump "$@"\n')
    program.chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "HOME": str(tmp_path)}
    script = get_completion_script(prog_name="streamdump", complete_var=VARIABLE, shell=shell)
    for words, expected in (("-T", {"text", "json", "fields", "tabs", "csv"}), ("check --only", {"all", "handshake", "names"})):
        asked = ASKED[shell].format(words=words, count=len(words.split()) + 1)
        begun = "compdef() {}\n" if shell == "zsh" else ""
        done = subprocess.run(
            [shell, "-c", f"{begun}{script}\n{asked}"], capture_output=True, text=True, timeout=PATIENCE, env=environment, check=False
        )
        assert done.stderr == ""
        assert expected == set(re.findall(r"\w+", done.stdout.replace("_arguments '*: :", ""))), done.stdout
