"""What a caller chooses, each declared once: its name and type, its default, and how a command line writes and explains it.

`--help` reads this, so nothing here imports msgspec.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal, NamedTuple

__all__ = ["DEFAULTS", "SETTINGS", "Options", "Setting", "members"]

VALUES = 1_000_000
"""The default limit of values in one frame, over all its lists, entries, batches and unpacked parts, and of values without bytes in one
conversation: elements of arrays whose type has no width."""

Group = Literal["shown", "reading", "files", "limits", "totals", "keys", "live"]
"""The group of an option: output, reading, several files, limits per conversation and in total, TLS keys, live capture."""

Written = Literal["size", "count", "seconds", "choice", "rules", "list", "files", "contents", "flag"]
"""The form of a value on the command line: `64M`; `1000`; `0.5`; one of some words; `tcp.port==N,PROTOCOL`; a file or the name of a list;
files, one per use of the option; the same, for their contents; no value."""


class Setting(NamedTuple):
    """One option of a command line."""

    option: str
    written: Written
    help: str
    group: Group
    metavar: str | None = None
    choices: tuple[str, ...] = ()


def _setting(
    default: Any, option: str, written: Written, group: Group, text: str, metavar: str | None = None, choices: tuple[str, ...] = ()
) -> Any:
    metavar = metavar or {"size": "SIZE", "count": "N", "seconds": "SECONDS"}.get(written)
    return field(default=default, metadata={"setting": Setting(option, written, text, group, metavar, choices)})


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What a caller chooses; sizes in bytes, times in ns, all others counts."""

    bytes_as: Literal["hex", "base64", "text", "omit", "raw"] = _setting(
        "hex", "--bytes", "choice", "shown", "format of byte values: hex, base64, text or omit", "FORM", ("hex", "base64", "text", "omit")
    )
    show_secrets: bool = _setting(False, "--show-secrets", "flag", "shown", "show passwords and tokens")
    exchanges: bool = _setting(False, "--exchanges", "flag", "shown", "also a record for each request with its response")
    findings: bool = _setting(False, "--findings", "flag", "shown", "also findings, after the messages that show them (see diagnose)")
    pairs: bool = False
    """The inspector keeps each request with its response for `Inspector.pairs`."""
    entries: bool = False
    """The inspector keeps which response answers which published entry, and messages whose entries exceed a limit have their bytes."""
    detail: bool = False
    """Messages have spans and their bytes."""
    bodies: bool = True
    """Entries and sub-batches are decoded; without it, messages have only their ids, sizes and counts."""

    times: bool = True
    """Messages, gaps and exchanges have their time as text, too; otherwise `time` is empty."""

    wanted: Callable[[Any], bool] | None = None
    """Whether messages of which that much is known (`Head`) may be asked for; of others bodies and places of fields are left out,
    unless there are `findings`, whose rules look at all."""

    decode_as: tuple[tuple[int, str, str | None], ...] = _setting(
        (), "-d", "rules", "reading", "decode server port N as PROTOCOL, or PROTOCOL:LAYOUT", "tcp.port==N,PROTOCOL"
    )
    """(port, protocol, layout or None)"""
    verbs: Mapping[int, str] | None = _setting(
        None,
        "--verbs",
        "list",
        "reading",
        "names of Seastar RPC verbs: ScyllaDB's, or a file of lines `number = name`",
        "scylla|FILE",
        ("scylla",),
    )
    dictionaries: tuple[bytes, ...] = _setting(
        (),
        "--dict",
        "contents",
        "reading",
        "dictionary of ScyllaDB's RPC compression, from its table system.dicts (may be repeated)",
        "FILE",
    )
    """Their bytes. Control blocks name the one in force by its SHA-256."""
    separate: bool = _setting(
        False, "--separate", "flag", "files", "treat each file as a separate network: connections do not continue in another file"
    )
    host_names: bool = _setting(False, "-N", "flag", "files", "show the names of addresses that pcapng files contain")
    """From name resolution blocks. No other name is looked up."""
    keylog: tuple[str, ...] = _setting(
        (),
        "--keylog",
        "files",
        "reading",
        "TLS key log that a client or server wrote (may be repeated); default: the file that SSLKEYLOGFILE names",
        "FILE",
    )
    """Files with secrets of TLS sessions: key logs as of SSLKEYLOGFILE, or pcapng captures that hold them."""

    answer_time_ns: int = _setting(30_000_000_000, "--timeout", "seconds", "live", "report a request after this time without a response")
    idle_time_ns: int = _setting(3_600_000_000_000, "--idle-time", "seconds", "live", "forget a silent conversation after this time")
    closed_time_ns: int = _setting(30_000_000_000, "--closed-time", "seconds", "live", "forget a conversation this long after its end")

    undecided_limit: int = _setting(
        1 << 20, "--undecided-limit", "size", "limits", "bytes per conversation until its protocol must be known"
    )
    undecided_total: int = _setting(64 << 20, "--undecided-total", "size", "totals", "the same, for all conversations")
    waiting_limit: int = _setting(16 << 20, "--waiting-limit", "size", "limits", "bytes waiting for missing ones, per conversation")
    waiting_total: int = _setting(128 << 20, "--waiting-total", "size", "totals", "bytes waiting for missing ones, in total")
    waiting_time_ns: int = _setting(10_000_000_000, "--waiting-time", "seconds", "limits", "how long they wait, in capture time")
    frame_limit: int = _setting(64 << 20, "--frame-limit", "size", "limits", "bytes of one frame; a longer one is skipped")
    open_limit: int = _setting(
        65_536, "--open-limit", "count", "limits", "open requests per conversation; beyond it, the oldest ends unanswered"
    )
    tracked_limit: int = _setting(30_000, "--tracked-limit", "count", "totals", "conversations tracked; beyond it, the oldest is forgotten")
    open_total: int = _setting(100_000, "--open-total", "count", "totals", "the same, for all conversations")
    values_limit: int = _setting(VALUES, "--values-limit", "count", "limits", "list values per frame; further ones are not decoded")
    bare_limit: int = _setting(
        VALUES, "--bare-limit", "count", "limits", "values without bytes per conversation; further ones are not decoded"
    )
    keys_limit: int = _setting(1 << 20, "--keys-limit", "size", "keys", "bytes of TLS waiting for keys, per side of a conversation")
    keys_total: int = _setting(64 << 20, "--keys-total", "size", "keys", "bytes of TLS waiting for keys, in total")


SETTINGS: dict[str, Setting] = {one.name: one.metadata["setting"] for one in fields(Options) if "setting" in one.metadata}
"""The members of `Options` that a command line can set."""

DEFAULTS: dict[str, Any] = {one.name: one.default for one in fields(Options)}


def members(*groups: Group) -> tuple[str, ...]:
    """The members of `Options` that belong to one of `groups`, in their order."""
    return tuple(name for name, setting in SETTINGS.items() if setting.group in groups)
