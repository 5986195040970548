"""Which key logs a run reads."""

from __future__ import annotations

import os
from pathlib import Path

from cli.output import say
from dissect.errors import UsageError

VARIABLE = "SSLKEYLOGFILE"
"""Names the file that clients log their secrets to."""


def key_logs(given: list[str] | None, live: bool = False) -> tuple[str, ...]:
    """The files of `--keylog`, or without it the one that the environment names; absolute, as others may work in another folder.

    One that is not there is an error, unless it is followed (`live`) or nobody asked for it here; that is told.
    """
    from dissect.tls.keys import check

    found = []
    for path in given or ():
        if live and not Path(path).exists():
            say(f"--keylog {path}: is not there yet; it is read as soon as it is")
        else:
            check((path,))
        found.append(str(Path(path).absolute()))
    named = os.environ.get(VARIABLE)
    if given or not named:
        return tuple(dict.fromkeys(found))
    try:
        if not live or Path(named).exists():
            check((named,))
    except UsageError as error:
        say(f"{VARIABLE}: {error}; TLS is not read")
        return ()
    say(f"keys of TLS are taken from {named}, which {VARIABLE} names")
    return (str(Path(named).absolute()),)
