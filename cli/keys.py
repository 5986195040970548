"""Which key logs a run reads."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from .output import say


def key_logs(given: Sequence[str], live: bool = False) -> tuple[str, ...]:
    """The files of `--keylog`, or without it the one that the environment names; absolute, as others may work in another folder.

    One that is not there is an error, unless it is followed (`live`) or comes from the environment; then standard error reports it.
    """
    from streamdump.tls.keys import check, log_of

    found = []
    for path in given:
        if live and not Path(path).exists():
            say(f"--keylog {path}: does not exist yet; it is read once it appears")
        else:
            check((path,))
        found.append(str(Path(path).absolute()))
    if given:
        return tuple(dict.fromkeys(found))
    named, problem = log_of(os.environ, live)
    if problem is not None:
        say(problem)
    return named
