"""`streamdump conversations FILE...`: who talked to whom."""

from __future__ import annotations

import sys

from cli.options import (
    AutoStop,
    Colour,
    DecodeAs,
    Files,
    FrameLimit,
    Json,
    OpenLimit,
    ReadFiles,
    UndecidedLimit,
    Verbs,
    WaitingLimit,
    WaitingTime,
    WaitingTotal,
    library_options,
    packet_limit,
)
from cli.output import coloured, columns, write, write_text
from cli.run import Run


def conversations(
    files: Files = None,
    read_files: ReadFiles = None,
    json: Json = False,
    stop: AutoStop = None,
    decode_as: DecodeAs = None,
    verbs: Verbs = None,
    undecided_limit: UndecidedLimit = "1M",
    waiting_limit: WaitingLimit = "16M",
    waiting_total: WaitingTotal = "256M",
    waiting_time: WaitingTime = "10",
    frame_limit: FrameLimit = "64M",
    open_limit: OpenLimit = "65536",
    colour: Colour = "auto",
) -> int:
    """Who talked to whom, in which protocol, how sure that is, and how it went."""
    options = library_options(decode_as, undecided_limit, waiting_limit, waiting_total, waiting_time, frame_limit, open_limit, verbs)
    with Run([*(read_files or ()), *(files or ())], options, packet_limit(stop), colour) as run:
        run.each(lambda _: False)
        rows = run.inspector.rows()
        if json:
            from dissect.render.jsonl import encode

            write(encode(rows))
        elif rows:
            from dissect.render.conversations import plain, table

            width = columns()
            write_text(plain(rows) if width is None else table(rows, width, coloured(colour, sys.stdout)))
        return run.end(table=True)
