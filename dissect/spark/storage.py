"""Where captures and tables are: files and folders of a disk, or of an object store.

A *name* is text that can be printed, kept in JSON and given to streamdump again: an absolute path; a URL; or, for a path that is not
UTF-8, its `file:` URL. Object stores are reached through `pyarrow.fs`, with the credentials, region and endpoint of the environment
(`AWS_ACCESS_KEY_ID`, `AWS_ENDPOINT_URL` and so on), which all that read and write have to have: none are in a name, since names are
written to tables.
"""

from __future__ import annotations

import io
import os
import re
import stat
import uuid
from contextlib import suppress
from functools import cache, cached_property
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple
from urllib.parse import quote, unquote_to_bytes

from pyarrow.fs import FileSelector, FileSystem, FileType, LocalFileSystem

from ..capture.blocks import explain
from ..capture.files import CaptureReader, open_capture
from ..errors import CaptureError, UsageError, refuse

STORES = {"s3": "s3", "s3a": "s3", "gs": "gs", "abfs": "abfs", "abfss": "abfss"}
"""Schemes of object stores, and what pyarrow calls them."""

URL = re.compile(r"(?:([a-z][a-z0-9+.-]*):(?=//)|(file):(?=/))(?://([^/]*))?(.*)", re.IGNORECASE | re.DOTALL)
"""Scheme, host and path of a URL; `:` alone may be part of a name."""

NOT_UTF8 = re.compile("[\udc80-\udcff]")
"""What Python reads bytes of a name as that are not UTF-8."""

_DISK = LocalFileSystem()

AHEAD = 4 << 20
"""Bytes of an object for each request."""


class Status(NamedTuple):
    """The state of a file, without reading it."""

    size: int
    modified_ns: int
    changed_ns: int
    """When its content, owner or mode were changed."""


def normal(source: str) -> str:
    """The name of a file, folder or pattern as the user wrote it; raises `UsageError` for a URL that is not known."""
    found = URL.match(source)
    if found is None:
        return _name_of(source)
    scheme, host, path = (found[1] or found[2]).lower(), found[3] or "", found[4]
    if scheme == "file" and host in ("", "localhost"):
        return _name_of(os.fsdecode(unquote_to_bytes(path)))
    refuse(
        (scheme not in STORES, f"{source}: is not known; known are {'://, '.join(STORES)}://, and file:/// of this machine"),
        (
            ":" in host.partition("@")[0] and "@" in host,
            f"{scheme}://: credentials do not belong in a URL, which is written to tables; the environment has them",
        ),
        (not host, f"{source}: names no bucket"),
    )
    return f"{STORES[scheme]}://{host}{path}"


def _name_of(path: str) -> str:
    """The name of a path, absolute since its reader may work in another folder."""
    path = os.fspath(Path(path).absolute())
    return f"file://{quote(os.fsencode(path))}" if NOT_UTF8.search(path) else path


def local(name: str) -> Path | None:
    """The path that a name stands for, None where it is in an object store."""
    if name.startswith("file://"):
        return Path(os.fsdecode(unquote_to_bytes(name[len("file://") :])))
    return None if URL.match(name) else Path(name)


def base(name: str) -> str:
    """The last part of a name."""
    return name.rstrip("/").rpartition("/")[2]


@cache
def _store(root: str) -> Any:
    """The file system of a bucket."""
    # Small objects are one request then instead of three.
    return FileSystem.from_uri(f"{root}?allow_delayed_open=true" if root.startswith("s3:") else root)[0]


def remote(name: str) -> tuple[Any, str]:
    """The file system of an object store, and the path in it."""
    scheme, _, rest = name.partition("://")
    host, _, path = rest.partition("/")
    root = f"{scheme}://{host}"
    try:
        return _store(root), f"{host.partition('@')[0]}/{path.strip('/')}".rstrip("/")
    except (OSError, ValueError) as error:
        raise UsageError(f"{root}: {why(error)}") from error


def why(error: BaseException) -> str:
    """What an object store says, without what only its makers want to know."""
    if isinstance(error, OSError) and error.strerror and error.errno:
        return explain(OSError(error.errno, os.strerror(error.errno)))
    text = str(error).partition(" (Request ID")[0].partition(" Detail:")[0]
    return text.rpartition("operation: ")[2].strip().rstrip(".").lower() or type(error).__name__


def status(name: str) -> Status | None:
    """The state of a file; None if there is none."""
    path = local(name)
    if path is None:
        return _objects(name, recursive=False).get(name)
    with suppress(OSError):
        found = path.stat()
        if stat.S_ISREG(found.st_mode):
            return Status(found.st_size, found.st_mtime_ns, found.st_ctime_ns)
    return None


def open_input(name: str) -> BinaryIO:
    """A file to read from any position; raises `CaptureError` where it cannot be opened."""
    path = local(name)
    if path is not None and path.exists() and not path.is_file():
        raise CaptureError("is not a file", name)
    try:
        if path is not None:
            return path.open("rb")
        store, at = remote(name)
        return io.BufferedReader(store.open_input_file(at), AHEAD)
    except OSError as error:
        raise CaptureError("no such file" if isinstance(error, FileNotFoundError) else why(error), name) from error


def open_packets(name: str) -> CaptureReader:
    """The packets of a capture; raises `CaptureError`."""
    path = local(name)
    return open_capture(path if path is not None else open_input(name), name=name)


def pieces(name: str, start: int, size: int) -> bytes:
    """These bytes of a file, as far as they are there."""
    with open_input(name) as stream:
        stream.seek(start)
        return stream.read(size)


HIDDEN = (".", "_")
"""What begins so is no capture: what others have not finished, deleted, or keep for themselves."""


def listed(name: str) -> dict[str, Status]:
    """The files of a folder and those below it, by name in this order, as far as no part of their path in it is hidden. A link to one
    of these is a second name of it, and left out."""
    top = local(name)
    if top is None:
        return dict(sorted(_objects(name, recursive=True).items()))
    paths: list[Path] = []
    for folder, folders, files in os.walk(top):
        folders[:] = [one for one in folders if not one.startswith(HIDDEN)]
        paths += [Path(folder, file) for file in files if not file.startswith(HIDDEN)]
    links = {path for path in paths if path.is_symlink()}
    # A loop of links has a real path, too, at which nothing is
    there = {os.path.realpath(path) for path in paths if path not in links} if links else set()
    names = [_name_of(str(path)) for path in paths if path not in links or os.path.realpath(path) not in there]
    # First all names, then all sizes: who starts a file has closed the one before
    states = {one: status(one) for one in sorted(names)}
    return {one: state for one, state in states.items() if state is not None}


def _objects(name: str, recursive: bool) -> dict[str, Status]:
    """The object of a store, or those in a folder there that are not hidden (`recursive`)."""
    store, at = remote(name)
    try:
        infos = store.get_file_info(FileSelector(at, allow_not_found=True, recursive=True) if recursive else [at])
    except OSError as error:
        raise CaptureError(why(error), name) from error
    found = {}
    for info in infos:
        below = info.path[len(at) :]
        if info.type == FileType.File and not any(f"/{first}" in below for first in HIDDEN):
            found[name.rstrip("/") + below] = Status(info.size, info.mtime_ns or 0, info.mtime_ns or 0)
    return found


class Folder:
    """A folder, or file, that tables are written to, on a disk or in an object store. `at(...)` is one below it."""

    def __init__(self, name: str) -> None:
        self.name = name.rstrip("/") or "/"
        self.path = local(self.name)
        """Where it is on a disk, None in an object store."""

    def __str__(self) -> str:
        return self.name

    # A store may be asked for where a bucket is, so not before it is needed
    @cached_property
    def _store(self) -> Any:
        return remote(self.name)[0] if self.path is None else _DISK

    @cached_property
    def _at(self) -> str:
        return remote(self.name)[1] if self.path is None else os.fspath(self.path)

    @property
    def _type(self) -> Any:
        return self._store.get_file_info([self._at])[0].type

    def at(self, *parts: str) -> Folder:
        """A folder or file below this one."""
        return Folder("/".join((self.name, *parts)))

    def above(self) -> Folder:
        """The folder that this one is in."""
        return Folder(self.name.rpartition("/")[0])

    def names(self) -> list[str]:
        """Of all that is in it, none if it is not there."""
        try:
            return sorted(info.base_name for info in self._store.get_file_info(FileSelector(self._at, allow_not_found=True)))
        except (UnicodeDecodeError, NotADirectoryError) as error:
            reason = "is not a folder" if isinstance(error, NotADirectoryError) else "the name of a file in it is not UTF-8"
            raise UsageError(f"{self.name}: {reason}; choose another folder") from error

    def exists(self) -> bool:
        """Whether there is a folder, or a file, of this name."""
        return bool(self._type != FileType.NotFound)

    def make(self) -> None:
        """Make the folder; it may be there. In a store, the first file in it does."""
        if self.path is not None:
            self._store.create_dir(self._at, recursive=True)

    def read(self) -> bytes:
        """The content of a file; FileNotFoundError where there is none."""
        with self._store.open_input_file(self._at) as stream:
            return bytes(stream.read())

    def write(self, data: bytes) -> None:
        """Write a file: others see all of it or nothing, and it is there even if the machine stops then."""
        # An object is one only once it is closed
        made = self if self.path is None else self.above().at(f".{base(self.name)}-{uuid.uuid4().hex}")
        stream = made.open()
        stream.write(data)
        stream.close()
        if self.path is not None:
            with Path(made.name).open("rb") as written:
                os.fsync(written.fileno())
            made.move(self)

    def open(self) -> Any:
        """A file to be written to, in a folder that need not be there yet."""
        self.above().make()
        return self._store.open_output_stream(self._at, compression=None)

    def move(self, to: Folder) -> None:
        """Give a file or folder another name, in a folder that need not be there yet."""
        to.above().make()
        self._store.move(self._at, to._at)

    def remove(self) -> None:
        """Remove it with all that is in it, if it is there; what tasks that were lost write meanwhile stays."""
        with suppress(OSError):
            remove = self._store.delete_dir if self._type == FileType.Directory else self._store.delete_file
            remove(self._at)


def folder(name: str | Path) -> Folder:
    """The folder of a name, as the user wrote it; raises `UsageError` for one on a disk that is not UTF-8."""
    found = normal(os.fspath(name))
    if found.startswith("file:"):
        raise UsageError(f"{name}: tables need a name in UTF-8")
    return Folder(found)
