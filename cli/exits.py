"""What the exit code says, and the signals that ask for an end."""

import signal
from enum import IntEnum

from streamdump.errors import InterfaceError, InternalError, MissingCodec, StreamdumpError, UsageError

ENDING = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name))
"""The signals that end a process which does not heed them; Windows knows no SIGHUP."""


class ExitCode(IntEnum):
    """The exit codes, which mean the same for every command."""

    DONE = 0
    FOUND = 1
    """`check` or `diagnose --fail-on` found something."""
    USAGE = 2
    """A wrong call, something missing to carry it out, or an output that cannot be written or would have secrets."""
    UNREADABLE = 3
    """An input that is not a capture, empty, damaged or cut off; everything complete was read."""
    NO_INTERFACE = 4
    """No permission, no such interface, or it went away."""
    INTERNAL = 5
    """A bug of ours cost part of the output."""
    INTERRUPTED = 130
    """Interrupted before any packet, or before what `-w` of captures or a pipeline writes was there or a query was answered."""


CODES = {
    InterfaceError: ExitCode.NO_INTERFACE,
    MissingCodec: ExitCode.USAGE,
    UsageError: ExitCode.USAGE,
    InternalError: ExitCode.INTERNAL,
    StreamdumpError: ExitCode.UNREADABLE,
}
"""By the first of these kinds that an error is of."""


def code_of(error: StreamdumpError) -> ExitCode:
    """Return the exit code of a run that ends with an error."""
    return next(code for kind, code in CODES.items() if isinstance(error, kind))
