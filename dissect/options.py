"""What a caller chooses, each declared once: its name and type, its default, and how a command line writes and explains it.

`--help` reads this, so nothing here imports msgspec.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal, NamedTuple

__all__ = ["DEFAULTS", "SETTINGS", "Options", "Setting", "members"]

VALUES = 1_000_000
"""The usual limit on the values of one frame, over all its lists, entries, batches and unpacked parts, and on the values of one
conversation that take no bytes of their own: elements of arrays whose type has no width."""

Group = Literal["shown", "reading", "files", "limits", "totals", "keys", "live"]
"""Where an option belongs: what is shown, what is read, how several files are, limits of one conversation and of all, keys of TLS, live
capture alone."""

Written = Literal["size", "count", "seconds", "choice", "rules", "list", "files", "flag"]
"""How a command line writes a value: `64M`; `1000`; `0.5`; one of some words; `tcp.port==N,PROTOCOL`; a file or the name of a list; files,
the option again for more; no value."""


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
        "hex", "--bytes", "choice", "shown", "byte values: hex, base64, text or omit", "FORM", ("hex", "base64", "text", "omit")
    )
    show_secrets: bool = _setting(False, "--show-secrets", "flag", "shown", "passwords and tokens as they are")
    exchanges: bool = _setting(False, "--exchanges", "flag", "shown", "a record for every request with its response, too")
    findings: bool = _setting(False, "--findings", "flag", "shown", "what went wrong, behind the messages that show it (see diagnose)")
    pairs: bool = False
    """The inspector keeps each request with its response for `Inspector.pairs`."""
    detail: bool = False
    """Messages have the places of their fields and their bytes."""
    bodies: bool = True
    """What entries and sub-batches hold is decoded; without it, messages have what frames say of these: ids, sizes, counts."""

    times: bool = True
    """Messages, gaps and exchanges have their time as text, too; without it, `time` is empty."""

    wanted: Callable[[Any], bool] | None = None
    """Whether messages of which that much is known (`Head`) may be asked for; of others bodies and places of fields are left out,
    unless there are `findings`, whose rules look at all."""

    decode_as: tuple[tuple[int, str, str | None], ...] = _setting(
        (), "-d", "rules", "reading", "read port N as PROTOCOL, or as PROTOCOL:LAYOUT", "tcp.port==N,PROTOCOL"
    )
    """(port, protocol, layout or None)"""
    verbs: Mapping[int, str] | None = _setting(
        None, "--verbs", "list", "reading", "names of Seastar RPC verbs: ScyllaDB's, or lines `number = name`", "scylla|FILE", ("scylla",)
    )
    separate: bool = _setting(
        False, "--separate", "flag", "files", "each file is of a network of its own: connections do not go on in another"
    )
    keylog: tuple[str, ...] = _setting(
        (),
        "--keylog",
        "files",
        "reading",
        "secrets that read TLS, as its ends log them; again for more; without it the file that SSLKEYLOGFILE names",
        "FILE",
    )
    """Files with secrets of TLS sessions: key logs as of SSLKEYLOGFILE, or pcapng captures that hold them."""

    answer_time_ns: int = _setting(30_000_000_000, "--timeout", "seconds", "live", "when a request without a response is reported")
    idle_time_ns: int = _setting(3_600_000_000_000, "--idle-time", "seconds", "live", "when a silent conversation is forgotten")
    closed_time_ns: int = _setting(30_000_000_000, "--closed-time", "seconds", "live", "when one that ended is forgotten")

    undecided_limit: int = _setting(1 << 20, "--undecided-limit", "size", "limits", "bytes until a conversation's protocol must be known")
    undecided_total: int = _setting(64 << 20, "--undecided-total", "size", "totals", "the same over all conversations")
    waiting_limit: int = _setting(16 << 20, "--waiting-limit", "size", "limits", "bytes that wait for missing ones, a conversation")
    waiting_total: int = _setting(128 << 20, "--waiting-total", "size", "totals", "bytes that wait for missing ones, all together")
    waiting_time_ns: int = _setting(10_000_000_000, "--waiting-time", "seconds", "limits", "how long they wait, in capture time")
    frame_limit: int = _setting(64 << 20, "--frame-limit", "size", "limits", "bytes of one frame; a longer one is passed over")
    open_limit: int = _setting(65_536, "--open-limit", "count", "limits", "open requests a conversation; then the oldest ends")
    tracked_limit: int = _setting(30_000, "--tracked-limit", "count", "totals", "conversations remembered; then the oldest is forgotten")
    open_total: int = _setting(100_000, "--open-total", "count", "totals", "the same over all conversations")
    values_limit: int = _setting(VALUES, "--values-limit", "count", "limits", "values in lists a frame; the others are not made")
    bare_limit: int = _setting(VALUES, "--bare-limit", "count", "limits", "values without bytes a conversation; the others are not made")
    keys_limit: int = _setting(1 << 20, "--keys-limit", "size", "keys", "bytes of TLS that wait for keys to come, a side of a conversation")
    keys_total: int = _setting(64 << 20, "--keys-total", "size", "keys", "bytes of TLS that wait for keys to come, all together")


SETTINGS: dict[str, Setting] = {one.name: one.metadata["setting"] for one in fields(Options) if "setting" in one.metadata}
"""The members of `Options` that a command line can set."""

DEFAULTS: dict[str, Any] = {one.name: one.default for one in fields(Options)}


def members(*groups: Group) -> tuple[str, ...]:
    """The members of `Options` that belong to one of `groups`, in their order."""
    return tuple(name for name, setting in SETTINGS.items() if setting.group in groups)
