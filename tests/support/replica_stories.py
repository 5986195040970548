"""Captures of replicas of Apache Iggy, made frame by frame: `python -m tests.support.replica_stories` writes them."""

from __future__ import annotations

from collections.abc import Callable
from struct import pack

from tests.support import replicas as r
from tests.support.frames import ACK, FIN, PSH, RST, START_NS, SYN, Packet, ethernet, ip4, pcap, tcp
from tests.support.pages import ROOT

GOLDEN = ROOT / "captures" / "golden" / "iggy"
MS = 1_000_000
SEGMENT = 1_448
SECRET = "$argon2id$v=19$m=19456,t=2,p=1$bWFkZS1mb3ItYS10ZXN0$c3RvcmVkLWhhc2gtbWFkZS11cA"
OTHER = "$argon2id$v=19$m=19456,t=2,p=1$b3RoZXItdGVzdC1zYWx0$YW5vdGhlci1zdG9yZWQtaGFzaA"


class Wire:
    """Packets of one capture, each a step later than the one before."""

    def __init__(self) -> None:
        self.packets: list[Packet] = []
        self.now = START_NS

    def wait(self, milliseconds: float) -> None:
        self.now += int(milliseconds * MS)

    def put(self, link: Link, side: int, data: bytes, flags: int) -> None:
        ports = link.ports if side == 0 else link.ports[::-1]
        one, two = link.addresses if side == 0 else link.addresses[::-1]
        seq = link.places[side] - (1 if flags & SYN else 0)
        segment = tcp(data, sport=ports[0], dport=ports[1], seq=seq, ack=link.places[1 - side], flags=flags)
        self.packets.append(Packet(ethernet(ip4(segment, src=one, dst=two)), self.now))
        self.now += 200_000
        link.places[side] += len(data) + (1 if flags & FIN else 0)


class Link:
    """A connection of two replicas: 0 dials."""

    def __init__(self, wire: Wire, one: int, two: int, *, syn: bool = True) -> None:
        self.wire = wire
        self.replicas = one, two
        self.addresses = bytes([192, 0, 2, 10 + one]), bytes([192, 0, 2, 10 + two])
        self.ports = 41_000 + 10 * one + two, 9_190 + two
        self.places = [1_000 + 100 * one, 5_000 + 100 * two]
        if syn:
            wire.put(self, 0, b"", SYN)
            wire.put(self, 1, b"", SYN | ACK)
            wire.put(self, 0, b"", ACK)

    def hello(self) -> None:
        self.send(0, r.frame("ReplicaHello", replica=self.replicas[0]))

    def send(self, side: int, *frames: bytes) -> None:
        """Frames in one go, in segments of the usual size."""
        data = b"".join(frames)
        for at in range(0, len(data), SEGMENT):
            self.wire.put(self, side, data[at : at + SEGMENT], ACK | PSH)

    def lose(self, side: int, data: bytes) -> None:
        self.places[side] += len(data)

    def end(self, side: int, how: int = FIN) -> None:
        self.wire.put(self, side, b"", how | ACK)
        if how == FIN:
            self.wire.put(self, 1 - side, b"", FIN | ACK)
            self.wire.put(self, side, b"", ACK)


def metadata(chained: bytes = bytes(16)) -> list[bytes]:
    """Prepares of commands on streams, topics and users, each with the checksum of the one before."""
    bodies = [
        (128, r.s8("orders")),
        (64, r.create_topic_resolved(1, "placed", 2, 1)),
        (65, pack("<I", 16) + r.ident(1) + r.ident(1)[:6] + pack("<I", 1) + pack("<I", 1) + pack("<IQ", 2, r.group_of(1, 1, 2))),
        (141, r.create_user("wanda", SECRET)),
        (144, r.change_password(2, OTHER, SECRET)),
        (146, r.s8("ci") + pack("<Q", 3_600_000_000)),
        (139, r.ident(1) + r.ident("placed") + r.s8("readers")),
        (148, r.ident(1) + r.ident(1) + r.ident("readers")),
        (67, r.ident(1) + r.ident(1) + pack("<Q", 1) + pack("<QQ", 0xC1, 0) + pack("<I", 0)),
        (145, r.ident(2) + b"\x00"),
        (1, b""),
        (3, b""),
    ]
    made: list[bytes] = []
    for op, (operation, body) in enumerate(bodies, 1):
        made.append(r.prepare(op, operation, body, parent=chained))
        chained = made[-1][:16]
    return made


def primary() -> Wire:
    """Replica 0 leads, dials replica 1, and replicates metadata and one partition."""
    wire = Wire()
    link = Link(wire, 0, 1)
    link.hello()
    for number, one in enumerate(metadata(), 1):
        link.send(0, one)
        wire.wait(1.5)
        link.send(1, r.ok(one, 1))
        wire.wait(0.5)
        link.send(0, r.commit(number))
    group = r.group_of(1, 1, 0)
    parent = bytes(16)
    for op in (1, 2, 3):
        payloads = [b"order %d of %d" % (index, op) for index in range(3)]
        one = r.prepare(op, 160, r.batch(0, 3 * (op - 1), payloads), group=group, parent=parent)
        parent = one[:16]
        link.send(0, one)
        wire.wait(2)
        link.send(1, r.ok(one, 1))
        link.send(0, r.commit(op, group=group))
    large = r.prepare(4, 160, r.batch(0, 9, [b"x" * 3_000, bytes(range(256)) * 8]), group=group, parent=parent)
    stored = r.prepare(5, 161, r.offset(1, 1, 0, 8), group=group, parent=large[:16])
    cut = r.prepare(6, 68, r.ident(1) + r.ident(1) + pack("<IQ", 0, 4), group=group, parent=stored[:16])
    link.send(0, large, stored, cut)
    wire.wait(3)
    link.send(1, r.ok(large, 1), r.ok(stored, 1), r.ok(cut, 1))
    wire.wait(500)
    link.send(0, r.commit(12), r.commit(6, group=group))
    return wire


def authenticated() -> Wire:
    """A handshake with nonces; the dialled replica leads, so Prepares come from it."""
    wire = Wire()
    link = Link(wire, 0, 1)
    link.send(0, r.frame("ReplicaHello", replica=0, view=4, nonce=bytes(range(1, 33))))
    link.send(1, r.frame("ReplicaChallenge", replica=1, view=4, nonce=bytes(range(64, 96)), mac=bytes(range(128, 160))))
    link.send(0, r.frame("ReplicaFinish", replica=0, view=4, mac=bytes(range(200, 232))))
    for op, one in enumerate((r.prepare(op, 128, r.s8(f"s{op}"), view=4, replica=1) for op in range(41, 47)), 41):
        link.send(1, one)
        wire.wait(1)
        link.send(0, r.ok(one, 0))
        link.send(1, r.commit(op, view=4, replica=1))
    return wire


def chain() -> Wire:
    """Three replicas: Prepares pass from 0 to 1 to 2, and 1 and 2 each answer straight to 0."""
    wire = Wire()
    first, second, third = Link(wire, 0, 1), Link(wire, 0, 2), Link(wire, 1, 2)
    for link in (first, second, third):
        link.hello()
    for group in (r.METADATA, r.group_of(2, 0, 1)):
        for op in range(1, 6):
            body = r.s8(f"stream-{op}") if group == r.METADATA else r.batch(1, op - 1, [b"message %d" % op])
            one = r.prepare(op, 128 if group == r.METADATA else 160, body, group=group)
            first.send(0, one)
            third.send(0, one)
            first.send(1, r.ok(one, 1))
            wire.wait(0.7)
            second.send(1, r.ok(one, 2))
            for link in (first, second):
                link.send(0, r.commit(op, group=group))
    for link in (first, second):
        wire.wait(500)
        link.send(0, r.commit(5), r.commit(5, group=r.group_of(2, 0, 1)))
    return wire


def view_change() -> Wire:
    """Replica 0 falls silent; 1 and 2 change to view 1, which 1 leads, and it sends a Prepare again."""
    wire = Wire()
    down, link = Link(wire, 0, 1), Link(wire, 1, 2)
    down.hello()
    link.hello()
    sent = [r.prepare(op, 128, r.s8(f"s{op}")) for op in (1, 2, 3)]
    for one in sent:
        down.send(0, one)
        link.send(0, one)
        down.send(1, r.ok(one, 1))
    down.send(0, r.commit(2))
    down.end(0, RST)
    wire.wait(5_000)
    link.send(0, r.frame("StartViewChange", view=1, replica=1, group=r.METADATA))
    link.send(1, r.frame("StartViewChange", view=1, replica=2, group=r.METADATA))
    heads = sent[2][:256] + sent[1][:256]
    link.send(1, r.frame("DoViewChange", heads, view=1, replica=2, op=3, commit=2, group=r.METADATA, present=0b11))
    wire.wait(2)
    link.send(0, r.frame("StartView", heads, view=1, replica=1, op=3, commit=2, group=r.METADATA))
    again = r.prepare(3, 128, r.s8("s3"), view=1)
    link.send(0, again)
    wire.wait(250)
    link.send(0, again)
    wire.wait(4)
    link.send(1, r.ok(again, 2))
    link.send(0, r.commit(3, view=1, replica=1))
    wire.wait(20)
    link.send(1, r.frame("RequestStartView", view=1, replica=2, group=r.group_of(1, 0, 0), incarnation=0xFEED))
    link.send(0, r.frame("StartView", view=1, replica=1, op=9, commit=9, group=r.group_of(1, 0, 0), incarnation=0xFEED))
    return wire


def repair() -> Wire:
    """A replica that was away asks for Prepares, then for the state; logins are handed on to the primary."""
    wire = Wire()
    link = Link(wire, 0, 1)
    link.hello()
    group = r.group_of(1, 1, 0)
    link.send(1, r.frame("RequestPrepares", replica=1, nonce=0xA1, from_op=2, to_op=4, group=r.METADATA))
    served = [r.frame("RepairPrepare", one[256:], **values) for one, values in map(_again, metadata()[1:4])]
    link.send(0, *served)
    link.send(0, r.frame("RepairDone", nonce=0xA1, op=4, group=r.METADATA))
    link.send(1, r.frame("RequestPrepares", replica=1, nonce=0xA2, from_op=1, to_op=900, group=group))
    link.send(0, r.frame("RangeEvicted", nonce=0xA2, op=700, group=group))
    link.send(1, r.frame("RequestStateTransfer", replica=1, nonce=0xA3, group=group))
    link.send(0, r.frame("StateTransferTarget", nonce=0xA3, group=group, commit_op=912, commit_max=915, transient=1))
    wire.wait(100)
    link.send(1, r.frame("RequestStateTransfer", replica=1, nonce=0xA4, group=group))
    log, offsets = bytes(range(256)) * 9, b"\x07" * 40
    parts = r.manifest((2, 912, log), (3, 912, offsets))
    link.send(0, r.frame("StateTransferTarget", parts, nonce=0xA4, group=group, commit_op=912, commit_max=915, available=1))
    for artifact, data in ((0, log), (1, offsets)):
        for at in range(0, len(data), 1_024):
            asked = {"nonce": 0xA4, "offset": at, "group": group, "artifact": artifact}
            link.send(1, r.frame("RequestStateChunk", replica=1, length=1_024, **asked))
            wire.wait(1)
            link.send(0, r.frame("StateChunk", data[at : at + 1_024], **asked))
    link.send(1, r.frame("ForwardRegister", replica=1, client=0xC7, nonce=0xB1, user=2))
    link.send(0, r.frame("ForwardRegisterResult", nonce=0xB1, client=0xC7, epoch=3, watermark=17))
    link.send(
        1, r.frame("Request", r.s8("from-a-backup"), replica=1, client=0xC7, request=1, operation=128, session=17, user=2, group=r.METADATA)
    )
    link.send(1, r.frame("ForwardLogout", replica=1, client=0xC7, nonce=0xB2, session=17, request=2))
    link.send(0, r.frame("ForwardLogoutResult", nonce=0xB2, client=0xC7, commit=18))
    link.send(0, r.commit(18))
    return wire


def _again(one: bytes) -> tuple[bytes, dict[str, bytes]]:
    """The values of a Prepare, for the frame that repairs with it."""
    places = r.COMMANDS["Prepare"][1]
    return one, {name: one[at : at + width] for name, (at, width) in places.items()}


def refused() -> Wire:
    """Replicas of two clusters: one says so, the other, without authentication, closes."""
    wire = Wire()
    link = Link(wire, 0, 1)
    link.send(0, r.frame("ReplicaHello", replica=0, nonce=bytes(range(1, 33)), cluster=0xBAD))
    link.send(1, r.frame("ReplicaChallenge", replica=1, status=2))
    link.end(1)
    other = Link(wire, 0, 2)
    other.send(0, r.frame("ReplicaHello", replica=0, cluster=0xBAD))
    other.end(1)
    return wire


def damaged() -> Wire:
    """Wrong seals, wrong checksums of bodies and batches, a body of another build, unknown commands and operations."""
    wire = Wire()
    link = Link(wire, 0, 1)
    link.hello()
    good = r.prepare(1, 128, r.s8("one"))
    link.send(0, good)
    link.send(1, _changed(r.ok(good, 1), 168, 7))
    link.send(0, _changed(r.commit(1), 152, 9))
    link.send(0, _changed(r.prepare(2, 128, r.s8("two")), 258, ord("T")))
    group = r.group_of(3, 1, 2)
    link.send(0, _changed(r.prepare(1, 160, r.batch(2, 0, [b"first", b"second"]), group=group), -3, 0x58))
    link.send(0, r.prepare(3, 141, b"\x07another layout of users, with a " + SECRET.encode()))
    link.send(0, r.prepare(4, 99, b"what no build known here has"))
    unknown = bytearray(r.frame("Commit", b"with a body", sealed=False))
    unknown[60] = 44
    link.send(0, bytes(unknown))
    lost = r.prepare(5, 128, r.s8("lost"))
    link.lose(0, lost)
    last = r.prepare(6, 128, r.s8("last"))
    link.send(0, last, r.commit(5))
    link.send(1, r.ok(lost, 1), r.ok(last, 1))
    return wire


def _changed(data: bytes, at: int, value: int) -> bytes:
    changed = bytearray(data)
    changed[at] = value
    return bytes(changed)


def midstream() -> Wire:
    """A connection without its beginning: the first bytes are within a Prepare."""
    wire = Wire()
    link = Link(wire, 1, 2, syn=False)
    group = r.group_of(4, 0, 0)
    before = r.prepare(8, 160, r.batch(0, 7, [b"y" * 900]), group=group, view=2, replica=2)
    link.send(1, before[400:])
    for op in range(9, 13):
        one = r.prepare(op, 160, r.batch(0, op, [b"z" * 50]), group=group, view=2, replica=2)
        link.send(1, one)
        wire.wait(1)
        link.send(0, r.ok(one, 1))
        link.send(1, r.commit(op, group=group, view=2, replica=2))
    return wire


STORIES: dict[str, Callable[[], Wire]] = {
    "replica-primary": primary,
    "replica-authenticated": authenticated,
    "replica-chain": chain,
    "replica-view-change": view_change,
    "replica-repair": repair,
    "replica-refused": refused,
    "replica-damaged": damaged,
    "replica-midstream": midstream,
}


def write() -> None:
    for name, make in STORIES.items():
        (GOLDEN / f"{name}.pcap").write_bytes(pcap(make().packets))


if __name__ == "__main__":
    write()
