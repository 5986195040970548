"""Reads the records of one side of a TLS connection, in the clear and sealed."""

from __future__ import annotations

from ..model import StreamGap
from . import hello
from .ciphers import HEADER
from .hello import TLS_12, TLS_13
from .missing_keys import BEGINNING, MISSING, MissingKeys
from .record_buffer import Epoch, RecordBuffer
from .records import ALERT, CHANGE, DATA, HEARTBEAT, LARGEST, MESSAGE, sane


class RecordReader(MissingKeys):
    """Takes a side from record to record."""

    from_start: bool

    def _clear(self, flow: RecordBuffer) -> None:
        """Read one record before anything is sealed."""
        data, at = flow.data, flow.at
        handshake = self.handshake
        if len(data) - at < HEADER:
            return
        if not sane(data, at):
            reason = "records damaged"
            if flow.round < 0 and not flow.position:
                reason = "answered without TLS" if self.from_start else BEGINNING
                handshake.facts.plain_peer = flow.side if self.from_start else None
            flow.deaf = True
            flow.stop(reason, flow.certain(flow.reach(at + HEADER)))
            return
        kind, end = data[at], at + HEADER + int.from_bytes(data[at + 3 : at + 5], "big")
        if len(data) < end:
            return
        if kind == MESSAGE:
            handshake.take(flow, data[at + HEADER : end], flow.reach(end))
        elif kind == ALERT:
            handshake.alert(flow, data[at + HEADER : end], flow.reach(end))
        elif kind in (CHANGE, DATA):
            self._change(flow, kind, end)
            if kind == DATA or flow.blocked:
                return
        if flow.stopped is None:
            flow.reach(end)
            flow.at = end

    def _change(self, flow: RecordBuffer, kind: int, end: int) -> None:
        """A ChangeCipherSpec, which says nothing in TLS 1.3, or a first sealed record, which there is in TLS 1.3 only."""
        handshake = self.handshake
        if kind == CHANGE and flow.round < 0 and not handshake.is_client(flow):
            # Behind a HelloRetryRequest
            return
        hellos = self.hellos(flow)
        if hellos is None:
            return
        if isinstance(hellos, str) or (kind == DATA and hellos[1].version < TLS_13):
            flow.stop(BEGINNING, flow.certain(flow.find(end)))
            return
        offer, answer = hellos
        if answer.version < TLS_13:
            if offer.session and offer.session == answer.session:
                handshake.facts.resumed = True
            phase = "master"
        elif kind == CHANGE:
            return
        else:
            phase = "early" if handshake.is_client(flow) and offer.early_data and not handshake.facts.retried else "handshake"
        handshake.begin_sealed(flow)
        flow.enter(Epoch(phase, answer.cipher, offer.random, answer.random, answer.encrypt_then_mac))
        if answer.version < TLS_12:
            flow.stop(f"version {hello.version_name(answer.version)} not supported", flow.certain(flow.find(end)))

    def _sealed(self, flow: RecordBuffer, epoch: Epoch) -> None:
        """Read sealed records: all that are at hand, unless one of them changes how the next are read."""
        data, at = flow.data, flow.at
        handshake = self.handshake
        if len(data) - at < HEADER or not self._ready(flow, epoch):
            return
        assert flow.opener is not None
        newer = epoch.phase != "master"
        refused = epoch.phase == "early" and handshake.early is not None and not handshake.early[0]
        wanted = epoch.phase != "handshake" and not refused
        open_record, seq = flow.opener.open, flow.seq
        starts, base, index = flow.starts, flow.base, flow.index
        size, last = len(data), len(starts) - 1
        count = 0
        said: list[tuple[bytes, int, int, int]] = []
        while size - at >= HEADER:
            kind = data[at]
            length = data[at + 3] << 8 | data[at + 4]
            end = at + HEADER + length
            if data[at + 1] != 3 or not CHANGE <= kind <= HEARTBEAT or length > LARGEST:
                flow.lose(base + at, seq, base + at + 1, "skipped")
                break
            if end > size:
                break
            while index < last and starts[index + 1] <= base + at:
                index += 1
            first = index
            while index < last and starts[index + 1] < base + end:
                index += 1
            if newer and kind != DATA:
                if kind == ALERT:
                    handshake.alert(flow, data[at + HEADER : end], index)
                at = end
                continue
            found = open_record(data, at, end, seq)
            if found is None:
                index = first
                flow.lose(base + at, seq, base + at, "skipped", True)
                break
            kind, content = found
            count += 1
            if kind == DATA:
                seq += 1
                at = end
                if wanted and content:
                    said.append((content, first, index, end))
                continue
            flow.emit(said)
            said = []
            goes_on = self._says(flow, epoch, kind, content, (first, index, end))
            if kind == CHANGE and flow.epoch is epoch:
                break
            at, seq = end, seq + 1 if goes_on else 0
            if not goes_on:
                break
        flow.emit(said)
        flow.went(at, seq, index, count)

    def _says(self, flow: RecordBuffer, epoch: Epoch, kind: int, content: bytes, where: tuple[int, int, int]) -> bool:
        """Take in a sealed record that is no data, whose first and last segment and whose end `where` says; whether the next ones are read
        as this one was."""
        first, last, end = where
        handshake = self.handshake
        if kind == CHANGE:
            # What follows is sealed under the keys of a renegotiation
            flow.index = first
            self._change(flow, kind, end)
            return False
        if kind == MESSAGE:
            handshake.take(flow, content, last)
            return flow.epoch is epoch and flow.stopped is None
        if kind == ALERT:
            handshake.alert(flow, content, last)
        return True

    def _ready(self, flow: RecordBuffer, epoch: Epoch) -> bool:
        """Whether there is what opens a side's records, and it is known what becomes of them."""
        if flow.opener is None:
            opener = self.opener(flow, epoch)
            if opener is None:
                return False
            if isinstance(opener, str):
                if epoch.phase in ("early", "handshake") and opener == MISSING:
                    # Those of the traffic may be known all the same.
                    flow.lose(flow.position, 0, flow.position, "skipped" if epoch.phase == "early" else None, True)
                else:
                    flow.stop(opener, flow.certain(flow.index))
                return False
            flow.opener = opener
        if epoch.phase != "early":
            return True
        server = self.flows[1 - flow.side]
        if self.handshake.early is not None:
            return self._known(flow, self.handshake.early[1])
        if server.stopped is not None:
            return self._known(flow, server.stopped_at)
        flow.blocked = True
        return False

    def _walk(self, flow: RecordBuffer) -> None:
        """Pass over records that are not read; alerts show all the same, in TLS 1.2 even sealed ones."""
        data, at = flow.data, flow.at
        handshake = self.handshake
        phase = None if flow.epoch is None else flow.epoch.phase
        sealed_12 = phase == "master"
        while not flow.deaf and len(data) - at >= HEADER:
            if not sane(data, at):
                flow.deaf = True
                break
            kind, end = data[at], at + HEADER + int.from_bytes(data[at + 3 : at + 5], "big")
            if end > len(data):
                break
            if kind == ALERT:
                handshake.alert(flow, b"" if sealed_12 else data[at + HEADER : end], flow.reach(end))
            elif kind == MESSAGE and sealed_12:
                handshake.finish(flow)
            elif kind == DATA and phase == "handshake":
                handshake.pass_over(flow, end - at - HEADER, flow.reach(end))
            flow.reach(end)
            at = end
        flow.at = len(data) if flow.deaf else at

    def _gap(self, flow: RecordBuffer, gap: StreamGap) -> None:
        """Sealed bytes are missing."""
        behind = gap.position + (gap.size or 0)
        if flow.stopped is not None:
            flow.deaf = True
        elif flow.lost is not None:
            if flow.lost.anywhere:
                flow.lost.seq = flow.lost.passed = 0
            elif flow.lost.reason in (None, "skipped"):
                flow.lost.reason = gap.reason
            flow.lost.framed = flow.lost.tried = False
            flow.lost.scan = behind
        elif flow.epoch is None and flow.round < 0:
            flow.stop(BEGINNING, flow.current)
            flow.deaf = True
        else:
            flow.lose(flow.position, flow.seq, behind, gap.reason)
        flow.handshake, flow.passing = b"", 0
        flow.drop(behind)
