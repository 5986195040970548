"""Files that are written completely or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

NO_FOLLOW = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
"""Flags for `os.open`: do not follow links, and do not convert line ends (Windows)."""


@contextmanager
def in_place_of(target: Path, mode: int = 0o600, as_is: bool = False) -> Iterator[BinaryIO]:
    """Open a new file that replaces `target` once it is complete; an exception leaves the old file.

    Until then it has no name, if the file system supports that, so that even a kill leaves nothing; otherwise one beside `target`.
    `as_is`: write directly to FIFOs, devices and links of the shell or the system.
    """
    if as_is and (is_of_system(target) or (target.exists() and not target.is_symlink() and not target.is_file())):
        with target.open("wb") as file:
            yield file
        return
    name = target.with_name(f".streamdump-{os.urandom(8).hex()}")
    try:
        number, named = _opened(name, mode)
        with os.fdopen(number, "r+b") as file:
            yield file
            file.flush()
            os.fsync(number)
            if not named:
                # With a directory descriptor, link() follows the link in /proc
                os.link(f"/proc/self/fd/{number}", name, src_dir_fd=number)
        name.replace(target)
    except BaseException:
        name.unlink(missing_ok=True)
        raise


def _opened(name: Path, mode: int) -> tuple[int, bool]:
    """Return the descriptor of a new file, and whether it has a name."""
    try:
        number = os.open(name.parent, getattr(os, "O_TMPFILE", 0) | os.O_RDWR, mode)
    except OSError:
        # A problem with the folder is reported by the open below
        number = -1
    if number >= 0 and not Path(f"/proc/self/fd/{number}").is_symlink():
        os.close(number)
        number = -1
    return (number, False) if number >= 0 else (os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL | NO_FOLLOW, mode), True)


def is_of_system(path: Path) -> bool:
    """Return whether a link is the system's: /dev/stdout, or the shell's `>(...)`."""
    return os.path.realpath(path.parent) in ("/dev", f"/proc/{os.getpid()}/fd")
