"""`streamdump wireshark`: the tables as a plugin for Wireshark and tshark."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from streamdump.errors import UsageError

from ..exits import ExitCode
from ..output import say, write_text

NAME = "streamdump.lua"

MARK = ": written by streamdump "
"""What the first line of a plugin has that is ours."""

FOLDER = "Personal Lua Plugins:"


def wireshark(
    install: Annotated[bool, typer.Option("--install", help="install it in Wireshark's plugin folder; asks first")] = False,
    remove: Annotated[bool, typer.Option("--remove", help="remove it from that folder; asks first")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="do not ask")] = False,
) -> int:
    """Write a Lua plugin for Wireshark and tshark: RabbitMQ Streams and Apache Iggy."""
    if install and remove:
        raise UsageError("--install and --remove cannot be combined; choose one")
    if install or remove:
        return _change(_target(), install, yes)
    write_text(_plugin())
    return ExitCode.DONE


def _plugin() -> str:
    import streamdump
    from streamdump.wireshark import plugin

    return plugin(streamdump.__version__)


def _change(target: Path, install: bool, yes: bool) -> int:
    there = os.path.lexists(target)
    if there and not _is_ours(target):
        raise UsageError(f"{target} is not a streamdump plugin and was left unchanged")
    if not install and not there:
        say(f"{target} does not exist")
        return ExitCode.DONE
    if not yes and not _agreed(f"{'Replace' if install and there else 'Write' if install else 'Remove'} {target}?"):
        say("nothing was changed")
        return ExitCode.DONE
    try:
        if install:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(_plugin(), encoding="utf-8")
        else:
            target.unlink()
    except OSError as error:
        raise UsageError(f"{target}: {error.strerror}") from error
    say(f"{target} was {'written; restart Wireshark' if install else 'removed'}")
    return ExitCode.DONE


def _is_ours(target: Path) -> bool:
    """Whether a file was written by us; a link never is, nor what cannot be read."""
    try:
        with target.open("rb") as file:
            return not target.is_symlink() and MARK.encode() in file.readline(1000)
    except OSError:
        return False


def _target() -> Path:
    """Where Wireshark looks for the plugins of this user."""
    import subprocess

    if os.environ.get("SUDO_UID"):
        raise UsageError("under sudo the plugin would belong to another user; run this without sudo")
    try:
        done = subprocess.run(["tshark", "-G", "folders"], capture_output=True, text=True, errors="replace", timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UsageError("tshark, which names the plugin folder, does not run; streamdump wireshark > FILE writes the plugin") from error
    for line in done.stdout.splitlines():
        if line.startswith(FOLDER) and line.removeprefix(FOLDER).strip():
            return Path(line.removeprefix(FOLDER).strip()) / NAME
    raise UsageError("tshark -G folders names no folder for Lua plugins; streamdump wireshark > FILE writes the plugin")


def _agreed(question: str) -> bool:
    """Return whether the user agrees; without a terminal raise `UsageError`."""
    if not sys.stdin.isatty():
        raise UsageError(f"{question} Without a terminal, confirm with --yes")
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")
