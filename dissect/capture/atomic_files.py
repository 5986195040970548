"""Files that are written whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

PLAIN_FILE = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
"""For `os.open`: no link is followed where there are any, and no line end is changed (Windows)."""


@contextmanager
def in_place_of(target: Path, mode: int = 0o600, as_is: bool = False) -> Iterator[BinaryIO]:
    """A new file that takes the place of `target` once all is written; what ends that early leaves the one that was there.

    Until then it has no name where the file system has such files, so that not even a kill leaves anything, else one beside `target`.
    `as_is`: FIFOs and devices are written as they are, and what a shell or the system leads to by a link.
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
                # With a descriptor the link in /proc is followed
                os.link(f"/proc/self/fd/{number}", name, src_dir_fd=number)
        name.replace(target)
    except BaseException:
        name.unlink(missing_ok=True)
        raise


def _opened(name: Path, mode: int) -> tuple[int, bool]:
    """A new file, and whether it has its name already."""
    try:
        number = os.open(name.parent, getattr(os, "O_TMPFILE", 0) | os.O_RDWR, mode)
    except OSError:
        # Whatever is wrong with the folder shows again
        number = -1
    if number >= 0 and not Path(f"/proc/self/fd/{number}").is_symlink():
        os.close(number)
        number = -1
    return (number, False) if number >= 0 else (os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL | PLAIN_FILE, mode), True)


def is_of_system(path: Path) -> bool:
    """Whether a link is the system's: /dev/stdout and what a shell makes of `>(...)`."""
    return os.path.realpath(path.parent) in ("/dev", f"/proc/{os.getpid()}/fd")
