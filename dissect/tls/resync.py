"""Resynchronises after encrypted bytes that cannot be read: lost ones, or records that do not authenticate.

The next record is found by its header and confirmed by authentication, under a possible sequence number and the current or next keys. The
work budget depends on the bytes that a side has sent, never on the clock.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ..model import StreamGap
from .ciphers import HEADER, Opener
from .hello import TLS_12, TLS_13
from .keys import TRAFFIC
from .record_buffer import Epoch, RecordBuffer, SealedGap
from .records import DATA, LARGEST, sane

if TYPE_CHECKING:
    from .decryptor import TlsDecryptor
    from .keys import KeyLog

FREE_WORK, FREE_GUESSES, WORK_A_BYTE = 100_000, 50_000, 1_000
"""Work budget of a side, roughly in nanoseconds: initial, with its handshake captured and without (less, as any number of connections
may lack it), and per byte received."""

LOOK_WORK, TRY_WORK = 8_000, 1_000
"""Work to examine a possible record, and to try one sequence number (plus a quarter per byte)."""

LOST_WORK, GUESSES_WORK = 1_000_000_000, 200_000_000
"""Maximum work after one loss, and for a connection whose start was not captured."""

TRIES = 4_096
"""Sequence numbers tried for one record."""

FRESH = 256
"""Sequence numbers tried under keys that were not in use before."""

SESSIONS = 16
"""Sessions, the latest logged, tried for a connection whose start was not captured."""

GUESSED = ((0x1301, 32), (0x1303, 32), (0x1302, 48))
"""Cipher suites that such a connection may have, and the length of their secrets."""

USUAL = 400
"""Assumed bytes of a record until some of the connection are known."""

FAILURES = 64
"""Records that fail to authenticate, without any success, until the keys are considered wrong."""

WRONG = "keys wrong"

_RECORD = re.compile(rb"[\x14-\x17]\x03[\x00-\x04]", re.S)
_CHANGE = b"\x14\x03\x03\x00\x01\x01"

Candidate = tuple[Epoch, bool]
"""Keys that may protect the records after a loss, and whether they are new."""


def seek(tls: TlsDecryptor, flow: RecordBuffer, lost: SealedGap) -> None:
    """Search the available bytes of a side for the next record that authenticates."""
    candidates = _candidates(tls, flow)
    if candidates is None:
        return
    data, base = flow.data, flow.base
    at = lost.scan - base
    # No bytes follow directly
    final = tls.final or bool(flow.queue and isinstance(flow.queue[0], StreamGap))
    while True:
        if not lost.framed:
            match = _RECORD.search(data, at)
            if match is None:
                at = max(at, len(data) - 2)
                break
            at = match.start()
        if len(data) - at < HEADER:
            break
        if not sane(data, at):
            lost.framed = False
            at += 1
            continue
        end = at + HEADER + (data[at + 3] << 8 | data[at + 4])
        complete = end <= len(data)
        if not complete:
            if not final:
                break
            # Only now is it known to stay incomplete
            flow.floor = max(flow.floor, flow.current)
        if complete and not lost.tried:
            if _authenticate(tls, flow, lost, candidates, at, end) or flow.stopped is not None or flow.blocked:
                return
            lost.tried = True
        follows = len(data) - end >= HEADER
        if complete and lost.framed and not follows and not tls.final:
            # The next header shows whether records are still in step
            break
        lost.tried = False
        if complete:
            # Later finds also depend on the failure of this one
            flow.floor = max(flow.floor, flow.completed_at[flow.find(end + HEADER if lost.framed and follows else end)])
        if complete and lost.framed and (not follows or sane(data, end)):
            lost.passed += 1
            if data[at] == DATA:
                lost.sealed += end - at
                lost.counted += 1
            flow.failed += 1
            if not flow.opened and flow.failed >= FAILURES and not lost.anywhere:
                flow.stop(WRONG, flow.completed_by(flow.find(end)))
                return
            at = end
        else:
            lost.framed = False
            at += 1
        lost.scan = base + at
    lost.scan = base + at
    flow.at = min(at, len(data))


def _candidates(tls: TlsDecryptor, flow: RecordBuffer) -> list[Candidate] | None:
    """Return the possible keys, the likeliest first; None if the side has to wait, or stops."""
    epoch = flow.epoch
    if flow.lost is not None and flow.lost.anywhere:
        if flow.lost.candidates is None:
            flow.lost.candidates = tls.keys.cached_guesses(_guesses)
        return flow.lost.candidates
    if epoch is None:
        hellos = tls.hellos(flow)
        if hellos is None:
            return None
        if not isinstance(hellos, tuple) or hellos[1].version < TLS_12:
            flow.stop("beginning not captured", flow.floor)
            return None
        offer, answer = hellos
        first = Epoch("master", answer.cipher, offer.random, answer.random, answer.encrypt_then_mac)
        return [(first, True)] if answer.version == TLS_12 else [(first.then("handshake"), True), (first.then("traffic"), True)]
    if epoch.phase == "master":
        return [(epoch, False)]
    if epoch.phase == "traffic":
        return [(epoch, False), (epoch.then("traffic", epoch.generation + 1), True)]
    between = [(epoch.then("handshake"), True)] if epoch.phase == "early" else []
    return [(epoch, False), *between, (epoch.then("traffic"), True)]


def _guesses(keys: KeyLog) -> list[Candidate]:
    """Return the possible keys of a connection without a captured handshake: only TLS 1.3, which needs nothing but the secret."""
    return [
        (Epoch("traffic", cipher, session, b"", server=bool(server)), True)
        for session, sizes in keys.sessions_at_start(TRAFFIC, SESSIONS)
        for server, size in enumerate(sizes)
        for cipher, fitting in GUESSED
        if size == fitting
    ]


def _authenticate(tls: TlsDecryptor, flow: RecordBuffer, lost: SealedGap, candidates: list[Candidate], at: int, end: int) -> bool:
    """Return whether the record data[at:end] authenticates under a candidate, which is then in use."""
    data = flow.data
    if not candidates:
        return False
    if candidates[0][0].phase == "master":
        if flow.epoch is None and data[at:end] == _CHANGE:
            _enter(tls, flow, candidates[0][0], flow.completed_by(flow.move_to(end)))
            flow.at = end
            return True
    elif data[at] != DATA:
        return False
    flow.spent += LOOK_WORK
    free, most = (FREE_GUESSES, GUESSES_WORK) if lost.anywhere else (FREE_WORK, LOST_WORK)
    # Lost bytes add nothing to the budget
    budget = free + WORK_A_BYTE * (flow.base + end - flow.missing)
    if flow.spent > budget or flow.spent > lost.spent + most:
        flow.limited += not lost.limited
        flow.stop("beginning not captured" if lost.anywhere else "too much was lost", flow.completed_by(flow.find(end)))
        return False
    passed = flow.base + at - lost.since
    cost = TRY_WORK + (end - at) // 4
    missing = []
    guesses = (budget - flow.spent) // 2 // cost // len(candidates)
    if lost.anywhere and not guesses:
        return False
    for epoch, fresh in candidates:
        opener = tls.opener(flow, epoch)
        if opener is None or flow.stopped is not None:
            return False
        if isinstance(opener, str):
            missing.append(opener)
            continue
        tries = min(TRIES, max(budget - flow.spent, 0) // 4 // cost)
        if not lost.limited and not lost.framed and tries < min(passed // opener.min_record, FRESH if fresh else TRIES):
            lost.limited = True
            flow.limited += 1
        for seq in _numbers(flow, lost, opener, passed, fresh, guesses if lost.anywhere else tries):
            flow.spent += cost
            if opener.open(data, at, end, seq) is not None:
                _report_gap(tls, flow, lost, epoch, opener, seq, passed, end)
                _enter(tls, flow, epoch, flow.completed_by(flow.find(end)))
                flow.opener, flow.seq = opener, seq
                flow.at = at
                return True
    if lost.anywhere:
        lost.seq += guesses
    elif len(missing) == len(candidates):
        flow.stop(missing[0], flow.completed_by(flow.find(end)))
    return False


def _numbers(flow: RecordBuffer, lost: SealedGap, opener: Opener, passed: int, fresh: bool, tries: int) -> Iterator[int]:
    """Yield the possible sequence numbers of a record, the likeliest first."""
    if lost.anywhere:
        yield from range(lost.seq + lost.passed, lost.seq + lost.passed + tries)
        return
    if lost.framed:
        if fresh:
            yield 0
        else:
            yield lost.seq + lost.passed
            if lost.passed and not flow.opened:
                yield lost.seq
        return
    most = passed // opener.min_record
    if fresh:
        yield from range(min(most + 1, FRESH, tries))
        return
    least = max(1, -(-passed // (LARGEST + HEADER)))
    usual = flow.opened_bytes // flow.opened if flow.opened else USUAL
    middle = min(max(passed // max(usual, 1), least), most)
    for step in range(tries):
        number = middle + (step + 1) // 2 * (1 if step % 2 else -1)
        if least <= number <= most:
            yield lost.seq + number
        elif number < least and 2 * middle - number > most:
            return


def _report_gap(
    tls: TlsDecryptor, flow: RecordBuffer, lost: SealedGap, epoch: Epoch, opener: Opener, seq: int, passed: int, end: int
) -> None:
    """Output a gap for bytes missing before the record data[at:end]."""
    flow.skipped += lost.passed if lost.reason == "skipped" else 0
    size = _missing_bytes(tls, flow, lost, epoch, opener, seq, passed) if lost.reason is not None and passed else 0
    if size == 0:
        return
    flow.gap(size, lost.reason, flow.marks[flow.find(end)])
    if lost.reason == "skipped" and lost.passed:
        flow.pending_notes.append(f"{lost.passed} TLS record{'' if lost.passed == 1 else 's'} before this did not authenticate")


def _missing_bytes(
    tls: TlsDecryptor, flow: RecordBuffer, lost: SealedGap, epoch: Epoch, opener: Opener, seq: int, passed: int
) -> int | None:
    """Return the bytes of content missing before a record with this number, from the length of the encrypted bytes; None if unknown."""
    before = flow.epoch
    if before is not epoch:
        # The first record under TLS 1.2 keys ends the handshake
        first = seq <= (epoch.phase == "master")
        return 0 if first and (before is None or before.phase not in ("traffic", "early")) else None
    if epoch.phase not in ("traffic", "master"):
        return 0
    # A TLS 1.3 server starts with session tickets, so its first records may not be data
    tickets = epoch.phase == "traffic" and not flow.decrypted and not tls.handshake.is_client(flow)
    if opener.overhead is None or tickets or (epoch.phase == "master" and not lost.seq and not lost.framed):
        return None
    sealed, count = (lost.sealed, lost.counted) if lost.framed else (passed, seq - lost.seq)
    size = sealed - count * opener.overhead
    return size if 0 <= size <= count * LARGEST else None


def _enter(tls: TlsDecryptor, flow: RecordBuffer, epoch: Epoch, current: int) -> None:
    """Continue a side under these keys, confirmed by the packet `current`."""
    handshake = tls.handshake
    flow.lost = None
    if flow.epoch is epoch:
        return
    if epoch.server is not None and flow.epoch is None:
        handshake.facts.client = 1 - flow.side if epoch.server else flow.side
        handshake.facts.version, handshake.facts.cipher = TLS_13, epoch.cipher
        flow.enter(epoch)
        return
    if flow.epoch is None:
        handshake.begin_sealed(flow)
    flow.enter(epoch)
    if epoch.phase == "traffic":
        handshake.finish(flow)
        if handshake.early is None and not handshake.is_client(flow):
            # Its decision on early data was lost
            handshake.early = True, current
