"""Live capture as root: what only root may do is done once all is open, and captured bytes are read as another user."""

from __future__ import annotations

import os
import pwd
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from streamdump.capture.write import PcapngWriter


CODE = (Path(__file__).parent, Path(os.__file__).parent)
"""Where code is loaded from."""

APART = ("streamdump.__main__", "streamdump.cli.__main__", "streamdump.golden.plugin", "streamdump.spark")
"""What has no part in live capture."""

LATE = (
    "cryptography.exceptions",
    "cryptography.hazmat.decrepit.ciphers.algorithms",
    "cryptography.hazmat.primitives.ciphers.algorithms",
    "hashlib",
    "hmac",
    "re2",
)
"""What functions import."""


class User(NamedTuple):
    """Who a process may become."""

    uid: int
    gid: int
    name: str
    groups: list[int]


def _user(uid: int, gid: int) -> User:
    try:
        name = pwd.getpwuid(uid).pw_name
    except KeyError:
        return User(uid, gid, f"user {uid}", [gid])
    return User(uid, gid, name, os.getgrouplist(name, gid))


def drop_root(environment: Mapping[str, str], writer: PcapngWriter | None, ring: bool, page: Path | None) -> str:
    """Become the user of sudo, or the owner of the folder of `-w`; return a line that reports it.

    Files of a `ring` and the `page` are created later: if that user could not, keep running as root.
    """
    written = None if writer is None else writer.path
    folders = [one.absolute().parent for one in (written if ring else None, page) if one is not None]
    reason = "neither sudo nor the folder of -w belongs to another user"
    for user in _others(environment, written):
        try:
            refused = _refused(user, os.W_OK | os.X_OK, folders)
            if refused is None:
                if _refused(user, os.R_OK | os.X_OK, CODE) is not None:
                    _load()
                if writer is not None:
                    writer.give(user.uid, user.gid)
                os.setgroups(user.groups)
                os.setresgid(user.gid, user.gid, user.gid)
                os.setresuid(user.uid, user.uid, user.uid)
                return f"dropped root privileges: now running as {user.name}"
            reason = f"{user.name} has no access to {refused}"
        except OSError:
            reason = f"the system does not allow switching to {user.name}"
    return f"still running as root: {reason}"


def _others(environment: Mapping[str, str], written: Path | None) -> Iterator[User]:
    uid, gid = (environment.get(name, "") for name in ("SUDO_UID", "SUDO_GID"))
    if uid.isdecimal() and gid.isdecimal() and int(uid):
        yield _user(int(uid), int(gid))
    if written is not None:
        folder = written.absolute().parent.stat()
        if folder.st_uid:
            yield _user(folder.st_uid, folder.st_gid)


def _refused(user: User, how: int, folders: Iterable[Path]) -> Path | None:
    """The first folder that a user may not use so."""
    with _acting_as(user):
        return next((folder for folder in folders if not os.access(folder, how, effective_ids=True)), None)


def _load() -> None:
    """Load modules that live capture may need, which the new user may be unable to read."""
    from streamdump.render.html.page import load

    for top in ("rich", "streamdump"):
        for module in walk_packages(import_module(top).__path__, f"{top}."):
            if not module.name.startswith(APART):
                with suppress(ImportError):
                    import_module(module.name)
    for name in LATE:
        import_module(name)
    load()


@contextmanager
def _acting_as(user: User) -> Iterator[None]:
    groups, gid, uid = os.getgroups(), os.getegid(), os.geteuid()
    try:
        os.setgroups(user.groups)
        os.setegid(user.gid)
        os.seteuid(user.uid)
        yield
    finally:
        os.seteuid(uid)
        os.setegid(gid)
        os.setgroups(groups)
