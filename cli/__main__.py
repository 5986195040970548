"""What `streamdump` and `python -m streamdump` start."""

import gc
import sys


def main() -> int:
    """Run `streamdump` with the arguments of this process; the exit code.

    Who interrupts it before it is even loaded sees no traceback either.
    """
    # Modules and records are many objects and few cycles; nothing of it is put back, as this process ends with the run
    gc.set_threshold(200_000, 50, 50)
    try:
        from .app import main as run
    except KeyboardInterrupt:
        return 130
    gc.freeze()
    status = run()
    _leave(status)
    return status


def _leave(status: int) -> None:
    """End the process at once, if nothing is left to do: freeing objects is a quarter of the cost of reading a small capture."""
    import atexit
    import os
    import threading

    if threading.active_count() > 1 or "pyspark" in sys.modules or sys.getprofile() or sys.gettrace():
        return
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except (OSError, ValueError):
        # The normal exit reports it
        return
    atexit._run_exitfuncs()
    os._exit(status)
