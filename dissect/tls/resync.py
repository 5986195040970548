"""Finds the way back after sealed bytes that cannot be read: lost ones, or records that do not authenticate.

The next record is found by its header, and proven by its authentication under one of the sequence numbers that may be next, or under keys
that may have come into use meanwhile. How much work that may be depends on the bytes a side has sent, never on the clock.
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
"""What a side may spend, about in nanoseconds: at first, with its handshake captured and without, which is little since any number of
connections may have it; and for each byte that came."""

LOOK_WORK, TRY_WORK = 8_000, 1_000
"""What it costs to look at what may be a record, and to try one number; the latter also a quarter for each of its bytes."""

LOST_WORK, GUESSES_WORK = 1_000_000_000, 200_000_000
"""What may be spent after one loss, and on a connection whose beginning was not captured, until it is given up."""

TRIES = 4_096
"""Sequence numbers tried for one record."""

FRESH = 256
"""Sequence numbers tried under keys that were not in use before."""

SESSIONS = 16
"""So many of the sessions logged last may be that of a connection whose beginning was not captured."""

GUESSED = ((0x1301, 32), (0x1303, 32), (0x1302, 48))
"""Cipher suites that such a connection may have, and the length of their secrets."""

USUAL = 400
"""Bytes of a record, as long as nothing is known of a connection's."""

FAILURES = 64
"""So many records that do not authenticate under a key that opened none: it is not theirs."""

WRONG = "keys wrong"

_RECORD = re.compile(rb"[\x14-\x17]\x03[\x00-\x04]", re.S)
_CHANGE = b"\x14\x03\x03\x00\x01\x01"

Way = tuple[Epoch, bool]
"""Keys that records after a loss may be sealed under, and whether these were not in use before."""


def seek(stage: TlsDecryptor, flow: RecordBuffer, lost: SealedGap) -> None:
    """Look for the next record of a side that authenticates, as far as there are bytes."""
    ways = _ways(stage, flow)
    if ways is None:
        return
    data, base = flow.data, flow.base
    at = lost.scan - base
    # Nothing follows directly on the bytes at hand
    final = stage.final or bool(flow.queue and isinstance(flow.queue[0], StreamGap))
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
        whole = end <= len(data)
        if not whole:
            if not final:
                break
            # That it will not be whole was not certain before
            flow.floor = max(flow.floor, flow.current)
        if whole and not lost.tried:
            if _prove(stage, flow, lost, ways, at, end) or flow.stopped is not None or flow.blocked:
                return
            lost.tried = True
        follows = len(data) - end >= HEADER
        if whole and lost.framed and not follows and not stage.final:
            # Whether records are still in step shows at the next header
            break
        lost.tried = False
        if whole:
            # What is found from here on was not certain before this was known not to be it
            flow.floor = max(flow.floor, flow.certain_at[flow.find(end + HEADER if lost.framed and follows else end)])
        if whole and lost.framed and (not follows or sane(data, end)):
            lost.passed += 1
            if data[at] == DATA:
                lost.sealed += end - at
                lost.counted += 1
            flow.failed += 1
            if not flow.opened and flow.failed >= FAILURES and not lost.anywhere:
                flow.stop(WRONG, flow.certain(flow.find(end)))
                return
            at = end
        else:
            lost.framed = False
            at += 1
        lost.scan = base + at
    lost.scan = base + at
    flow.at = min(at, len(data))


def _ways(stage: TlsDecryptor, flow: RecordBuffer) -> list[Way] | None:
    """The ways that there are, the likeliest first; None where the side has to wait, or stops."""
    epoch = flow.epoch
    if flow.lost is not None and flow.lost.anywhere:
        if flow.lost.ways is None:
            flow.lost.ways = stage.keys.guessed(_guesses)
        return flow.lost.ways
    if epoch is None:
        hellos = stage.hellos(flow)
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


def _guesses(keys: KeyLog) -> list[Way]:
    """What the records of a connection may be sealed under of which no handshake was captured: TLS 1.3 alone needs nothing from it but
    the secret."""
    return [
        (Epoch("traffic", cipher, session, b"", server=bool(server)), True)
        for session, sizes in keys.at_start(TRAFFIC, SESSIONS)
        for server, size in enumerate(sizes)
        for cipher, fitting in GUESSED
        if size == fitting
    ]


def _prove(stage: TlsDecryptor, flow: RecordBuffer, lost: SealedGap, ways: list[Way], at: int, end: int) -> bool:
    """Whether the record data[at:end] authenticates on one of the ways, which then is gone."""
    data = flow.data
    if not ways:
        return False
    if ways[0][0].phase == "master":
        if flow.epoch is None and data[at:end] == _CHANGE:
            _enter(stage, flow, ways[0][0], flow.certain(flow.reach(end)))
            flow.at = end
            return True
    elif data[at] != DATA:
        return False
    flow.spent += LOOK_WORK
    free, most = (FREE_GUESSES, GUESSES_WORK) if lost.anywhere else (FREE_WORK, LOST_WORK)
    # Lost bytes pay for nothing
    budget = free + WORK_A_BYTE * (flow.base + end - flow.missing)
    if flow.spent > budget or flow.spent > lost.spent + most:
        flow.limited += not lost.limited
        flow.stop("beginning not captured" if lost.anywhere else "too much was lost", flow.certain(flow.find(end)))
        return False
    passed = flow.base + at - lost.since
    cost = TRY_WORK + (end - at) // 4
    missing = []
    guesses = (budget - flow.spent) // 2 // cost // len(ways)
    if lost.anywhere and not guesses:
        return False
    for epoch, fresh in ways:
        opener = stage.opener(flow, epoch)
        if opener is None or flow.stopped is not None:
            return False
        if isinstance(opener, str):
            missing.append(opener)
            continue
        tries = min(TRIES, max(budget - flow.spent, 0) // 4 // cost)
        if not lost.limited and not lost.framed and tries < min(passed // opener.least, FRESH if fresh else TRIES):
            lost.limited = True
            flow.limited += 1
        for seq in _numbers(flow, lost, opener, passed, fresh, guesses if lost.anywhere else tries):
            flow.spent += cost
            if opener.open(data, at, end, seq) is not None:
                _tell(stage, flow, lost, epoch, opener, seq, passed, end)
                _enter(stage, flow, epoch, flow.certain(flow.find(end)))
                flow.opener, flow.seq = opener, seq
                flow.at = at
                return True
    if lost.anywhere:
        lost.seq += guesses
    elif len(missing) == len(ways):
        flow.stop(missing[0], flow.certain(flow.find(end)))
    return False


def _numbers(flow: RecordBuffer, lost: SealedGap, opener: Opener, passed: int, fresh: bool, tries: int) -> Iterator[int]:
    """The sequence numbers that a record may have, the likeliest first."""
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
    most = passed // opener.least
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


def _tell(stage: TlsDecryptor, flow: RecordBuffer, lost: SealedGap, epoch: Epoch, opener: Opener, seq: int, passed: int, end: int) -> None:
    """Hand on that bytes are missing before the record data[at:end]."""
    flow.skipped += lost.passed if lost.reason == "skipped" else 0
    size = _missing(stage, flow, lost, epoch, opener, seq, passed) if lost.reason is not None and passed else 0
    if size == 0:
        return
    flow.gap(size, lost.reason, flow.marks[flow.find(end)])
    if lost.reason == "skipped" and lost.passed:
        flow.told.append(f"{lost.passed} TLS record{'' if lost.passed == 1 else 's'} before this did not authenticate")


def _missing(stage: TlsDecryptor, flow: RecordBuffer, lost: SealedGap, epoch: Epoch, opener: Opener, seq: int, passed: int) -> int | None:
    """How many bytes are missing before a record that has this number: what the length of sealed bytes tells of them, or None."""
    before = flow.epoch
    if before is not epoch:
        # The first record of all under the keys of TLS 1.2 ends the handshake
        first = seq <= (epoch.phase == "master")
        return 0 if first and (before is None or before.phase not in ("traffic", "early")) else None
    if epoch.phase not in ("traffic", "master"):
        return 0
    # A server of TLS 1.3 begins with session tickets: among its first records nobody knows what is data
    tickets = epoch.phase == "traffic" and not flow.plain and not stage.handshake.is_client(flow)
    if opener.overhead is None or tickets or (epoch.phase == "master" and not lost.seq and not lost.framed):
        return None
    sealed, count = (lost.sealed, lost.counted) if lost.framed else (passed, seq - lost.seq)
    size = sealed - count * opener.overhead
    return size if 0 <= size <= count * LARGEST else None


def _enter(stage: TlsDecryptor, flow: RecordBuffer, epoch: Epoch, current: int) -> None:
    """A side goes on under these keys, which the packet `current` proved."""
    handshake = stage.handshake
    flow.lost = None
    if flow.epoch is epoch:
        return
    if epoch.server is not None and flow.epoch is None:
        handshake.client = 1 - flow.side if epoch.server else flow.side
        handshake.facts.client = handshake.client
        handshake.facts.version, handshake.facts.cipher = TLS_13, epoch.cipher
        flow.enter(epoch)
        return
    if flow.epoch is None:
        handshake.begin_sealed(flow)
    flow.enter(epoch)
    if epoch.phase == "traffic":
        handshake.finish(flow)
        if handshake.early is None and not handshake.is_client(flow):
            # Its word on early data is among what was lost
            handshake.early = True, current
