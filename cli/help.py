"""Help: examples first, then commands and options in groups. Made from the declared parameters, so that it cannot miss one."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from textwrap import wrap
from typing import Any

from .options import LIMITS, OTHER
from .output import coloured

EXAMPLES: dict[str, Sequence[tuple[str, str]]] = {
    "": (
        ("streamdump capture.pcap", "one line per message"),
        ("streamdump -V -c 3 capture.pcap", "every field of the first three, with bytes"),
        ("streamdump -Y 'outcome == refused' capture.pcap", "only refused requests"),
        ("streamdump -T fields -e name -e latency capture.pcap", "chosen fields, separated by tabs"),
        ("streamdump -w small.pcapng -Y 'latency > 50ms' capture.pcap", "packets of the matching conversations"),
        ("streamdump --json capture.pcap | jq .name", "JSON Lines for other programs"),
        ("streamdump conversations capture.pcap", "each connection: endpoints, protocol, how it ended"),
        ("streamdump diagnose capture.pcap", "what went wrong, and what to do about it"),
        ("streamdump -i any", "live, on the known ports"),
        ("tcpdump -B 65536 --immediate-mode -U -w - tcp | streamdump -", "the same through a pipe"),
    ),
    "browse": (
        ("streamdump browse capture.pcap", "findings, conversations, messages, fields with bytes"),
        ("streamdump browse -Y 'outcome == refused' *.pcap", "with an initial filter"),
        ("streamdump browse -i any", "live"),
    ),
    "check": (
        ("streamdump check captures/", "compare each capture with its golden file"),
        ("streamdump check captures/ --update", "write the golden files; review the diff before you commit"),
        ("streamdump check login.pcap --only handshake", "only the handshake"),
        ('streamdump check login.pcap -i lo --run "make login"', "capture while a command runs, then compare"),
        ("streamdump check captures/ --github --junit report.xml", "in CI"),
    ),
    "conversations": (
        ("streamdump conversations capture.pcap", "a table, or plain columns in a pipe"),
        ("streamdump conversations --json *.pcap", "one JSON object per conversation"),
        ("streamdump conversations -Y fault capture.pcap", "only those with damaged messages"),
        ("streamdump conversations -i any", "a live table"),
    ),
    "diagnose": (
        ("streamdump diagnose capture.pcap", "what went wrong, most severe first"),
        ("streamdump diagnose --fail-on error *.pcap", "exit code 1 if there is an error, for CI"),
        ("streamdump diagnose -Y 'severity == error' capture.pcap", "errors only"),
        ("streamdump diagnose --html report.html capture.pcap", "a page with the handshakes that failed"),
        ("streamdump diagnose -i any", "live"),
    ),
    "diff": (
        ("streamdump diff old.pcap new.pcap", "what changed between two versions of a client"),
        ("streamdump diff --only handshake old.pcap new.pcap", "only the handshake"),
        ("streamdump diff --ignore fields.chunk.timestamp --json a.pcap b.pcap", "ignore one field; JSON for programs"),
    ),
    "entries": (
        ("streamdump entries capture.pcap", "what was published and delivered, one line per message"),
        ("streamdump entries -Y 'body contains \"order 4711\"' capture.pcap", "was my message stored, and who got it"),
        ("streamdump entries -Y 'stream == orders and offset >= 100' *.pcap", "part of a stream"),
        ("streamdump entries -Y 'outcome in {refused, unanswered}' x.pcap", "what was not stored"),
        ("streamdump entries -T fields -e offset -e body --bytes text x.pcap", "chosen keys, separated by tabs"),
        ("streamdump entries --raw --separator '\\0' x.pcap | xargs -0 -n 1 echo", "the bodies only"),
        ("streamdump entries -i any", "live"),
    ),
    "follow": (
        ("streamdump follow 0 capture.pcap", "the first conversation, with the time since the previous message"),
        ("streamdump follow 0 --until ready capture.pcap", "its handshake, and how far it got"),
        ("streamdump follow 0 --ladder capture.pcap", "as a sequence diagram"),
        ("streamdump follow 0 --mermaid capture.pcap > login.mmd", "as a Mermaid diagram, for a report"),
        ("streamdump follow 0 --raw client capture.pcap | xxd", "the bytes sent by the client"),
    ),
    "help": (
        ("streamdump help filters", "the filter language of -Y"),
        ("streamdump help limits", "the options that bound memory and effort"),
        ("streamdump help diagnose", "the options of a command"),
    ),
    "latency": (
        ("streamdump latency capture.pcap", "by command: count, latency, slowest requests"),
        ("streamdump latency --by server,command --interval 10 *.pcap", "as a time series by server and command"),
        ("streamdump latency -Y 'response_code == ok' --slowest 20 x.pcap", "only matching responses"),
        ("streamdump latency --csv capture.pcap > latency.csv", "for a spreadsheet; --json for programs"),
        ("streamdump latency --html report.html capture.pcap", "a page with tables and charts"),
        ("streamdump latency -i any", "a live table"),
    ),
    "mcp": (
        ("streamdump mcp --root captures/", "started by a client, to ask about the captures in a folder"),
        ("streamdump mcp --keylog keys.log", "captures in the working directory, with TLS keys"),
        ("claude mcp add streamdump -- streamdump mcp", "add it to a client, here Claude Code"),
    ),
    "metrics": (
        ("streamdump metrics -i any", "serve http://127.0.0.1:9464/metrics until Ctrl-C"),
        ("streamdump metrics -i any --label stream,server", "also by stream and server"),
        ("streamdump metrics -i any --listen 0.0.0.0:9464", "for Prometheus on another host"),
        ("streamdump metrics capture.pcap", "print the metrics of a capture"),
        ("streamdump metrics --listen 127.0.0.1:9464 capture.pcap", "serve those of a capture until Ctrl-C"),
    ),
    "pipeline": (
        ("streamdump pipeline captures/ --out tables", "the captures of a folder as Parquet tables, and a summary"),
        ("streamdump pipeline 'ring/*.pcapng' --out t --format delta", "the same as Delta tables"),
        ("streamdump pipeline --out tables --sql 'select name, count(*) from messages group by name'", "a query on existing tables"),
    ),
    "protocols": (
        ("streamdump protocols", "names, default ports, titles"),
        ("streamdump protocols rabbitmq-stream | less", "every message with its fields"),
        ("streamdump protocols --fields | grep offset", "names for -Y and -e"),
    ),
    "scrub": (
        ("streamdump scrub in.pcap out.pcap", "overwrite passwords and tokens"),
        ("streamdump scrub in.pcap out.pcap --payloads --names --addresses", "also overwrite bodies, names and addresses"),
    ),
    "stats": (
        ("streamdump stats capture.pcap", "packets, commands, messages by stream"),
        ("streamdump stats --interval 1 capture.pcap", "as a time series"),
        ("streamdump stats --csv -Y 'stream == orders' *.pcap", "only matching messages, for a spreadsheet"),
        ("streamdump stats --html report.html capture.pcap", "a page with tables and charts"),
    ),
    "schema": (("streamdump schema > streamdump.schema.json", "to validate records or generate readers"),),
    "wireshark": (
        ("streamdump wireshark --install", "install it for Wireshark and tshark"),
        ("streamdump wireshark > streamdump.lua", "write it to a file; tshark -X lua_script:streamdump.lua loads it"),
    ),
}

DOCS = Path(__file__).parent / "docs"
"""The pages, which are installed with the program."""

LIMITS_TOPIC = "limits"
"""What `streamdump help` shows the options of the group of limits for."""

MOST_USED = ("-Y", "-V", "-x", "-c", "-T", "-e", "--json", "-i", "-w", "-d")
"""Options that `-h` shows first, where a command has them."""

SHOWN_BY_H = 10
"""Options that `-h` shows."""

MIN_TEXT = 30
"""Columns beside an option that its text needs; it is below the option where there are fewer."""

SHORT_HELP = "show the options people use most"

EXAMPLE_ROOM = 38
"""Columns that what an example does has at least, the space before it included."""


ABOUT = "streamdump decodes captures of message-streaming protocols, message by message."


def brief() -> str:
    """Return the short help shown without arguments."""
    (bold, _, reset), size = _style()
    usage = f"{bold}Usage{reset}  streamdump [OPTIONS] FILE...  |  streamdump COMMAND [OPTIONS]"
    more = "streamdump -h shows the options people use most, streamdump --help all commands and options."
    return "\n".join([*wrap(ABOUT, size), "", *_examples(EXAMPLES[""]), "", usage, "", *wrap(more, size), ""])


def _style() -> tuple[tuple[str, str, str], int]:
    """Codes for bold, dim and neither, and the columns to use."""
    codes = ("\x1b[1m", "\x1b[2m", "\x1b[0m") if coloured("auto", sys.stdout) else ("", "", "")
    return codes, min(shutil.get_terminal_size().columns, 110)


def page(command: Any, name: str, commands: Iterable[Any] = (), further: Iterable[Any] = ()) -> str:
    """The help of `command`; `commands` are listed and `further` parameters added under the last heading."""
    (bold, _, reset), size = _style()
    lines = [*wrap(command.help if name else ABOUT, size), "", *_examples(EXAMPLES.get(name, ()))]
    lines += ["", f"{bold}Usage{reset}  {_usage(command, name)}"]
    listed = [(one.name, one.help or "") for one in commands]
    groups: dict[str, list[tuple[str, str]]] = {"Commands": listed} if listed else {}
    for parameter in [*_options(command), *further]:
        groups.setdefault(_group(parameter), []).append(_entry(parameter))
    limits = len(groups.pop(LIMITS, ()))
    if limits:
        groups[LIMITS] = [("streamdump help limits", f"shows the {limits} options that bound memory and effort")]
    groups[OTHER] = [*groups.pop(OTHER, []), ("-h", SHORT_HELP), ("--help", "show this help")]
    return "\n".join([*lines, *_groups(groups)])


def short(command: Any, name: str) -> str:
    """The help of `-h`: usage, the options of `command` that people use most, and where the rest is."""
    (bold, _, reset), size = _style()
    options = [one for one in _options(command) if _group(one) != LIMITS]
    first = [one for option in MOST_USED for one in options if option in one.opts]
    shown = [*first, *(one for one in options if one not in first)][:SHOWN_BY_H]
    full = f"{f'streamdump {name}'.rstrip()} --help"
    rest = f"{full} shows " + (f"all {len(_options(command)) + 2} options" if len(options) > len(shown) else "examples")
    rest += ", examples and the other commands" if not name else " and examples" if len(options) > len(shown) else ""
    lines = [*wrap(command.help if name else ABOUT, size), "", f"{bold}Usage{reset}  {_usage(command, name)}"]
    return "\n".join([*lines, *_groups({"Options": [_entry(one) for one in shown]} if shown else {}), "", *wrap(f"{rest}.", size)])


def limits(commands: Iterable[Any]) -> str:
    """The options that bound memory and effort: those of plain calls, which come first among `commands`, then what others have besides."""
    groups: dict[str, list[tuple[str, str]]] = {}
    known: set[str] = set()
    for command in commands:
        own = [one for one in _options(command) if _group(one) == LIMITS and not known.intersection(one.opts)]
        known.update(name for one in own for name in one.opts)
        if own:
            groups[f"{LIMITS} of {command.name}" if groups else f"{LIMITS} of every command that reads captures"] = [
                _entry(one) for one in own
            ]
    return "\n".join(_groups(groups)[1:])


def topics() -> list[str]:
    """What `streamdump help` has a page for."""
    return sorted(path.stem for path in DOCS.glob("*.md"))


def _options(command: Any) -> list[Any]:
    return [one for one in command.params if one.param_type_name == "option" and not one.hidden]


def _group(parameter: Any) -> str:
    return getattr(parameter, "rich_help_panel", None) or OTHER


def _groups(groups: dict[str, list[tuple[str, str]]]) -> list[str]:
    """The rows of each group below its heading, in two columns; on a narrow terminal, texts are below the options."""
    (bold, _, reset), size = _style()
    wide = max((len(left) for rows in groups.values() for left, _ in rows), default=0)
    beside = size >= wide + 4 + MIN_TEXT
    lines = []
    for heading, rows in groups.items():
        lines += ["", f"{bold}{heading}{reset}"]
        for left, text in rows:
            first, *more = wrap(text, max(10, size - (wide + 4 if beside else 6))) or [""]
            if beside:
                lines.append(f"  {bold}{left:<{wide}}{reset}  {first}".rstrip())
            else:
                lines += [f"  {bold}{left}{reset}", f"      {first}".rstrip()]
            lines += [" " * (wide + 4 if beside else 6) + line for line in more]
    return lines


def _examples(examples: Sequence[tuple[str, str]]) -> list[str]:
    """The calls and what they do, beside each other; below a call that is too long."""
    (bold, dim, reset), size = _style()
    wide = max((len(call) for call, _ in examples if len(call) <= size - EXAMPLE_ROOM), default=0)
    lines = []
    for call, text in examples:
        texts = wrap(text, max(30, size - wide - 4))
        if len(call) > wide:
            lines.append(f"  {bold}{call}{reset}")
        else:
            lines.append(f"  {bold}{call:<{wide}}{reset}  {dim}{texts.pop(0)}{reset}")
        lines += [f"{' ' * (wide + 4)}{dim}{line}{reset}" for line in texts]
    return lines


def _usage(command: Any, name: str) -> str:
    arguments = " ".join(parameter.metavar for parameter in command.params if parameter.param_type_name == "argument")
    usage = f"{f'streamdump {name}'.rstrip()} [OPTIONS] {f'[{arguments}]' if name in ('help', 'protocols') else arguments}".rstrip()
    return usage if name else f"{usage}  |  streamdump COMMAND --help"


def _entry(parameter: Any) -> tuple[str, str]:
    names = ", ".join(parameter.opts)
    metavar = "" if parameter.is_flag else f" {parameter.metavar or ''}".rstrip()
    text = parameter.help or ""
    default = parameter.default
    if not parameter.is_flag and isinstance(default, str):
        text += f" (default {default})"
    return f"{names}{metavar}", text
