"""streamdump's library: reads captures of message-streaming protocols, message by message.

for record in streamdump.read("capture.pcap"):
    ...
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, BinaryIO, Literal, overload

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from .filter import Filter
    from .model import Entry, Options, Record

__all__ = ["__version__", "read"]


def __getattr__(name: str) -> Any:
    """Look `__version__` up when it is used, as that is slow and rare."""
    if name != "__version__":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib.metadata import version

    return version("streamdump")


@overload
def read(*sources: str | Path | BinaryIO, where: str | None = ..., entries: Literal[True], **options: Any) -> Iterator[Entry]: ...
@overload
def read(*sources: str | Path | BinaryIO, where: str | None = ..., entries: Literal[False] = ..., **options: Any) -> Iterator[Record]: ...
def read(*sources: str | Path | BinaryIO, where: str | None = None, entries: bool = False, **options: Any) -> Iterator[Any]:
    """The records of a capture (of several, merged by time), in the order of the command line's output; or its `entries`, which are the
    user messages that its messages carry.

    A source is a path or a binary file object; `where` is a filter as for `-Y` (`"name == Open and latency > 20ms"`); `options` are
    the members of `streamdump.model.Options` (`show_secrets=True`, `bytes_as="raw"`, `exchanges=True`, `keylog=("keys.log",)`...).

    Raises `streamdump.errors.UsageError` and `FilterError` at once, `CaptureError` after the last complete packet of a damaged file,
    and `InternalError` at the end where a bug of ours cost the rest of a conversation.
    """
    from dataclasses import replace

    from .model import Options
    from .protocols import check_options
    from .tls.keys import check

    check_options(options)
    check(options.get("keylog", ()))
    if entries:
        return _entries(sources, Options(**{**options, "entries": True, "bytes_as": "raw"}), options.get("bytes_as", "hex"), where)
    chosen = Options(**options)
    if where is None:
        return _records(sources, chosen, None)
    from .filter import compile_filter

    asked = compile_filter(where, chosen)
    chosen = replace(chosen, wanted=asked.wanted, detail=chosen.detail or asked.reads_raw)
    return (record for record in _records(sources, chosen, asked.begin) if asked.keeps(record))


def _records(sources: tuple[str | Path | BinaryIO, ...], options: Options, begin: Callable[[int], None] | None) -> Iterator[Record]:
    from .capture.files import open_capture
    from .inspector import Inspector

    inspector = Inspector([open_capture(source) for source in sources], options, finite=True, keeps_rows=False)
    inspector.begins += [] if begin is None else [begin]
    yield from inspector.records()
    inspector.raise_errors()


def _entries(sources: tuple[str | Path | BinaryIO, ...], options: Options, bytes_as: Any, where: str | None) -> Iterator[Entry]:
    from .filter import compile_filter

    return _kept(sources, options, bytes_as, None if where is None else compile_filter(where, options, entries=True))


def _kept(sources: tuple[str | Path | BinaryIO, ...], options: Options, bytes_as: Any, asked: Filter | None) -> Iterator[Entry]:
    from .capture.files import open_capture
    from .entries import Entries, rendered
    from .inspector import Inspector

    inspector = Inspector([open_capture(source) for source in sources], options, finite=True, keeps_rows=False)
    inspector.begins += [] if asked is None else [asked.begin]
    found = Entries(inspector.run.answers)

    def each() -> Iterator[Entry]:
        for batch in inspector.batches():
            yield from found.add(batch)
        yield from found.finish()

    for entry in each():
        if asked is None or asked.keeps(entry):
            yield rendered(entry, bytes_as)
    inspector.raise_errors()
