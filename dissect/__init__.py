"""streamdump's library: reads captures of message-streaming protocols, message by message.

for record in streamdump.read("capture.pcap"):
    ...
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, BinaryIO

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from .model import Options, Record

__all__ = ["__version__", "read"]


def __getattr__(name: str) -> Any:
    """Look `__version__` up when it is used, as that is slow and rare."""
    if name != "__version__":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib.metadata import version

    return version("streamdump")


def read(*sources: str | Path | BinaryIO, where: str | None = None, **options: Any) -> Iterator[Record]:
    """The records of a capture (of several, merged by time), in the order of the command line's output.

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
