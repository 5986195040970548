"""`streamdump conversations FILE...`: who talked to whom."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from cli.keys import key_logs
from cli.live import LiveRun, Table, Wanted, check_without
from cli.options import (
    AnswerTime,
    AutoStop,
    BareLimit,
    Buffer,
    CaptureFilter,
    ClosedTime,
    Colour,
    DecodeAs,
    EmbedKeys,
    Files,
    FrameLimit,
    IdleTime,
    Interfaces,
    Json,
    KeyLogs,
    KeysLimit,
    KeysTotal,
    OpenLimit,
    OpenTotal,
    Promiscuous,
    ReadFiles,
    RingBuffer,
    Snap,
    TrackedLimit,
    UndecidedLimit,
    UndecidedTotal,
    ValuesLimit,
    Verbs,
    WaitingLimit,
    WaitingTime,
    WaitingTotal,
    Where,
    WriteTo,
    library_options,
    packet_limit,
)
from cli.output import columns, palette, write, write_text
from cli.run import Asked, Run, about, blocks
from dissect.errors import Report

if TYPE_CHECKING:
    from collections.abc import Callable

    from dissect.model import ConversationRow, Options, Record


AT_ONCE = 1024
"""Rows that are written together as JSON; there may be millions."""


def conversations(
    files: Files = None,
    read_files: ReadFiles = None,
    json: Json = False,
    where: Where = None,
    stop: AutoStop = None,
    decode_as: DecodeAs = None,
    verbs: Verbs = None,
    keylog: KeyLogs = None,
    interfaces: Interfaces = None,
    capture_filter: CaptureFilter = None,
    buffer: Buffer = "32M",
    snap: Snap = "262144",
    promiscuous: Promiscuous = False,
    write_to: WriteTo = None,
    embed_keys: EmbedKeys = False,
    ring: RingBuffer = None,
    answer_time: AnswerTime = "30",
    idle_time: IdleTime = "3600",
    closed_time: ClosedTime = "30",
    tracked_limit: TrackedLimit = "20000",
    undecided_limit: UndecidedLimit = "1M",
    undecided_total: UndecidedTotal = "64M",
    waiting_limit: WaitingLimit = "16M",
    waiting_total: WaitingTotal = "128M",
    waiting_time: WaitingTime = "10",
    frame_limit: FrameLimit = "64M",
    open_limit: OpenLimit = "65536",
    open_total: OpenTotal = "100000",
    values_limit: ValuesLimit = "1000000",
    bare_limit: BareLimit = "1000000",
    keys_limit: KeysLimit = "1M",
    keys_total: KeysTotal = "64M",
    colour: Colour = "auto",
) -> int:
    """Who talked to whom, in which protocol, how sure that is, and how it went."""
    names = [*(read_files or ()), *(files or ())]
    wanted = Wanted(interfaces or (), capture_filter, buffer, snap, promiscuous, write_to, ring, stop, embed_keys)
    options = library_options(
        decode_as,
        undecided_limit,
        undecided_total,
        waiting_limit,
        waiting_total,
        waiting_time,
        frame_limit,
        open_limit,
        open_total,
        values_limit,
        bare_limit,
        verbs,
        answer_time=answer_time,
        idle_time=idle_time,
        closed_time=closed_time,
        tracked_limit=tracked_limit,
        keylog=key_logs(keylog, bool(interfaces)),
        keys_limit=keys_limit,
        keys_total=keys_total,
    )
    asked = None if where is None else Asked(where, options)
    if wanted.interfaces:
        return _live(wanted, names, options, json, colour, asked)
    check_without(wanted)
    with Run(names, options, packet_limit(stop), colour, prints=False) as run:
        run.asked = asked
        run.each(_noting(run, asked))
        if json:
            each = (row for rows in run.inspector.each_rows() for row in rows)
            while rows := list(islice(each, AT_ONCE)):
                _show(run, rows, json, colour)
        else:
            _show(run, run.inspector.rows(), json, colour)
        return run.end(table=True)


def _live(wanted: Wanted, names: list[str], options: Options, json: bool, colour: str, asked: Asked | None) -> int:
    """While it goes on a table on a terminal; in JSON each conversation when it is forgotten, and all others at the end."""
    with LiveRun(wanted, names, options, colour) as run:
        run.asked = asked
        note = _noting(run, asked)
        gone: list[ConversationRow] = []
        if json or asked is not None:
            run.leaving = gone.extend

        def leave() -> None:
            # Not before the last records of those that leave were looked at
            if json and gone:
                _show(run, gone, json, colour)
            if asked is not None:
                asked.forget(gone)
            gone.clear()

        if json:
            run.tick = leave
            run.each(note)
            leave()
        else:
            with Table(run, leave) as table:
                run.each(lambda records: note(records) or table.take(records))
        _show(run, run.inspector.rows(), json, colour)
        return run.end(table=True)


def _noting(run: Run | LiveRun, asked: Asked | None) -> Callable[[list[Record]], bool]:
    """Remembers which conversations have a record that is asked for; never enough."""

    def note(records: list[Record]) -> bool:
        if asked is not None:
            asked.note(records, lambda record, what: run.tell(about(record, what)))
        return False

    return note


def _show(run: Run | LiveRun, rows: list[ConversationRow], json: bool, colour: str) -> None:
    if run.asked is not None:
        rows = run.asked.rows(rows)

    def failed(row: ConversationRow, what: str) -> None:
        run.tell(Report(what, "it is not shown", None, None, row.conversation, " - ".join(row.endpoints)))

    if json:
        from dissect.render.jsonl import encode

        for block in blocks(encode, rows, failed):
            write(block)
    elif rows:
        from dissect.render.conversations import plain, table

        width = columns()

        def text(rows: list[ConversationRow]) -> str:
            return plain(rows) if width is None else table(rows, width, palette(colour))

        # A table is made of all rows together
        parts = [*blocks(lambda rows: (rows, text(rows)), rows, failed)]
        whole = [row for some, _ in parts for row in some]
        write_text(parts[0][1] if len(whole) == len(rows) else text(whole) if whole else "")
