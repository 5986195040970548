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
import shutil
import uuid
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, cast
from urllib.parse import quote, unquote_to_bytes, urlsplit

from pyarrow.fs import FileSelector, FileSystem, FileType

from ..capture.blocks import explain
from ..capture.files import CaptureReader, open_capture
from ..errors import CaptureError, UsageError

STORES = {"s3": "s3", "s3a": "s3", "gs": "gs", "abfs": "abfs", "abfss": "abfss"}
"""Schemes of object stores, and what pyarrow calls them."""

URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://|(file):/")

AHEAD = 4 << 20
"""Bytes of an object that are asked for at once: each request takes its time."""


class Status(NamedTuple):
    """What is known of a file without reading it."""

    size: int
    modified_ns: int


def normal(source: str) -> str:
    """The name of a file, folder or pattern as the user wrote it; raises `UsageError` for a URL that is not known."""
    found = URL.match(source)
    if found is None:
        # Whoever reads it may work in another folder.
        return _name_of(os.fspath(Path(source).absolute()))
    scheme = (found[1] or found[2]).lower()
    if scheme == "file":
        host, path = re.match(r"file:(?://([^/]*))?(.*)", source, re.IGNORECASE | re.DOTALL).groups()  # type: ignore[union-attr]
        if host not in (None, "", "localhost"):
            raise UsageError(f"{source}: is on another host")
        return _name_of(os.fspath(Path(os.fsdecode(unquote_to_bytes(path))).absolute()))
    if scheme not in STORES:
        known = ", ".join(f"{one}://" for one in STORES)
        raise UsageError(f"{source}: {scheme}:// is not known; known are {known} and file://")
    rest = source[found.end() :]
    if ":" in rest.partition("@")[0] and "@" in rest.partition("/")[0]:
        raise UsageError(f"{scheme}://: credentials do not belong in a URL, which is written to tables; the environment has them")
    if not rest.partition("/")[0]:
        raise UsageError(f"{source}: names no bucket")
    return f"{STORES[scheme]}://{rest}"


def _name_of(path: str) -> str:
    try:
        path.encode()
    except UnicodeEncodeError:
        return f"file://{quote(os.fsencode(path))}"
    return path


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
    parts = urlsplit(name, allow_fragments=False)
    root = f"{parts.scheme}://{parts.netloc}"
    bucket = parts.netloc.partition("@")[0]
    try:
        return _store(root), f"{bucket}/{name[len(root) :].strip('/')}".rstrip("/")
    except (OSError, ValueError) as error:
        raise UsageError(f"{root}: {why(error)}") from error


def why(error: BaseException) -> str:
    """What an object store says, without what only its makers want to know."""
    if isinstance(error, OSError) and error.strerror and error.errno:
        return explain(OSError(error.errno, os.strerror(error.errno)))
    text = str(error).partition(" (Request ID")[0].partition(" Detail:")[0]
    return text.rpartition("operation: ")[2].strip().rstrip(".").lower() or type(error).__name__


def status(name: str) -> Status | None:
    """What is known of a file; None where there is none."""
    path = local(name)
    if path is not None:
        try:
            found = path.stat()
        except OSError:
            return None
        return Status(found.st_size, found.st_mtime_ns) if path.is_file() else None
    store, at = remote(name)
    try:
        (info,) = store.get_file_info([at])
    except OSError as error:
        raise CaptureError(why(error), name) from error
    return Status(info.size, info.mtime_ns or 0) if info.type == FileType.File else None


def open_input(name: str) -> BinaryIO:
    """A file to read from any position; raises `CaptureError` where it cannot be opened."""
    path = local(name)
    try:
        if path is not None:
            return cast(BinaryIO, io.FileIO(path, "r"))
        store, at = remote(name)
        return io.BufferedReader(store.open_input_file(at), AHEAD)
    except OSError as error:
        folder = path is not None and path.is_dir()
        raise CaptureError(
            "no such file" if isinstance(error, FileNotFoundError) else "is a directory" if folder else why(error), name
        ) from error


def open_packets(name: str) -> CaptureReader:
    """The packets of a capture; raises `CaptureError`."""
    path = local(name)
    return open_capture(path if path is not None else open_input(name), name=name)


def pieces(name: str, start: int, size: int) -> bytes:
    """These bytes of a file, as far as they are there."""
    with open_input(name) as stream:
        stream.seek(start)
        return exactly(stream, size)


def exactly(stream: BinaryIO, size: int) -> bytes:
    """So many bytes, fewer only at the end."""
    parts = []
    while size and (data := stream.read(size)):
        parts.append(data)
        size -= len(data)
    return b"".join(parts)


HIDDEN = (".", "_")
"""What begins so is no capture: what others have not finished, deleted, or keep for themselves."""


def walk(name: str) -> Iterator[str]:
    """The files of a folder and those below it, as far as no part of their path in it is hidden, in no order."""
    path = local(name)
    if path is None:
        yield from listed(name)
        return
    for folder, folders, files in os.walk(path):
        folders[:] = [one for one in folders if not one.startswith(HIDDEN)]
        for file in files:
            one = Path(folder, file)
            if not file.startswith(HIDDEN) and one.is_file():
                yield _name_of(os.fspath(one))


def listed(name: str) -> dict[str, Status]:
    """The files of a folder of an object store, as `walk` has them."""
    store, at = remote(name)
    root = name.rstrip("/")
    try:
        infos = store.get_file_info(FileSelector(at, allow_not_found=True, recursive=True))
    except OSError as error:
        raise CaptureError(why(error), name) from error
    found = {}
    for info in infos:
        inside = info.path[len(at) :].strip("/")
        if info.type == FileType.File and not any(part.startswith(HIDDEN) for part in inside.split("/")):
            found[f"{root}/{inside}"] = Status(info.size, info.mtime_ns or 0)
    return found


class Disk:
    """A folder, or file, of a disk that tables are written to. `at(...)` is one below it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.name = _name_of(os.fspath(path))

    def __str__(self) -> str:
        return self.name

    def at(self, *parts: str) -> Disk:
        """A folder or file below this one."""
        return Disk(self.path.joinpath(*parts))

    def names(self) -> list[str]:
        """Of all that is in it, none if it is not there."""
        try:
            return sorted(one.name for one in self.path.iterdir())
        except FileNotFoundError:
            return []

    def exists(self) -> bool:
        """Whether there is a folder, or a file, of this name."""
        return self.path.exists()

    def make(self, mode: int = 0o777) -> None:
        """Make the folder; it may be there."""
        self.path.mkdir(mode=mode, parents=True, exist_ok=True)

    def read(self) -> bytes:
        """The content of a file; FileNotFoundError where there is none."""
        return self.path.read_bytes()

    def write(self, data: bytes, durable: bool = False) -> None:
        """Write a file as a whole: others see all of it or none. `durable`: it is there even if the machine stops now."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        written = self.path.with_name(f".{self.path.name}-{uuid.uuid4().hex}")
        with written.open("wb") as stream:
            stream.write(data)
            stream.flush()
            if durable:
                os.fsync(stream.fileno())
        written.rename(self.path)

    def open(self) -> Any:
        """A file to be written to, in a folder that need not be there yet."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        return self.path.open("wb")

    def size(self) -> int:
        """Of a file."""
        return self.path.stat().st_size

    def move(self, to: Folder) -> None:
        """Give a file another name, in a folder that need not be there yet."""
        assert isinstance(to, Disk)
        to.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.rename(to.path)

    def remove(self) -> None:
        """Remove it with all that is in it, if it is there."""
        if self.path.is_dir():
            shutil.rmtree(self.path, ignore_errors=True)
        else:
            self.path.unlink(missing_ok=True)


class Store:
    """The same in an object store: whatever has a name that begins so."""

    def __init__(self, name: str) -> None:
        self.name = name.rstrip("/")

    def __str__(self) -> str:
        return self.name

    @property
    def _at(self) -> tuple[Any, str]:
        return remote(self.name)

    @property
    def _info(self) -> Any:
        store, at = self._at
        return store.get_file_info([at])[0]

    def at(self, *parts: str) -> Store:
        """A folder or file below this one."""
        return Store("/".join((self.name, *parts)))

    def names(self) -> list[str]:
        """Of all that is in it, none if it is not there."""
        store, at = self._at
        return sorted(info.base_name for info in store.get_file_info(FileSelector(at, allow_not_found=True)))

    def exists(self) -> bool:
        """Whether there is a folder, or a file, of this name."""
        return bool(self._info.type != FileType.NotFound)

    def make(self, mode: int = 0o777) -> None:
        """Nothing: what is written to it makes it."""

    def read(self) -> bytes:
        """The content of a file; FileNotFoundError where there is none."""
        store, at = self._at
        with store.open_input_file(at) as stream:
            return bytes(stream.read())

    def write(self, data: bytes, durable: bool = False) -> None:
        """Write a file as a whole: others see all of it or none. `durable`: it is there even if the machine stops now."""
        stream = self.open()
        stream.write(data)
        # Closed only where all was written: that makes it an object.
        stream.close()

    def open(self) -> Any:
        """A file to be written to, in a folder that need not be there yet."""
        store, at = self._at
        return store.open_output_stream(at, compression=None)

    def size(self) -> int:
        """Of a file."""
        return int(self._info.size)

    def move(self, to: Folder) -> None:
        """Give a file another name, in a folder that need not be there yet."""
        store, at = self._at
        store.move(at, remote(to.name)[1])

    def remove(self) -> None:
        """Remove it with all that is in it, if it is there."""
        store, at = self._at
        kind = self._info.type
        if kind == FileType.File:
            store.delete_file(at)
        elif kind == FileType.Directory:
            store.delete_dir(at)


Folder = Disk | Store


def folder(name: str | Path) -> Folder:
    """The folder of a name, as the user wrote it."""
    found = normal(os.fspath(name))
    path = local(found)
    return Disk(path) if path is not None else Store(found)
