"""What people like on their terminals: `~/.config/streamdump/config.toml`, which no command reads that writes for machines."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from streamdump.errors import UsageError

from .options import BETWEEN, CLOCKS, WHEN, one_of

LEAVE_OUT = "--no-config"
SIZE = 128 << 10
"""Bytes that the file may have."""

EXACT = ("check", "pipeline", "scrub")
"""Commands whose results must not depend on who calls them."""

LINELESS = ("browse", "diagnose", "entries", "latency")
"""Commands that show no line a message, between which there would be a time."""

PARAMETERS = {"color": ("colour", WHEN), "time": ("clock", (*CLOCKS, *BETWEEN))}
"""Settings that are the default of an option: its parameter, and what it may be; `columns` is as COLUMNS."""


def strip_flag(arguments: list[str], flag: str) -> bool:
    """Strip a flag that every command accepts from the arguments; return whether it was there."""
    there = flag in arguments
    arguments[:] = [one for one in arguments if one != flag]
    return there


def preferences(arguments: list[str]) -> dict[str, str]:
    """Return the defaults of options, and strip `--no-config` from the arguments; raise `UsageError` for an unknown setting."""
    asked = not strip_flag(arguments, LEAVE_OUT)
    path = Path(os.environ.get("XDG_CONFIG_HOME") or "~/.config").expanduser() / "streamdump" / "config.toml"
    if not asked or not sys.stdout.isatty() or (arguments and arguments[0] in EXACT):
        return {}
    from streamdump.golden.untrusted_files import Unfit, read_toml

    try:
        settings = read_toml(path, SIZE)
    except FileNotFoundError:
        return {}
    except Unfit as error:
        if isinstance(error.__cause__, OSError) or not path.is_file():
            return {}
        raise UsageError(f"{path}: {error}; {LEAVE_OUT} ignores the file") from None
    for name, value in settings.items():
        kind = {"columns": int, **dict.fromkeys(PARAMETERS, str)}.get(name)
        if kind is None or type(value) is not kind or (isinstance(value, int) and value < 1):
            known = ", ".join((*PARAMETERS, "columns"))
            what = (
                f"not a setting; the settings are {known}"
                if kind is None
                else f"must be {'a number, 1 or greater' if kind is int else 'text'}"
            )
            raise UsageError(f"{path}: {name}: {what}; {LEAVE_OUT} ignores the file")
        if name in PARAMETERS:
            one_of(f"{path}: {name} =", str(value), PARAMETERS[name][1])
    if arguments and arguments[0] in LINELESS and settings.get("time") in BETWEEN:
        del settings["time"]
    if "columns" in settings:
        os.environ.setdefault("COLUMNS", str(settings["columns"]))
    return {PARAMETERS[name][0]: value for name, value in settings.items() if name in PARAMETERS}
