"""`streamdump scrub IN OUT`: a capture that can be published."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from streamdump.errors import UsageError
from streamdump.options import Options
from streamdump.render.terminal import those
from streamdump.units import count

from ..exits import ExitCode, code_of
from ..output import say
from ..parameters import Members, gathers

if TYPE_CHECKING:
    from streamdump.scrub.run import ScrubOptions, ScrubResult

PLURAL = {
    "body": "bodies",
    "name in bodies": "names in bodies",
    "address": "addresses",
    "comment, name or key": "comments, names and keys",
    "copy of a secret": "copies of secrets",
}

OVERWRITTEN = "Also overwrite"

WORDS = {
    "secret": "secret",
    "echo": "copy of a secret",
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
        typer.Argument(metavar="OUT", help="the copy, in the same format, uncompressed; replaces OUT", show_default=False),
    ],
    payloads: Annotated[
        bool, typer.Option("--payloads", help="bodies of messages, and conversations of other protocols", rich_help_panel=OVERWRITTEN)
    ] = False,
    names: Annotated[
        bool, typer.Option("--names", help="names of streams, users and hosts, and free text", rich_help_panel=OVERWRITTEN)
    ] = False,
    addresses: Annotated[
        bool, typer.Option("--addresses", help="network and hardware addresses, and host names", rich_help_panel=OVERWRITTEN)
    ] = False,
    echoes: Annotated[
        bool,
        typer.Option("--overwrite-echoes", help="copies of 8 bytes or more of a secret, wherever they occur", rich_help_panel=OVERWRITTEN),
    ] = False,
    foreign: Annotated[
        bool, typer.Option("--leave-foreign", help="write OUT even if it has packets in tunnels, which are not decoded")
    ] = False,
    options: Annotated[Options, Members("decode_as", "verbs", "dictionaries")],
) -> int:
    """Copy a capture without passwords and tokens, so that it can be published."""
    from pathlib import Path

    from streamdump.scrub.files import spooled
    from streamdump.scrub.run import ScrubOptions, scrub

    if target == "-":
        raise UsageError("OUT -: the copy can only be written to a file; name one")
    wanted = ScrubOptions(payloads, names, addresses, echoes, foreign)
    if source == "-":
        with spooled(sys.stdin.buffer) as file:
            done = scrub(file, Path(target), wanted, options, "standard input")
    else:
        done = scrub(source, Path(target), wanted, options)
    _report(target, done, wanted)
    return ExitCode.DONE if done.error is None else code_of(done.error)


def _report(target: str, done: ScrubResult, wanted: ScrubOptions) -> None:
    """What was done, and what stays."""
    parts = [_several(number, WORDS[what]) for what, number in sorted(done.parts.items(), key=lambda one: list(WORDS).index(one[0]))]
    if done.sealed and wanted.payloads:
        parts.append("encrypted data of TLS")
    say(f"{target}: {count(done.packets, 'packet')}, {count(done.messages, 'message')}; overwritten: {', '.join(parts) or 'nothing'}")
    packed = f"{count(done.packed, 'message')} with compressed bytes, which were overwritten completely and can no longer be decompressed"
    sizes = ", ".join(map(str, sorted(done.unsought)))
    notes = those(
        (done.packed, packed),
        (done.left_out, f"{_several(done.left_out, 'comment, name or key')} of the file removed"),
        (done.unread, f"{count(done.unread, 'conversation')} of other protocols left unchanged; --payloads overwrites them"),
        (done.sealed, f"{count(done.sealed, 'conversation')} in TLS {_sealed(wanted)}; TLS keys removed"),
        (done.foreign, f"{count(done.foreign, 'packet')} without TCP left unchanged; --payloads empties them"),
        (done.unsought, f"secrets of {sizes} bytes are too short to search for copies of them"),
        (done.error, f"{done.error}; everything complete was written"),
    )
    for text in notes:
        say(text)


def _sealed(wanted: ScrubOptions) -> str:
    """What became of TLS."""
    names = wanted.names or wanted.addresses
    if not wanted.payloads and not names:
        return "left unchanged"
    inside = "overwritten" if wanted.payloads else "kept (--payloads overwrites it)"
    around = "overwritten" if names else "kept (--names overwrites them)"
    return f"still recognizable: encrypted data {inside}, names and certificates of the handshake {around}"


def _several(number: int, what: str) -> str:
    return f"{number:,} {what if number == 1 else PLURAL.get(what, f'{what}s')}"
