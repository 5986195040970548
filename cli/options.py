"""The options that commands share: their declarations, and the values they are turned into."""

from __future__ import annotations

import re
from collections.abc import Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from dissect.errors import UsageError

if TYPE_CHECKING:
    from dissect.model import Options
    from dissect.protocols.base import Protocol

SHOWN, READ, LIVE, LIMITS, OTHER = "What is shown", "What is read", "Live capture", "Limits", "Other"


WHEN = ("auto", "always", "never")
FORMS = ("text", "json", "fields")
CLOCKS = ("r", "ad", "ud", "e")
BYTES_AS = ("hex", "base64", "text", "omit")


def interface_names(incomplete: str) -> list[str]:
    """What `-i` can be completed to."""
    from dissect.capture.interfaces import interfaces

    return [name for name in (*(one.name for one in interfaces()), "any") if name.startswith(incomplete)]


def protocol_names(incomplete: str) -> list[str]:
    """What the name of a protocol can be completed to."""
    from dissect.protocols import PROTOCOLS

    return [protocol.name for protocol in PROTOCOLS if protocol.name.startswith(incomplete)]


_BEHIND_A_NAME = re.compile(r"(.*(?:==|!=|\bin\s*\{(?:[^}]*,)?)\s*)([^\s,{}]*)", re.S)
_LAST_WORD = re.compile(r"(.*?)([^\s()!]*)", re.S)


def field_names(incomplete: str) -> list[str]:
    """What the name of a field can be completed to: short ones first, paths once one is begun."""
    from dissect.filter import names_of

    known = names_of().known()
    return [name for name in known if name.startswith(incomplete) and (name.startswith("fields.") <= incomplete.startswith("fields."))]


def filter_words(incomplete: str) -> list[str]:
    """What a filter can be completed to: the name of a field, or behind `name ==` and the like that of a message or another value."""
    from dissect.filter import names_of

    value = _BEHIND_A_NAME.fullmatch(incomplete)
    if value is not None:
        before, begun = value.groups()
        words = names_of().values_of(before)
        return [f"{before}{word}" for word in words if word.startswith(begun)]
    last = _LAST_WORD.fullmatch(incomplete)
    before, begun = last.groups() if last is not None else ("", incomplete)
    return [f"{before}{name}" for name in field_names(begun)]


# Every value is a string here and is checked by our own functions: their messages say what to write instead.

Files = Annotated[
    list[str] | None, typer.Argument(metavar="FILE...", help="captures, merged by time; - is standard input", show_default=False)
]
ReadFiles = Annotated[
    list[str] | None,
    typer.Option("-r", metavar="FILE", help="a capture, also one named like a command", rich_help_panel=READ, show_default=False),
]
DecodeAs = Annotated[
    list[str] | None,
    typer.Option(
        "-d",
        metavar="tcp.port==N,PROTOCOL",
        help="read port N as PROTOCOL, or as PROTOCOL:LAYOUT",
        rich_help_panel=READ,
        show_default=False,
    ),
]
Verbs = Annotated[
    str | None,
    typer.Option(
        "--verbs",
        metavar="scylla|FILE",
        help="names of Seastar RPC verbs: ScyllaDB's, or lines `number = name`",
        rich_help_panel=READ,
        show_default=False,
        autocompletion=lambda: ["scylla"],
    ),
]
KeyLogs = Annotated[
    list[str] | None,
    typer.Option(
        "--keylog",
        metavar="FILE",
        help="secrets that read TLS, as its ends log them; again for more; without it the file that SSLKEYLOGFILE names",
        rich_help_panel=READ,
        show_default=False,
    ),
]
AutoStop = Annotated[
    list[str] | None,
    typer.Option(
        "-a",
        metavar="packets:N",
        help="stop after N packets; live also duration:N seconds, filesize:N kB of -w",
        rich_help_panel=READ,
        show_default=False,
    ),
]
Interfaces = Annotated[
    list[str] | None,
    typer.Option(
        "-i",
        metavar="IFACE",
        help="capture from it; again for more, any for all",
        rich_help_panel=LIVE,
        show_default=False,
        autocompletion=interface_names,
    ),
]
ListInterfaces = Annotated[bool, typer.Option("-D", help="the interfaces there are, with state and addresses", rich_help_panel=LIVE)]
CaptureFilter = Annotated[
    str | None,
    typer.Option(
        "-f",
        metavar="EXPR",
        help="packets to capture, as tcpdump writes it; '' all TCP; without it the known ports and those of -d",
        rich_help_panel=LIVE,
        show_default=False,
    ),
]
Buffer = Annotated[str, typer.Option("-B", metavar="SIZE", help="the kernel's buffer for packets", rich_help_panel=LIVE)]
Snap = Annotated[str, typer.Option("-s", metavar="BYTES", help="how much of each packet to capture", rich_help_panel=LIVE)]
Promiscuous = Annotated[bool, typer.Option("--promiscuous", help="also frames for other machines", rich_help_panel=LIVE)]
WriteTo = Annotated[
    str | None,
    typer.Option(
        "-w", metavar="FILE", help="write the packets as captured (secrets too), as pcapng", rich_help_panel=LIVE, show_default=False
    ),
]
EmbedKeys = Annotated[
    bool,
    typer.Option("--embed-keys", help="-w writes the keys of TLS conversations, too: who has the file can read them", rich_help_panel=LIVE),
]
RingBuffer = Annotated[
    list[str] | None,
    typer.Option(
        "-b",
        metavar="filesize:N",
        help="-w into files in turn: a new one after N kB or duration:N seconds, keeping files:N",
        rich_help_panel=LIVE,
        show_default=False,
    ),
]
AnswerTime = Annotated[
    str, typer.Option("--timeout", metavar="SECONDS", help="when a request without a response is reported", rich_help_panel=LIVE)
]
IdleTime = Annotated[
    str, typer.Option("--idle-time", metavar="SECONDS", help="when a silent conversation is forgotten", rich_help_panel=LIVE)
]
ClosedTime = Annotated[str, typer.Option("--closed-time", metavar="SECONDS", help="when one that ended is forgotten", rich_help_panel=LIVE)]
TrackedLimit = Annotated[
    str, typer.Option("--tracked-limit", metavar="N", help="conversations remembered; then the oldest is forgotten", rich_help_panel=LIVE)
]
Colour = Annotated[
    str,
    typer.Option(
        "--color", metavar="WHEN", help="auto, always or never; NO_COLOR wins", rich_help_panel=OTHER, autocompletion=lambda: list(WHEN)
    ),
]
Where = Annotated[
    str | None,
    typer.Option(
        "-Y",
        metavar="EXPR",
        help="what to show, such as 'name == Open and latency > 20ms'; `protocols --fields` lists the names",
        rich_help_panel=SHOWN,
        show_default=False,
        autocompletion=filter_words,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="JSON Lines, one object a record (-T json)", rich_help_panel=SHOWN)]


def _limit(name: str, unit: str, text: str) -> object:
    return typer.Option(name, metavar=unit, help=text, rich_help_panel=LIMITS)


UndecidedLimit = Annotated[str, _limit("--undecided-limit", "SIZE", "bytes until a conversation's protocol must be known")]
WaitingLimit = Annotated[str, _limit("--waiting-limit", "SIZE", "bytes that wait for missing ones, a conversation")]
UndecidedTotal = Annotated[str, _limit("--undecided-total", "SIZE", "the same over all conversations")]
WaitingTotal = Annotated[str, _limit("--waiting-total", "SIZE", "bytes that wait for missing ones, all together")]
WaitingTime = Annotated[str, _limit("--waiting-time", "SECONDS", "how long they wait, in capture time")]
FrameLimit = Annotated[str, _limit("--frame-limit", "SIZE", "bytes of one frame; a longer one is passed over")]
OpenLimit = Annotated[str, _limit("--open-limit", "N", "open requests a conversation; then the oldest ends")]
OpenTotal = Annotated[str, _limit("--open-total", "N", "the same over all conversations")]
ValuesLimit = Annotated[str, _limit("--values-limit", "N", "values in lists a frame; the others are not made")]
BareLimit = Annotated[str, _limit("--bare-limit", "N", "values without bytes a conversation; the others are not made")]
KeysLimit = Annotated[str, _limit("--keys-limit", "SIZE", "bytes of TLS that wait for keys to come, a side of a conversation")]
KeysTotal = Annotated[str, _limit("--keys-total", "SIZE", "bytes of TLS that wait for keys to come, all together")]


def library_options(
    decode_as: list[str] | None,
    undecided_limit: str,
    undecided_total: str,
    waiting_limit: str,
    waiting_total: str,
    waiting_time: str,
    frame_limit: str,
    open_limit: str,
    open_total: str,
    values_limit: str,
    bare_limit: str,
    verbs: str | None,
    *,
    bytes_as: str = "hex",
    show_secrets: bool = False,
    detail: bool = False,
    terse: bool = False,
    exchanges: bool = False,
    answer_time: str = "30",
    idle_time: str = "3600",
    closed_time: str = "30",
    tracked_limit: str = "20000",
    keylog: tuple[str, ...] = (),
    keys_limit: str = "1M",
    keys_total: str = "64M",
) -> Options:
    """The library's options for those of a command line."""
    from dissect.model import Options
    from dissect.protocols.seastar.verbs import load_verbs

    return Options(
        bytes_as=one_of("--bytes", bytes_as, BYTES_AS),  # type: ignore[arg-type]
        show_secrets=show_secrets,
        detail=detail,
        terse=terse,
        exchanges=exchanges,
        decode_as=decode_rules(decode_as or ()),
        verbs=None if verbs is None else load_verbs(verbs),
        undecided_limit=size("--undecided-limit", undecided_limit),
        undecided_total=size("--undecided-total", undecided_total),
        waiting_limit=size("--waiting-limit", waiting_limit),
        waiting_total=size("--waiting-total", waiting_total),
        waiting_time_ns=nanoseconds("--waiting-time", waiting_time),
        frame_limit=size("--frame-limit", frame_limit),
        open_limit=whole("--open-limit", open_limit),
        open_total=whole("--open-total", open_total),
        values_limit=whole("--values-limit", values_limit),
        bare_limit=whole("--bare-limit", bare_limit),
        answer_time_ns=nanoseconds("--timeout", answer_time),
        idle_time_ns=nanoseconds("--idle-time", idle_time),
        closed_time_ns=nanoseconds("--closed-time", closed_time),
        tracked_limit=whole("--tracked-limit", tracked_limit),
        keylog=keylog,
        keys_limit=size("--keys-limit", keys_limit),
        keys_total=size("--keys-total", keys_total),
    )


def complete(options: Options) -> Options:
    """The same, with everything that messages have: something looks at it that does not show it."""
    from msgspec.structs import replace

    return replace(options, terse=False)


class Looks(NamedTuple):
    """How -T fields looks."""

    header: bool = False
    separator: str = "\t"
    quote: str = ""


def looks_of(manner: Sequence[str]) -> Looks:
    """What several `-E` say."""
    looks = Looks()
    for text in manner:
        key, _, value = text.partition("=")
        if key == "header" and value in ("y", "n"):
            looks = looks._replace(header=value == "y")
        elif key == "separator" and (len(value) == 1 or value in ("/t", "/s")):
            looks = looks._replace(separator={"/t": "\t", "/s": " "}.get(value, value))
        elif key == "quote" and value in ("d", "s", "n"):
            looks = looks._replace(quote={"d": '"', "s": "'", "n": ""}[value])
        else:
            raise UsageError(f"-E {text}: must be header=y, separator=C (/t a tab, /s a space) or quote=d, s or n")
    return looks


def one_of(option: str, text: str, choices: tuple[str, ...]) -> str:
    """`text`, which must be one of `choices`."""
    if text not in choices:
        near = get_close_matches(text, choices, 1)
        raise UsageError(
            f"{option} {text}: must be {', '.join(choices[:-1])} or {choices[-1]}{f'; did you mean {near[0]}?' if near else ''}"
        )
    return text


def size(option: str, text: str) -> int:
    """`64M` as 67,108,864: a number of bytes, with K, M or G for powers of 1024."""
    factor = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}.get(text[-1:].upper(), 1)
    digits = text[:-1] if factor > 1 else text
    if not (digits.isascii() and digits.isdigit()) or not int(digits):
        raise UsageError(f"{option} {text}: not a size; write a number of bytes such as 65536, 64K or 1G")
    return int(digits) * factor


def nanoseconds(option: str, text: str) -> int:
    """`0.5` seconds as 500,000,000."""
    whole, _, rest = text.partition(".")
    if not (whole + rest).isdigit() or not text.isascii() or len(rest) > 9:
        raise UsageError(f"{option} {text}: not a time; write seconds such as 10 or 0.5")
    return int(whole or "0") * 1_000_000_000 + int(rest.ljust(9, "0"))


def whole(option: str, text: str) -> int:
    """The number `text`, one or more."""
    if not (text.isascii() and text.isdigit()) or not int(text):
        raise UsageError(f"{option} {text}: must be a whole number, 1 or more")
    return int(text)


def packet_limit(conditions: list[str] | None) -> int | None:
    """The smallest N of `-a packets:N`."""
    limits = []
    for condition in conditions or ():
        kind, _, number = condition.partition(":")
        if kind != "packets":
            raise UsageError(f"-a {condition}: unknown condition; write packets:N")
        if not (number.isascii() and number.isdigit()) or not int(number):
            raise UsageError(f"-a {condition}: N must be a number, 1 or more")
        limits.append(int(number))
    return min(limits, default=None)


def decode_rules(rules: Sequence[str]) -> tuple[tuple[int, str, str | None], ...]:
    """What several `-d` say; each port can be one thing only."""
    found: dict[int, tuple[int, str, str | None]] = {}
    for text in rules:
        rule = decode_rule(text)
        if found.setdefault(rule[0], rule) != rule:
            raise UsageError(f"-d {text}: port {rule[0]} was given as {found[rule[0]][1]} before")
    return tuple(found.values())


def decode_rule(rule: str) -> tuple[int, str, str | None]:
    """(port, protocol, layout) of `tcp.port==N,PROTOCOL[:LAYOUT]`."""
    selector, comma, target = rule.partition(",")
    layer, equals, number = selector.partition("==")
    if layer.strip() != "tcp.port" or not comma or not equals:
        raise UsageError(f"-d {rule}: write it as tcp.port==N,PROTOCOL, for example tcp.port==5552,rabbitmq-stream")
    number = number.strip()
    if not (number.isascii() and number.isdigit()) or not 0 < int(number) < 65_536:
        raise UsageError(f"-d {rule}: {number or 'nothing'} is not a port number")
    name, colon, layout = target.strip().partition(":")
    protocol = protocol_named(name)
    if colon and layout not in protocol.forced:
        known = f"it has {', '.join(protocol.forced)}" if protocol.forced else "it has none to choose from"
        wrong = f"{protocol.name} has no layout {layout}" if layout else "no layout behind the colon"
        raise UsageError(f"-d {rule}: {wrong}; {known}")
    return int(number), protocol.name, layout or None


def protocol_named(name: str) -> Protocol:
    """The protocol of that name; an unknown one raises with the nearest."""
    from dissect.protocols import PROTOCOLS

    known = {protocol.name: protocol for protocol in PROTOCOLS}
    found = known.get(name)
    if found is None:
        near = get_close_matches(name, known, 1, 0.5)
        more = f"did you mean {near[0]}?" if near else "the command `streamdump protocols` lists them"
        raise UsageError(f"unknown protocol {name}; {more}")
    return found
