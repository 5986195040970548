"""Reads the records of one side of a TLS connection, in the clear and encrypted."""

from __future__ import annotations

from ..model import StreamGap
from . import hello
from .ciphers import HEADER
from .hello import TLS_12, TLS_13
from .missing_keys import BEGINNING, MISSING, MissingKeys
from .record_buffer import Epoch, RecordBuffer
from .records import ALERT, CHANGE, DATA, HEARTBEAT, LARGEST, MESSAGE, sane


class RecordReader(MissingKeys):
    """Advances a side from record to record."""

    from_start: bool

    def _read_clear(self, flow: RecordBuffer) -> None:
        """Read one record in the clear."""
        data, at = flow.data, flow.at
        handshake = self.handshake
        if len(data) - at < HEADER:
            return
        if not sane(data, at):
            reason = "records damaged"
            if flow.round < 0 and not flow.position:
                reason = "answered without TLS" if self.from_start else BEGINNING
                handshake.facts.plain_peer = flow.side if self.from_start else None
            flow.desynchronised = True
            flow.stop(reason, flow.completed_by(flow.move_to(at + HEADER)))
            return
        kind, end = data[at], at + HEADER + int.from_bytes(data[at + 3 : at + 5], "big")
        if len(data) < end:
            return
        if kind == MESSAGE:
            handshake.feed(flow, data[at + HEADER : end], flow.move_to(end))
        elif kind == ALERT:
            handshake.alert(flow, data[at + HEADER : end], flow.move_to(end))
        elif kind in (CHANGE, DATA):
            self._change(flow, kind, end)
            if kind == DATA or flow.blocked:
                return
        if flow.stopped is None:
            flow.move_to(end)
            flow.at = end

    def _change(self, flow: RecordBuffer, kind: int, end: int) -> None:
        """Process a ChangeCipherSpec, which means nothing in TLS 1.3, or the first encrypted record of TLS 1.3."""
        handshake = self.handshake
        if kind == CHANGE and flow.round < 0 and not handshake.is_client(flow):
            # Behind a HelloRetryRequest
            return
        hellos = self.hellos(flow)
        if hellos is None:
            return
        if isinstance(hellos, str) or (kind == DATA and hellos[1].version < TLS_13):
            flow.stop(BEGINNING, flow.completed_by(flow.find(end)))
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
            flow.stop(f"version {hello.version_name(answer.version)} not supported", flow.completed_by(flow.find(end)))

    def _read_sealed(self, flow: RecordBuffer, epoch: Epoch) -> None:
        """Read the available encrypted records, up to one that changes the keys."""
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
        contents: list[tuple[bytes, int, int, int]] = []
        while size - at >= HEADER:
            kind = data[at]
            length = data[at + 3] << 8 | data[at + 4]
            end = at + HEADER + length
            if data[at + 1] != 3 or not CHANGE <= kind <= HEARTBEAT or length > LARGEST:
                flow.mark_lost(base + at, seq, base + at + 1, "skipped")
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
                flow.mark_lost(base + at, seq, base + at, "skipped", True)
                break
            kind, content = found
            count += 1
            if kind == DATA:
                seq += 1
                at = end
                if wanted and content:
                    contents.append((content, first, index, end))
                continue
            flow.emit(contents)
            contents = []
            continues = self._process_content(flow, epoch, kind, content, (first, index, end))
            if kind == CHANGE and flow.epoch is epoch:
                break
            at, seq = end, seq + 1 if continues else 0
            if not continues:
                break
        flow.emit(contents)
        flow.advance(at, seq, index, count)

    def _process_content(self, flow: RecordBuffer, epoch: Epoch, kind: int, content: bytes, where: tuple[int, int, int]) -> bool:
        """Process an encrypted record that is not data; `where`: its first and last segment and its end. Return whether the keys stay the
        same."""
        first, last, end = where
        handshake = self.handshake
        if kind == CHANGE:
            # Later records use the keys of a renegotiation
            flow.index = first
            self._change(flow, kind, end)
            return False
        if kind == MESSAGE:
            handshake.feed(flow, content, last)
            return flow.epoch is epoch and flow.stopped is None
        if kind == ALERT:
            handshake.alert(flow, content, last)
        return True

    def _ready(self, flow: RecordBuffer, epoch: Epoch) -> bool:
        """Return whether a side has its opener, and it is known whether its early data was accepted."""
        if flow.opener is None:
            opener = self.opener(flow, epoch)
            if opener is None:
                return False
            if isinstance(opener, str):
                if epoch.phase in ("early", "handshake") and opener == MISSING:
                    # The traffic keys may still be known.
                    flow.mark_lost(flow.position, 0, flow.position, "skipped" if epoch.phase == "early" else None, True)
                else:
                    flow.stop(opener, flow.completed_by(flow.index))
                return False
            flow.opener = opener
        if epoch.phase != "early":
            return True
        server = self.flows[1 - flow.side]
        if self.handshake.early is not None:
            return self._available_since(flow, self.handshake.early[1])
        if server.stopped is not None:
            return self._available_since(flow, server.stopped_at)
        flow.blocked = True
        return False

    def _skip_records(self, flow: RecordBuffer) -> None:
        """Skip records that cannot be read, but note alerts, in TLS 1.2 even encrypted ones."""
        data, at = flow.data, flow.at
        handshake = self.handshake
        phase = None if flow.epoch is None else flow.epoch.phase
        sealed_12 = phase == "master"
        while not flow.desynchronised and len(data) - at >= HEADER:
            if not sane(data, at):
                flow.desynchronised = True
                break
            kind, end = data[at], at + HEADER + int.from_bytes(data[at + 3 : at + 5], "big")
            if end > len(data):
                break
            if kind == ALERT:
                handshake.alert(flow, b"" if sealed_12 else data[at + HEADER : end], flow.move_to(end))
            elif kind == MESSAGE and sealed_12:
                handshake.finish(flow)
            elif kind == DATA and phase == "handshake":
                handshake.count_skipped(flow, end - at - HEADER, flow.move_to(end))
            flow.move_to(end)
            at = end
        flow.at = len(data) if flow.desynchronised else at

    def _gap(self, flow: RecordBuffer, gap: StreamGap) -> None:
        """Process a gap in the encrypted byte stream."""
        behind = gap.position + (gap.size or 0)
        if flow.stopped is not None:
            flow.desynchronised = True
        elif flow.lost is not None:
            if flow.lost.anywhere:
                flow.lost.seq = flow.lost.passed = 0
            elif flow.lost.reason in (None, "skipped"):
                flow.lost.reason = gap.reason
            flow.lost.framed = flow.lost.tried = False
            flow.lost.scan = behind
        elif flow.epoch is None and flow.round < 0:
            flow.stop(BEGINNING, flow.current)
            flow.desynchronised = True
        else:
            flow.mark_lost(flow.position, flow.seq, behind, gap.reason)
        flow.handshake, flow.skip_bytes = b"", 0
        flow.drop(behind)
