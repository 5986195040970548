"""Completion: every option of every command, as bash, zsh and fish ask for it, and in those shells themselves."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from shlex import quote
from typing import Any

import pytest
from typer.completion import get_completion_script

from streamdump.cli.app import READ, command_of, main
from streamdump.cli.exits import ExitCode
from streamdump.cli.run import COMMANDS
from tests.support.waiting import PATIENCE

VARIABLE = "_STREAMDUMP_COMPLETE"
COMMAND = command_of((READ, *COMMANDS))
SHELLS = ("bash", "zsh", "fish")


@pytest.fixture
def complete(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """What a shell would be offered for the last of some words."""

    monkeypatch.setenv("COLUMNS", "80")

    def said(shell: str, words: Sequence[str], action: str = "get-args") -> tuple[str, Any]:
        line = " ".join(words)
        monkeypatch.setenv(VARIABLE, f"complete_{shell}")
        monkeypatch.setenv("COMP_WORDS", "\n".join(words))
        monkeypatch.setenv("COMP_CWORD", str(len(words) - 1))
        monkeypatch.setenv("_TYPER_COMPLETE_ARGS", line)
        monkeypatch.setenv("_TYPER_COMPLETE_FISH_ACTION", action)
        with pytest.raises(SystemExit) as ended:
            main([])
        out, err = capsys.readouterr()
        assert err == "", f"{shell}: {line}: {out}{err}"
        return out, ended.value.code

    def ask(shell: str, *words: str) -> list[str]:
        out, code = said(shell, words)
        assert code == 0, f"{shell}: {words}: {out}"
        if shell == "zsh":
            return [one.replace(r"\\:", ":") for one in re.findall(r'^(?:_arguments .*\(\()?"((?:[^"]|"")*)"', out, re.M)]
        return [one.partition("\t")[0] for one in out.splitlines() if one]

    ask.said = said  # type: ignore[attr-defined]
    return ask


def calls_of_shells() -> list[Any]:
    """Each command in each shell; the short tests have each command in one of them, and the options of `read` in all."""
    return [
        pytest.param(name, shell, id=f"{name}-{shell}", marks=() if name == READ or (at + place) % len(SHELLS) == 0 else pytest.mark.sweep)
        for at, name in enumerate((READ, *COMMANDS))
        for place, shell in enumerate(SHELLS)
    ]


@pytest.mark.parametrize(("name", "shell"), calls_of_shells())
def test_every_option_of_every_command(name: str, shell: str, complete: Any) -> None:
    start = ["streamdump", *([] if name == READ else [name])]
    for parameter in COMMAND.commands[name].params:
        if parameter.param_type_name != "option":
            continue
        for option in parameter.opts:
            assert option in complete(shell, *start, option)
            # A value, or what stands behind a flag
            offered = complete(shell, *start, option, "")
            if parameter._custom_shell_complete is not None and not parameter.is_flag:
                assert offered, option
                # A partial one
                assert offered[0] in complete(shell, *start, option, offered[0][:1])


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


OFFERED = {
    "bash": """ask() { COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _streamdump_completion streamdump; printf '%s\\n' "${COMPREPLY[@]}"; }""",
    # As in zsh's own `_arguments`, which has no terminal here
    "zsh": r"""_files() { }; compdef() { }
        _arguments() { local ws action=${1#\*: :}; eval ws\=\( "${action[3,-3]}" \); print -rl -- "${ws[@]}" }
        ask() { words=("$@"); CURRENT=$#; _streamdump_completion }""",
    "fish": """function ask; complete --do-complete "$(string join -- ' ' $argv)"; end""",
}
"""What each shell runs to complete the last of some words, behind or in front of the script that `--install-completion` writes."""

REPLAY = """#!/bin/sh
cd '{folder}' || exit
cat "out/$_TYPER_COMPLETE_FISH_ACTION$_TYPER_COMPLETE_ARGS$COMP_WORDS" &&
exit "$(cat "code/$_TYPER_COMPLETE_FISH_ACTION$_TYPER_COMPLETE_ARGS$COMP_WORDS")"
"""


def lines() -> list[list[str]]:
    """Every option of every command, by itself and with a value to come."""
    found = []
    for name in (READ, *COMMANDS):
        start = ["streamdump", *([] if name == READ else [name])]
        options = [one for parameter in COMMAND.commands[name].params if parameter.param_type_name == "option" for one in parameter.opts]
        found += [line for option in options for line in ([*start, option], [*start, option, ""])]
    return found


@pytest.mark.witness
@pytest.mark.parametrize("shell", SHELLS)
def test_every_option_in_the_shells_themselves(shell: str, tmp_path: Path, complete: Any) -> None:
    """One process asks for all of them; `streamdump` says there what it says here, as starting it each time would take minutes."""
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    for name in ("out", "code", "empty"):
        (tmp_path / name).mkdir()
    program = tmp_path / "streamdump"
    program.write_text(REPLAY.format(folder=tmp_path))
    program.chmod(0o755)
    asked = lines()
    for words in asked:
        for action in ("get-args", "is-args") if shell == "fish" else ("",):
            said, code = complete.said(shell, words, action)
            name = action + ("\n" if shell == "bash" else " ").join(words)
            (tmp_path / "out" / name).write_text(said)
            (tmp_path / "code" / name).write_text(str(code))
    script = get_completion_script(prog_name="streamdump", complete_var=VARIABLE, shell=shell)
    steps = "\n".join(f"echo @\nask {' '.join(map(quote, words))}" for words in asked)
    asking = ("COMP_WORDS", "COMP_CWORD", "_TYPER_COMPLETE_ARGS", "_TYPER_COMPLETE_FISH_ACTION", VARIABLE)
    inherited = {name: value for name, value in os.environ.items() if name not in asking}
    environment = {**inherited, "PATH": f"{tmp_path}:{os.environ['PATH']}", "HOME": str(tmp_path)}
    command = f"{OFFERED[shell]}\n{script}\n{steps}\n"
    done = subprocess.run([shell], input=command, capture_output=True, text=True, cwd=tmp_path / "empty", env=environment, check=False)
    assert done.stderr == ""
    blocks = done.stdout.split("@\n")[1:]
    assert len(blocks) == len(asked)
    for words, block in zip(asked, blocks, strict=True):
        offered = [re.split(r"\t|(?<!\\):", one)[0].replace("\\:", ":") for one in block.splitlines() if one]
        expected = complete(shell, *words)
        assert (sorted(offered), sorted(set(offered))) == (sorted(expected), sorted(expected)), words


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
        needed = "compdef() {}\n" if shell == "zsh" else ""
        done = subprocess.run(
            [shell, "-c", f"{needed}{script}\n{asked}"], capture_output=True, text=True, timeout=PATIENCE, env=environment, check=False
        )
        assert done.stderr == ""
        assert expected == set(re.findall(r"\w+", done.stdout.replace("_arguments '*: :", ""))), done.stdout


def test_what_typer_prints_and_writes_itself_ends_as_all_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "home").touch()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setattr("typer._completion_shared._get_shell_name", lambda: "fish", raising=False)
    monkeypatch.setattr("typer.completion._get_shell_name", lambda: "fish")
    assert main(["--show-completion"]) == ExitCode.DONE
    assert "complete --command streamdump" in capsys.readouterr().out
    with Path("/dev/full").open("w") as full, monkeypatch.context() as patch:
        patch.setattr("sys.stdout", full)
        assert main(["--show-completion"]) == ExitCode.USAGE
    assert main(["--install-completion", "zsh"]) == ExitCode.USAGE
    assert main(["--install-completion"]) == ExitCode.USAGE
    err = capsys.readouterr().err.splitlines()
    assert err[:2] == [
        "streamdump: standard output cannot be written: No space left on device",
        "streamdump: --install-completion takes no zsh: it is for the shell that it is called from",
    ]
    assert err[2].startswith(f"streamdump: --install-completion: {tmp_path}/home")
    monkeypatch.setattr("typer.completion._get_shell_name", lambda: "sh")
    assert main(["--show-completion"]) == ExitCode.USAGE
