"""`streamdump scrub IN OUT`: a capture that can be published."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from streamdump.errors import UsageError
from streamdump.options import Options
from streamdump.render.terminal import count, those

from ..exits import ExitCode
from ..output import say
from ..parameters import Members, gathers

if TYPE_CHECKING:
    from streamdump.scrub.run import ScrubOptions, ScrubResult

PLURAL = {
    "body": "bodies",
    "name in bodies": "names in bodies",
    "address": "addresses",
    "comment, name or key": "comments, names and keys",
    "echo of a secret": "echoes of secrets",
}

OVERWRITTEN = "What is overwritten besides secrets"

WORDS = {
    "secret": "secret",
    "echo": "echo of a secret",
    "payload": "body",
    "key": "name in bodies",
    "name": "name",
    "text": "text",
    "address": "address",
}


@gathers
def scrub(
    *,
    source: Annotated[str, typer.Argument(metavar="IN", help="the capture; - is standard input", show_default=False)],
    target: Annotated[
        str,
        typer.Argument(metavar="OUT", help="where it goes, in the same format, unpacked; replaces OUT", show_default=False),
    ],
    payloads: Annotated[
        bool, typer.Option("--payloads", help="bodies of messages, and conversations of other protocols", rich_help_panel=OVERWRITTEN)
    ] = False,
    names: Annotated[
        bool, typer.Option("--names", help="names of streams, users, hosts..., and prose", rich_help_panel=OVERWRITTEN)
    ] = False,
    addresses: Annotated[
        bool, typer.Option("--addresses", help="network and hardware addresses, and names of hosts", rich_help_panel=OVERWRITTEN)
    ] = False,
    echoes: Annotated[
        bool,
        typer.Option("--overwrite-echoes", help="8 bytes or more of a secret wherever they stand", rich_help_panel=OVERWRITTEN),
    ] = False,
    foreign: Annotated[bool, typer.Option("--leave-foreign", help="write OUT though packets in tunnels are not read")] = False,
    options: Annotated[Options, Members("decode_as", "verbs")],
) -> int:
    """A copy of a capture that can be published: passwords and tokens overwritten."""
    from pathlib import Path

    from streamdump.scrub.files import spooled
    from streamdump.scrub.run import ScrubOptions, scrub

    if target == "-":
        raise UsageError("OUT - : the copy is written to a file only, which is whole or not there")
    wanted = ScrubOptions(payloads, names, addresses, echoes, foreign)
    if source == "-":
        with spooled(sys.stdin.buffer) as file:
            done = scrub(file, Path(target), wanted, options, "standard input")
    else:
        done = scrub(source, Path(target), wanted, options)
    _report(target, done, wanted)
    return ExitCode.DONE if done.error is None else ExitCode.UNREADABLE


def _report(target: str, done: ScrubResult, wanted: ScrubOptions) -> None:
    """What was done, and what stays."""
    parts = [_several(number, WORDS[what]) for what, number in sorted(done.parts.items(), key=lambda one: list(WORDS).index(one[0]))]
    if done.sealed and wanted.payloads:
        parts.append("what is sealed in TLS")
    say(f"{target}: {count(done.packets, 'packet')}, {count(done.messages, 'message')}; overwritten: {', '.join(parts) or 'nothing'}")
    packed = f"{count(done.packed, 'message')} with compressed bytes, which were overwritten as a whole and do not unpack any more"
    sizes = ", ".join(map(str, sorted(done.unsought)))
    notes = those(
        (done.packed, packed),
        (done.left_out, f"{_several(done.left_out, 'comment, name or key')} of the file left out"),
        (done.unread, f"{count(done.unread, 'conversation')} of other protocols stay as they are; --payloads overwrites them"),
        (done.sealed, f"{count(done.sealed, 'conversation')} in TLS {_sealed(done.sealed > 1, wanted)}; keys of TLS are left out"),
        (done.foreign, f"{count(done.foreign, 'packet')} without TCP stay as they are; --payloads empties them"),
        (done.unsought, f"not searched for elsewhere, for they may be any bytes: secrets of {sizes} bytes"),
        (done.error, f"{done.error}; what is whole was written"),
    )
    for text in notes:
        say(text)


def _sealed(several: bool, wanted: ScrubOptions) -> str:
    """What became of TLS."""
    names = wanted.names or wanted.addresses
    if not wanted.payloads and not names:
        return "stay as they are" if several else "stays as it is"
    inside = "overwritten" if wanted.payloads else "stays (--payloads overwrites it)"
    around = "overwritten" if names else "stay (--names overwrites them)"
    return f"{'are' if several else 'is'} still told as TLS: what is sealed {inside}, names and certificates of the handshake {around}"


def _several(number: int, what: str) -> str:
    return f"{number:,} {what if number == 1 else PLURAL.get(what, f'{what}s')}"
