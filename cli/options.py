"""The options that commands share: their declarations, and the values they are turned into."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from streamdump.errors import UsageError, refuse

if TYPE_CHECKING:
    from streamdump.protocols.protocol import Protocol
    from streamdump.render.fields import Quote

SHOWN, READ, WRITTEN, LIVE, LIMITS, OTHER = "Output", "Input", "Files written", "Live capture", "Limits", "Other"


WHEN = ("auto", "always", "never")
FORMS = ("text", "json", "fields", "tabs", "csv")
MANNERS = ("header=y", "separator=,", "quote=d")
"""How -T csv looks, and what -E is completed to."""
COLUMNS = ("number", "relative", "src", "dst", "protocol", "name", "stream", "outcome", "latency")
"""What -T tabs and -T csv show where no -e says it."""
CLOCKS = ("r", "ad", "ud", "e")
BETWEEN = ("d", "dd")
"""What else `-t` says where there is a line a record."""
PAGE_INTERVAL_NS = 1_000_000
"""The initial interval of the series of a page for which none was asked."""
PROCESS = ("process", "pid", "container", "pod", "namespace", "host")
"""The fields of a process, repeated here because importing the library's is slower."""


def completion(choices: Sequence[str]) -> Callable[[str], list[str]]:
    """Return a completion for an option with these `choices`; a lambda in an annotation would not find their name."""
    return lambda incomplete: [one for one in choices if one.startswith(incomplete)]


def interface_names(incomplete: str) -> list[str]:
    """What `-i` can be completed to."""
    from streamdump.capture.interfaces import interfaces

    return [name for name in (*(one.name for one in interfaces()), "any") if name.startswith(incomplete)]


def protocol_names(incomplete: str) -> list[str]:
    """What the name of a protocol can be completed to."""
    from streamdump.protocols import PROTOCOLS

    return [protocol.name for protocol in PROTOCOLS if protocol.name.startswith(incomplete)]


_BEHIND_A_NAME = re.compile(r"(.*(?:==|!=|\bin\s*\{(?:[^}]*,)?)\s*)([^\s,{}]*)", re.S)
OPERATORS, JOINS = ("==", "!=", "<", "<=", ">", ">=", "in", "contains", "matches"), ("and", "or")
"""What stands behind a name in a filter, and between two of its terms."""
_LAST_WORD = re.compile(r"(.*?)([^\s()!]*)", re.S)


def field_names(incomplete: str) -> list[str]:
    """What the name of a field can be completed to: short ones first, paths once one has been started."""
    return _names(incomplete, entries=False)


def entry_names(incomplete: str) -> list[str]:
    """What the name of a key of entries can be completed to."""
    return _names(incomplete, entries=True)


def _names(incomplete: str, entries: bool) -> list[str]:
    from streamdump.filter import names_of

    known = names_of(entries).known()
    return [name for name in known if name.startswith(incomplete) and (name.startswith("fields.") <= incomplete.startswith("fields."))]


def filter_words(incomplete: str) -> list[str]:
    """What a filter can be completed to: a protocol or the name of a field, behind a name an operator, behind `name ==` and the like
    a message or another value, behind all that `and` or `or`."""
    return _words(incomplete, entries=False)


def entry_words(incomplete: str) -> list[str]:
    """What a filter of entries can be completed to."""
    return _words(incomplete, entries=True)


def _words(incomplete: str, entries: bool) -> list[str]:
    from streamdump.filter import names_of

    names = names_of(entries)
    value = _BEHIND_A_NAME.fullmatch(incomplete)
    if value is not None:
        before, prefix = value.groups()
        return [f"{before}{word}" for word in names.values_of(before) if word.startswith(prefix)]
    last = _LAST_WORD.fullmatch(incomplete)
    before, prefix = last.groups() if last is not None else ("", incomplete)
    second, word = ["", "", *before.replace("(", " ( ").split()][-2:]
    if word in OPERATORS:
        return []
    if word in ("", "(", "!", *JOINS, "not"):
        return [f"{before}{name}" for name in [*protocol_names(prefix), *_names(prefix, entries)]]
    fits = OPERATORS if second not in OPERATORS and word in names.known() else JOINS
    return [f"{before}{one}" for one in fits if one.startswith(prefix)]


# Every value is a string here and is checked by our own functions: their messages say what to write instead.

Files = Annotated[
    list[str] | None, typer.Argument(metavar="FILE...", help="captures, merged by time; - is standard input", show_default=False)
]
ReadFiles = Annotated[
    list[str] | None,
    typer.Option("-r", metavar="FILE", help="a capture, even if named like a command", rich_help_panel=READ, show_default=False),
]
AutoStop = Annotated[
    list[str] | None,
    typer.Option(
        "-a",
        metavar="packets:N",
        help="stop after N packets; live also after duration:N seconds or filesize:N kB of -w",
        rich_help_panel=READ,
        show_default=False,
    ),
]
Interfaces = Annotated[
    list[str] | None,
    typer.Option(
        "-i",
        metavar="IFACE",
        help="capture from this interface (may be repeated); any for all",
        rich_help_panel=LIVE,
        show_default=False,
        autocompletion=interface_names,
    ),
]
ListInterfaces = Annotated[bool, typer.Option("-D", help="list interfaces, with state and addresses", rich_help_panel=LIVE)]
CaptureFilter = Annotated[
    str | None,
    typer.Option(
        "-f",
        metavar="EXPR",
        help="capture filter in tcpdump syntax; '' for all TCP; default: the known ports and those of -d",
        rich_help_panel=LIVE,
        show_default=False,
    ),
]
Unresolved = Annotated[
    bool, typer.Option("-n", help="accepted for compatibility: no name server is asked for names", rich_help_panel=OTHER)
]
Alone = Annotated[
    bool, typer.Option("-p", help="accepted for compatibility: only --promiscuous turns promiscuous mode on", rich_help_panel=OTHER)
]
STATISTICS = {
    "conv": "conversations",
    "endpoints": "conversations",
    "expert": "diagnose",
    "flow": "follow N --ladder",
    "follow": "follow N",
    "io,phs": "stats",
    "io,stat": "stats --interval SECONDS",
    "plen": "stats",
    "rpc": "latency",
    "rtd": "latency",
    "srt": "latency",
}
"""By how the names of `tshark -z` begin the command that does it."""


def statistics(names: list[str] | None) -> list[str]:
    """Raises `UsageError` with the command that does what `tshark -z` does."""
    for name in names or ():
        found = next((command for prefix, command in STATISTICS.items() if f"{name},".startswith(f"{prefix},")), None)
        raise UsageError(f"-z {name}: " + (f"use streamdump {found} FILE" if found else f"unknown; use one of {', '.join(STATISTICS)}"))
    return []


Statistics = Annotated[
    list[str] | None,
    typer.Option(
        "-z",
        metavar="NAME",
        help="names the command that replaces tshark -z NAME",
        rich_help_panel=OTHER,
        callback=statistics,
        show_default=False,
    ),
]
Buffer = Annotated[str, typer.Option("-B", metavar="SIZE", help="size of the kernel's capture buffer", rich_help_panel=LIVE)]
Snap = Annotated[str, typer.Option("-s", metavar="BYTES", help="snap length: how much of each packet to capture", rich_help_panel=LIVE)]
Promiscuous = Annotated[bool, typer.Option("--promiscuous", help="also capture frames for other hosts", rich_help_panel=LIVE)]
WriteTo = Annotated[
    str | None,
    typer.Option(
        "-w",
        metavar="FILE",
        help="write packets as captured (including secrets) as pcapng; replaces FILE",
        rich_help_panel=WRITTEN,
        show_default=False,
    ),
]
OnlyMatching = Annotated[
    bool,
    typer.Option(
        "--only-matching",
        help="with -w of files: write only the packets of matching records, not complete conversations",
        rich_help_panel=WRITTEN,
    ),
]
EmbedKeys = Annotated[
    bool,
    typer.Option("--embed-keys", help="-w also writes the TLS keys: anyone who has the file can decrypt it", rich_help_panel=WRITTEN),
]
RingBuffer = Annotated[
    list[str] | None,
    typer.Option(
        "-b",
        metavar="filesize:N",
        help="ring buffer for -w: a new file after N kB or duration:N seconds, keeping the latest files:N",
        rich_help_panel=LIVE,
        show_default=False,
    ),
]
Colour = Annotated[
    str,
    typer.Option(
        "--color",
        metavar="WHEN",
        help="auto, always or never; NO_COLOR wins",
        rich_help_panel=OTHER,
        autocompletion=completion(WHEN),
    ),
]
Where = Annotated[
    list[str] | None,
    typer.Option(
        "-Y",
        metavar="EXPR",
        help="show only matches, such as 'name == Open and latency > 20ms'; if repeated, all must match; protocols --fields lists names",
        rich_help_panel=SHOWN,
        show_default=False,
        autocompletion=filter_words,
    ),
]
WhereEntries = Annotated[
    list[str] | None,
    typer.Option(
        "-Y",
        metavar="EXPR",
        help="show only matches, such as 'stream == orders and offset >= 100'; if repeated, all must match",
        rich_help_panel=SHOWN,
        show_default=False,
        autocompletion=entry_words,
    ),
]
TimeForm = Annotated[
    str,
    typer.Option(
        "-t",
        metavar="FORM",
        help="times: r relative, ad local, ud UTC, e epoch; in lines also d since the previous packet, dd since the previous line",
        rich_help_panel=SHOWN,
        autocompletion=completion((*CLOCKS, *BETWEEN)),
    ),
]
Enough = Annotated[str | None, typer.Option("-c", metavar="N", help="stop after N messages", rich_help_panel=READ, show_default=False)]
Html = Annotated[
    str | None,
    typer.Option(
        "--html",
        metavar="FILE",
        help="also write a report as one self-contained page; replaces FILE",
        rich_help_panel=WRITTEN,
        show_default=False,
    ),
]
Interval = Annotated[
    str | None,
    typer.Option(
        "--interval", metavar="SECONDS", help="also show a time series with this interval", rich_help_panel=SHOWN, show_default=False
    ),
]
Forms = Annotated[
    list[str] | None,
    typer.Option(
        "-T",
        metavar="FORM",
        help="text (default), json, fields (those of -e), tabs or csv (those of -e, or a default set)",
        rich_help_panel=SHOWN,
        show_default=False,
        autocompletion=completion(FORMS),
    ),
]
Manners = Annotated[
    list[str] | None,
    typer.Option(
        "-E",
        metavar="HOW",
        help="format of -T fields: header=y, separator=, (or /t), quote=d, s or n",
        rich_help_panel=SHOWN,
        show_default=False,
        autocompletion=completion(MANNERS),
    ),
]
Json = Annotated[bool, typer.Option("--json", help="JSON Lines, one object per record (-T json)", rich_help_panel=SHOWN)]


QUOTES: dict[str, Quote] = {"d": '"', "s": "'", "n": ""}
"""The values of `-E quote=`."""


class Looks(NamedTuple):
    """How -T fields looks."""

    header: bool = False
    separator: str = "\t"
    quote: Quote = ""


def looks_of(manner: Sequence[str]) -> Looks:
    """Return the format that several `-E` describe."""
    looks = Looks()
    for text in manner:
        key, _, value = text.partition("=")
        match key:
            case "header" if value in ("y", "n"):
                looks = looks._replace(header=value == "y")
            case "separator" if len(value) == 1 or value in ("/t", "/s"):
                looks = looks._replace(separator={"/t": "\t", "/s": " "}.get(value, value))
            case "quote" if value in QUOTES:
                looks = looks._replace(quote=QUOTES[value])
            case _:
                raise UsageError(f"-E {text}: must be header=y, separator=C (/t for a tab, /s for a space) or quote=d, s or n")
    return looks


def one_of(option: str, text: str, choices: tuple[str, ...]) -> str:
    """`text`, which must be one of `choices`."""
    if text not in choices:
        near = get_close_matches(text, choices, 1)
        raise UsageError(
            f"{option} {text}: must be {', '.join(choices[:-1])} or {choices[-1]}{f'; did you mean {near[0]}?' if near else ''}"
        )
    return text


def several_of(option: str, texts: Sequence[str], choices: tuple[str, ...]) -> list[str]:
    """What one or several of an option say, separated by commas, each once; all must be among `choices`."""
    return list(dict.fromkeys(one_of(option, part.strip(), choices) for text in texts for part in text.split(",")))


def check_clock(text: str, more: tuple[str, ...] = ()) -> None:
    """Raise `UsageError` for an unknown form of times; `more`: further forms of a view."""
    if text in BETWEEN and not more:
        raise UsageError(f"-t {text} needs a view with one line per message; here -t must be {', '.join(CLOCKS[:-1])} or {CLOCKS[-1]}")
    one_of("-t", text, (*CLOCKS, *more))


def natural(text: str) -> int | None:
    """Return the number that ASCII digits stand for; None for other text, and for thousands of digits."""
    try:
        return int(text) if text.isascii() and text.isdigit() else None
    except ValueError:
        return None


def size(option: str, text: str) -> int:
    """`64M` as 67,108,864: a number of bytes, with K, M or G for powers of 1024."""
    factor = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}.get(text[-1:].upper(), 1)
    number = natural(text[:-1] if factor > 1 else text)
    if not number:
        raise UsageError(f"{option} {text}: not a size; write a number of bytes such as 65536, 64K or 1G")
    return number * factor


def nanoseconds(option: str, text: str) -> int:
    """`0.5` seconds as 500,000,000."""
    seconds, _, rest = text.partition(".")
    if natural(seconds + rest) is None or len(rest) > 9:
        raise UsageError(f"{option} {text}: not a time; write seconds such as 10 or 0.5")
    return int(seconds or "0") * 1_000_000_000 + int(rest.ljust(9, "0"))


def whole_number(option: str, text: str, least: int = 1) -> int:
    """Return the number `text`, which must be at least `least`."""
    number = natural(text)
    if number is None or number < least:
        raise UsageError(f"{option} {text}: must be an integer, {least} or greater")
    return number


def interval_of(text: str | None) -> int | None:
    """The nanoseconds of `--interval`."""
    if text is None:
        return None
    width_ns = nanoseconds("--interval", text)
    refuse((not width_ns, f"--interval {text}: must be more than 0"))
    return width_ns


def inputs(read_files: list[str] | None, files: list[str] | None) -> list[str]:
    """Return the inputs: those of -r, then the arguments."""
    return [*(read_files or ()), *(files or ())]


def enough_of(text: str | None) -> int | None:
    """Return the number of messages of `-c`, None for all."""
    return None if text is None else whole_number("-c", text)


def conditions(option: str, texts: Sequence[str] | None, *kinds: str, elsewhere: Sequence[str] = ()) -> dict[str, int]:
    """Return the conditions (`packets:10`) by kind, of several the smallest; `elsewhere`: kinds that only live capture has."""
    found: dict[str, int] = {}
    for text in texts or ():
        kind, _, number = text.partition(":")
        if kind not in kinds:
            what = "needs live capture (-i)" if kind in elsewhere else "unknown condition"
            raise UsageError(f"{option} {text}: {what}; use {', '.join(f'{one}:N' for one in kinds)}")
        wanted = natural(number)
        if not wanted:
            raise UsageError(f"{option} {text}: N must be a number, 1 or more")
        found[kind] = min(wanted, found.get(kind, wanted))
    return found


def packet_limit(texts: list[str] | None) -> int | None:
    """The smallest N of `-a packets:N`."""
    return conditions("-a", texts, "packets", elsewhere=("duration", "filesize")).get("packets")


def decode_rules(rules: Sequence[str]) -> tuple[tuple[int, str, str | None], ...]:
    """Return the rules of several `-d`, which must not contradict each other."""
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
    port = natural(number.strip()) or 0
    if not 0 < port < 65_536:
        raise UsageError(f"-d {rule}: {number.strip() or 'nothing'} is not a port number")
    name, colon, layout = target.strip().partition(":")
    protocol = protocol_named(name)
    if colon and layout not in protocol.loaded.forced:
        known = f"use one of {', '.join(protocol.loaded.forced)}" if protocol.loaded.forced else "it has no layouts to choose from"
        wrong = f"{protocol.name} has no layout {layout}" if layout else "no layout after the colon"
        raise UsageError(f"-d {rule}: {wrong}; {known}")
    return port, protocol.name, layout or None


def protocol_named(name: str) -> Protocol:
    """The protocol of that name; an unknown one raises with the nearest."""
    from streamdump.protocols import PROTOCOLS

    known = {protocol.name: protocol for protocol in PROTOCOLS}
    found = known.get(name)
    if found is None:
        near = get_close_matches(name, known, 1, 0.5)
        more = f"did you mean {near[0]}?" if near else "streamdump protocols lists them"
        raise UsageError(f"unknown protocol {name}; {more}")
    return found
