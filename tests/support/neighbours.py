"""Conversations of protocols that are none of ours, made up, to measure what detection claims of them.

Most are binary and have a length in front, of which small values look like ours: many frames, small numbers, zeros and short texts.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from struct import pack

from streamdump.detect import Detector
from streamdump.model import SideData, StreamGap, Verdict
from streamdump.protocols import PORTS

Talk = list[tuple[int, bytes]]
"""What the client (0) and the server (1) send, in turn."""

Maker = Callable[[random.Random], Talk]

WORDS = ("orders", "a", "temperature", "host-1.example", "SELECT 1", "user", "guest", "product", "stream-1", "tab\there", "naïve", "")


def word(chance: random.Random) -> bytes:
    return chance.choice(WORDS).encode()


def blob(chance: random.Random, most: int = 60) -> bytes:
    """Bytes of some kind: chance, zeros, small numbers in either order, text."""
    size = chance.randrange(most)
    kind = chance.randrange(5)
    if kind == 0:
        return chance.randbytes(size)
    if kind == 1:
        return bytes(size)
    if kind == 4:
        return (word(chance) * size)[:size]
    order = "<" if kind == 2 else ">"
    return b"".join(pack(f"{order}I", chance.randrange(200)) for _ in range(size // 4 + 1))


def s16(data: bytes) -> bytes:
    return pack(">H", len(data)) + data


def s32(data: bytes) -> bytes:
    return pack(">I", len(data)) + data


def tpkt(data: bytes) -> bytes:
    return pack(">BBH", 3, 0, len(data) + 4) + data


def s7(chance: random.Random) -> Talk:
    talk: Talk = [
        (0, tpkt(bytes.fromhex("11e00000000100c1020100c2020102c0010a"))),
        (1, tpkt(bytes.fromhex("11d00001000100c0010ac1020100c2020102"))),
    ]
    for count in range(chance.randrange(4, 40)):
        number = chance.choice((0, count, count << 8))
        item = pack(">BBBBHHBI", 0x12, 0x0A, 0x10, 2, chance.randrange(1, 40), chance.randrange(9), 0x84, chance.randrange(4_000))[:12]
        ask = pack(">BBHHHH", 0x32, 1, 0, number, 2 + len(item), 0) + b"\x04\x01" + item
        data = b"\xff\x04" + pack(">H", 8 * 6) + blob(chance, 40)
        reply = pack(">BBHHHHBB", 0x32, 3, 0, number, 2, len(data), 0, 0) + b"\x04\x01" + data
        if chance.random() < 0.3:
            # A list of the system's state: lengths, then as many small numbers
            state = b"\xff\x09" + s16(
                pack(">HHHH", 0x11, 0, 2, 1) + b"".join(pack(">H", chance.randrange(300)) for _ in range(chance.randrange(16)))
            )
            ask = pack(">BBHHHH", 0x32, 7, 0, number, 8, 8) + bytes.fromhex("0001120411440100 ff09000400110000")
            reply = pack(">BBHHHH", 0x32, 7, 0, number, 12, len(state)) + bytes.fromhex("000112081284010100000000") + state
        talk += [(0, tpkt(b"\x02\xf0\x80" + ask)), (1, tpkt(b"\x02\xf0\x80" + reply))]
    return talk


def iec104(chance: random.Random) -> Talk:
    talk: Talk = [(0, b"\x68\x04\x07\0\0\0"), (1, b"\x68\x04\x0b\0\0\0")]
    for number in range(chance.randrange(5, 60)):
        side = chance.randrange(2)
        if chance.random() < 0.3:
            talk.append((side, b"\x68\x04\x01\0" + pack("<H", number << 1)))
            continue
        objects = b"".join(pack("<HB", chance.randrange(200), 0) + blob(chance, 8) for _ in range(chance.randrange(1, 8)))
        asdu = (
            bytes((chance.choice((1, 9, 13, 30, 36, 45, 100)), chance.randrange(1, 9), 3, 0)) + pack("<H", chance.randrange(1, 5)) + objects
        )
        talk.append((side, b"\x68" + bytes((4 + len(asdu),)) + pack("<HH", number << 1, number << 1) + asdu))
    return talk


def modbus(chance: random.Random) -> Talk:
    talk: Talk = []
    for number in range(chance.randrange(5, 80)):
        code, unit, count = chance.choice((1, 2, 3, 4, 6, 15, 16)), chance.randrange(3), chance.randrange(1, 40)
        body = pack(">BBHH", unit, code, chance.randrange(300), count)
        data = b"".join(pack(">H", chance.choice((0, 1, 2, chance.randrange(65_536)))) for _ in range(count))
        talk.append((0, pack(">HH", number, 0) + s16(body)))
        talk.append((1, pack(">HH", number, 0) + s16(pack(">BBB", unit, code, len(data)) + data)))
    return talk


def dns(chance: random.Random) -> Talk:
    talk: Talk = []
    for _ in range(chance.randrange(1, 30)):
        ident = chance.randrange(65_536)
        name = b"".join(bytes((len(one),)) + one for one in (word(chance)[:60] or b"x", b"example", b"com")) + b"\0"
        question = name + pack(">HH", chance.choice((1, 28, 15, 252)), 1)
        records = b"".join(b"\xc0\x0c" + pack(">HHI", 1, 1, 300) + s16(chance.randbytes(4)) for _ in range(chance.randrange(20)))
        talk.append((0, s16(pack(">HHHHHH", ident, 0x100, 1, 0, 0, 0) + question)))
        talk.append((1, s16(pack(">HHHHHH", ident, 0x8180, 1, len(records) // 16, 0, 0) + question + records)))
    return talk


def smb(chance: random.Random) -> Talk:
    talk: Talk = []
    for number in range(chance.randrange(3, 40)):
        command = chance.randrange(19)
        for side in (0, 1):
            head = b"\xfeSMB" + pack("<HHIHHIIQIIQ", 64, 1, 0, command, 1, side, 0, number, 0xFEFF, 5, 0x400000000001) + bytes(16)
            body = pack("<H", chance.choice((9, 16, 24, 25, 49, 57))) + blob(chance, 120)
            talk.append((side, s32(head + body)))
    return talk


def rtmp(chance: random.Random) -> Talk:
    talk: Talk = [(0, b"\x03" + bytes(8) + chance.randbytes(1528)), (1, b"\x03" + bytes(8) + chance.randbytes(1528))]
    for _ in range(chance.randrange(5, 40)):
        kind = chance.choice((1, 3, 5, 6, 8, 9, 20))
        body = pack(">I", chance.choice((128, 4096, 2_500_000))) if kind < 7 else blob(chance, 128)
        head = bytes((chance.randrange(2, 8),)) + pack(">I", chance.randrange(5_000))[1:] + pack(">I", len(body))[1:] + bytes((kind,))
        talk.append((chance.randrange(2), head + pack("<I", chance.randrange(2)) + body))
    return talk


def kafka(chance: random.Random) -> Talk:
    talk: Talk = []
    for number in range(chance.randrange(3, 40)):
        key, version = chance.choice((0, 1, 2, 3, 8, 9, 10, 11, 12, 18, 19, 22, 36)), chance.randrange(8)
        names = pack(">I", 1) + s16(word(chance)) + pack(">II", 1, chance.randrange(4)) + blob(chance)
        talk.append((0, s32(pack(">HHI", key, version, number) + s16(b"client-1") + names)))
        talk.append((1, s32(pack(">IH", number, 0) + pack(">I", chance.randrange(3)) + names)))
    return talk


def bgp(chance: random.Random) -> Talk:
    def message(kind: int, body: bytes) -> bytes:
        return b"\xff" * 16 + pack(">HB", len(body) + 19, kind) + body

    talk: Talk = [(side, message(1, pack(">BHH4sB", 4, 65_001, 180, chance.randbytes(4), 0))) for side in (0, 1)]
    for _ in range(chance.randrange(5, 40)):
        prefixes = b"".join(b"\x18" + chance.randbytes(3) for _ in range(chance.randrange(30)))
        path = bytes.fromhex("40010100 400206 0201 0000fde9 400304 0a000001")
        talk.append((chance.randrange(2), message(4, b"") if chance.random() < 0.4 else message(2, pack(">H", 0) + s16(path) + prefixes)))
    return talk


def amqp10(chance: random.Random) -> Talk:
    def frame(channel: int, code: int, body: bytes) -> bytes:
        return s32_of(pack(">BBH", 2, 0, channel) + b"\x00\x53" + bytes((code,)) + b"\xc0" + bytes((len(body) + 1 & 255, 3)) + body)

    def s32_of(data: bytes) -> bytes:
        return pack(">I", len(data) + 4) + data

    talk: Talk = [(0, b"AMQP\x00\x01\x00\x00"), (1, b"AMQP\x00\x01\x00\x00")]
    for _ in range(chance.randrange(5, 50)):
        body = b"\xa1" + bytes((4,)) + b"link" + b"\x43\x52\x01" + blob(chance)
        empty = pack(">IBBH", 8, 2, 0, 0)
        talk.append(
            (chance.randrange(2), empty if chance.random() < 0.2 else frame(chance.randrange(2), chance.randrange(0x10, 0x19), body))
        )
    return talk


def amqp091(chance: random.Random) -> Talk:
    def frame(kind: int, channel: int, body: bytes) -> bytes:
        return pack(">BH", kind, channel) + s32(body) + b"\xce"

    talk: Talk = [
        (0, b"AMQP\x00\x00\x09\x01"),
        (1, frame(1, 0, pack(">HHBB", 10, 10, 0, 9) + s32(blob(chance)) + s32(b"PLAIN") + s32(b"en_US"))),
    ]
    for number in range(chance.randrange(5, 50)):
        side = chance.randrange(2)
        method = pack(">HH", 60, chance.choice((40, 60, 80, 71))) + pack(">Q", number) + bytes((len(word(chance)),)) + word(chance) + b"\0"
        content = frame(2, 1, pack(">HHQH", 60, 0, 5, 0)) + frame(3, 1, b"hello")
        talk.append((side, chance.choice((b"\x08\0\0\0\0\0\0\xce", frame(1, 1, method), frame(1, 1, method) + content))))
    return talk


def cassandra(chance: random.Random) -> Talk:
    talk: Talk = []
    for number in range(chance.randrange(3, 50)):
        query = s32(word(chance) * 3) + pack(">HB", 1, 0)
        rows = pack(">IIII", 2, 1, 2, 0) + s16(b"ks") + s16(b"table") + b"".join(s32(blob(chance, 20)) for _ in range(chance.randrange(9)))
        talk.append((0, pack(">BBHB", 4, 0, number, chance.choice((1, 5, 7, 9, 10, 11))) + s32(query)))
        talk.append((1, pack(">BBHB", 0x84, 0, number, chance.choice((0, 2, 6, 8))) + s32(rows)))
    return talk


def mysql(chance: random.Random) -> Talk:
    def packet(number: int, body: bytes) -> bytes:
        return pack("<I", len(body) | number << 24) + body

    talk: Talk = [(1, packet(0, b"\x0a8.0.36\0" + pack("<I", 11) + chance.randbytes(8) + b"\0\xff\xff\x08\2\0" + bytes(13)))]
    talk.append((0, packet(1, pack("<IIB", 0xFA685, 1 << 24, 255) + bytes(23) + b"root\0\x14" + chance.randbytes(20))))
    for _ in range(chance.randrange(3, 40)):
        talk.append((0, packet(0, bytes((chance.choice((3, 14, 22, 23)),)) + word(chance))))
        rows = [packet(2 + one, b"\x03def" + blob(chance, 30)) for one in range(chance.randrange(5))]
        talk.append((1, chance.choice((packet(1, b"\0\0\0\2\0\0\0"), packet(1, b"\2") + b"".join(rows) + packet(7, b"\xfe\0\0\2\0")))))
    return talk


def postgresql(chance: random.Random) -> Talk:
    def message(kind: bytes, body: bytes) -> bytes:
        return kind + pack(">I", len(body) + 4) + body

    start = pack(">I", 196_608) + b"user\0app\0database\0db\0\0"
    talk: Talk = [(0, pack(">I", len(start) + 4) + start), (1, message(b"R", bytes(4)) + message(b"Z", b"I"))]
    for _ in range(chance.randrange(3, 40)):
        bind = message(b"B", b"\0s1\0" + pack(">HHH", 0, 1, 1) + s32(blob(chance, 20)) + pack(">H", 0))
        rows = [message(b"D", pack(">H", 2) + s32(blob(chance, 20)) + s32(word(chance))) for _ in range(chance.randrange(8))]
        talk.append((0, chance.choice((message(b"Q", word(chance) + b"\0"), bind + message(b"E", bytes(5)) + message(b"S", b"")))))
        talk.append((1, message(b"2", b"") + b"".join(rows) + message(b"C", b"SELECT 1\0") + message(b"Z", b"I")))
    return talk


def ldap(chance: random.Random) -> Talk:
    def ber(tag: int, body: bytes) -> bytes:
        size = bytes((len(body),)) if len(body) < 128 else b"\x84" + pack(">I", len(body))
        return bytes((tag,)) + size + body

    talk: Talk = []
    for number in range(1, chance.randrange(3, 40)):
        ident = ber(2, bytes((number,)))
        search = ber(4, b"dc=example,dc=com") + ber(10, b"\2") + ber(2, b"\0") + ber(0x87, b"objectClass") + ber(0x30, b"")
        entry = ber(4, b"cn=" + word(chance)) + ber(0x30, ber(4, b"mail") + ber(0x31, ber(4, blob(chance))))
        talk.append((0, ber(0x30, ident + ber(0x63, search))))
        talk.append((1, ber(0x30, ident + ber(0x64, entry)) + ber(0x30, ident + ber(0x65, ber(10, b"\0") + ber(4, b"") + ber(4, b"")))))
    return talk


def protobuf(chance: random.Random) -> Talk:
    """Protocol buffers behind a length of four bytes, in one order or the other, or of a varint."""
    kind = chance.choice(("<I", ">I", "varint"))
    talk: Talk = []
    for number in range(chance.randrange(4, 60)):
        body = b"\x08" + bytes((number & 127,)) + b"\x12" + bytes((len(word(chance)),)) + word(chance) + blob(chance)
        if chance.random() < 0.3:
            body = bytes((8, number & 127))
        size = bytes((len(body) & 127 | 128, len(body) >> 7)) if kind == "varint" else pack(kind, len(body))
        talk.append((number & 1, size + body))
    return talk


def fix(chance: random.Random) -> Talk:
    talk: Talk = []
    for number in range(1, chance.randrange(4, 50)):
        body = b"35=%c\x0149=A\x0156=B\x0134=%d\x0158=%s\x01" % (chance.choice(b"0AD8"), number, word(chance))
        talk.append((number & 1, b"8=FIX.4.4\x019=%d\x01%s10=%03d\x01" % (len(body), body, number)))
    return talk


def redis(chance: random.Random) -> Talk:
    talk: Talk = []
    for _ in range(chance.randrange(4, 50)):
        value = blob(chance)
        talk.append((0, b"*3\r\n$3\r\nSET\r\n$3\r\nkey\r\n$%d\r\n%s\r\n" % (len(value), value)))
        talk.append((1, chance.choice((b"+OK\r\n", b":1\r\n", b"$%d\r\n%s\r\n" % (len(value), value)))))
    return talk


def tls(chance: random.Random) -> Talk:
    talk: Talk = []
    for number in range(chance.randrange(4, 40)):
        talk.append((number & 1, b"\x17\x03\x03" + s16(chance.randbytes(chance.randrange(20, 2_000)))))
    return talk


def mqtt(chance: random.Random) -> Talk:
    talk: Talk = [(0, b"\x10\x0e\0\4MQTT\4\2\0\x3c\0\2id"), (1, b"\x20\2\0\0")]
    for number in range(1, chance.randrange(4, 50)):
        body = s16(word(chance) or b"t") + pack(">H", number) + blob(chance)
        talk.append((chance.randrange(2), chance.choice((b"\xc0\0", b"\x40\2" + pack(">H", number), b"\x32" + bytes((len(body),)) + body))))
    return talk


def mongodb(chance: random.Random) -> Talk:
    def document(name: bytes) -> bytes:
        body = b"\x10" + name + b"\0" + pack("<i", 1) + b"\x02type\0" + pack("<i", 4) + b"abc\0" + b"\0"
        return pack("<i", len(body) + 4) + body

    talk: Talk = []
    for number in range(1, chance.randrange(3, 40)):
        for side, name in ((0, b"ping"), (1, b"ok")):
            body = pack("<iii", 2 * number + side, (2 * number) * side, 2013) + pack("<I", 0) + b"\0" + document(name)
            talk.append((side, pack("<i", len(body) + 4) + body))
    return talk


def memcached(chance: random.Random) -> Talk:
    talk: Talk = []
    for number in range(chance.randrange(4, 50)):
        for side, magic in ((0, 0x80), (1, 0x81)):
            key, value = word(chance) * (1 - side), blob(chance)
            talk.append(
                (side, pack(">BBHBBHIIQ", magic, chance.randrange(12), len(key), 0, 0, 0, len(key) + len(value), number, 0) + key + value)
            )
    return talk


def thrift(chance: random.Random) -> Talk:
    talk: Talk = []
    for number in range(chance.randrange(3, 50)):
        for side in (0, 1):
            fields = b"\x08\0\1" + pack(">I", chance.randrange(9)) + b"\x0b\0\2" + s32(word(chance)) + b"\0"
            talk.append((side, s32(pack(">HBB", 0x8001, 0, 1 + side) + s32(b"getItem") + pack(">I", number) + fields)))
    return talk


def zookeeper(chance: random.Random) -> Talk:
    talk: Talk = [
        (0, s32(pack(">IQIQ", 0, 0, 30_000, 0) + s32(bytes(16)) + b"\0")),
        (1, s32(pack(">IIQ", 0, 30_000, 7) + s32(chance.randbytes(16)) + b"\0")),
    ]
    for number in range(1, chance.randrange(4, 50)):
        if chance.random() < 0.4:
            talk += [(0, s32(pack(">iI", -2, 11))), (1, s32(pack(">iQI", -2, number, 0)))]
        else:
            talk += [
                (0, s32(pack(">II", number, chance.randrange(1, 9)) + s32(b"/" + word(chance)) + b"\0")),
                (1, s32(pack(">IQI", number, 900 + number, 0) + blob(chance))),
            ]
    return talk


def sunrpc(chance: random.Random) -> Talk:
    def record(data: bytes) -> bytes:
        return pack(">I", len(data) | 1 << 31) + data

    talk: Talk = []
    for number in range(chance.randrange(3, 40)):
        talk.append((0, record(pack(">IIIIIIIII", number, 0, 2, 100_003, 3, chance.randrange(22), 0, 0, 0) + bytes(4) + s32(blob(chance)))))
        talk.append((1, record(pack(">IIIIII", number, 1, 0, 0, 0, 0) + blob(chance, 100))))
    return talk


def diameter(chance: random.Random) -> Talk:
    talk: Talk = []
    for number in range(chance.randrange(3, 30)):
        for side in (0, 1):
            avps = b"".join(
                pack(">II", chance.randrange(1, 300), 0x4000_0000 | 12) + pack(">I", chance.randrange(3_000))
                for _ in range(chance.randrange(6))
            )
            talk.append((side, pack(">IIIII", 1 << 24 | 20 + len(avps), (0x80, 0)[side] << 24 | 280, 0, number, number) + avps))
    return talk


def smpp(chance: random.Random) -> Talk:
    talk: Talk = []
    for number in range(1, chance.randrange(4, 50)):
        command = chance.choice((2, 4, 5, 9, 0x15))
        body = b"" if command == 0x15 else b"\0\1\1" + word(chance) + bytes(4) + blob(chance)
        talk += [
            (0, pack(">IIII", 16 + len(body), command, 0, number) + body),
            (1, pack(">IIII", 17, command | 1 << 31, 0, number) + b"\0"),
        ]
    return talk


def opcua(chance: random.Random) -> Talk:
    talk: Talk = [
        (0, b"HELF" + pack("<IIIIIII", 32, 0, 65_536, 65_536, 0, 0, 0)),
        (1, b"ACKF" + pack("<IIIIII", 28, 0, 65_536, 65_536, 0, 0)),
    ]
    for number in range(chance.randrange(3, 40)):
        for side in (0, 1):
            body = pack("<IIII", 1, 2, number, number) + b"\1\0" + pack("<H", 631) + blob(chance, 90)
            talk.append((side, b"MSGF" + pack("<I", len(body) + 8) + body))
    return talk


def tds(chance: random.Random) -> Talk:
    talk: Talk = []
    for _ in range(chance.randrange(3, 40)):
        for side, kind in ((0, 1), (1, 4)):
            body = word(chance).decode().encode("utf-16le") + blob(chance)
            talk.append((side, pack(">BBHHBB", kind, 1, len(body) + 8, 0, 1, 0) + body))
    return talk


def dicom(chance: random.Random) -> Talk:
    talk: Talk = []
    for number in range(chance.randrange(3, 30)):
        elements = b"".join(pack("<HHI", 0, tag, 2) + pack("<H", chance.randrange(4)) for tag in (0x100, 0x110, 0x800, 0x900))
        talk.append((number & 1, pack(">BBI", 4, 0, len(elements) + 6) + pack(">IBB", len(elements) + 2, 1, 3) + elements))
    return talk


def http2(chance: random.Random) -> Talk:
    talk: Talk = [(0, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")]
    for number in range(chance.randrange(4, 50)):
        body = blob(chance)
        talk.append(
            (
                chance.randrange(2),
                pack(">I", len(body))[1:] + bytes((chance.choice((0, 1, 4, 6, 8)), chance.randrange(5))) + pack(">I", number) + body,
            )
        )
    return talk


def numbers(chance: random.Random) -> Talk:
    """Arrays of numbers of one width and order, most of them small: samples, images, tables."""
    kind, most = chance.choice(("<H", ">H", "<I", ">I", "<Q", ">Q", "<i", ">d", "<f")), chance.choice((2, 5, 20, 300, 70_000))

    def one() -> bytes:
        value = chance.randrange(most) if chance.random() < 0.8 else 0
        return pack(kind, value % 65_536 if kind[1] == "H" else value)

    return [(chance.randrange(2), b"".join(one() for _ in range(chance.randrange(1, 300)))) for _ in range(chance.randrange(3, 20))]


def framed(chance: random.Random, order: str) -> Talk:
    """A protocol that nobody knows: a size, a number of a command, an id, and values, whatever the widths are."""
    size, command, ident = (chance.choice(("B", "H", "I", "")) for _ in range(3))
    size = chance.choice(("H", "I"))
    counted, answered = chance.choice((0, 2, 4)), chance.choice((0, 1, 0x80, 0x8000))
    talk: Talk = []
    for number in range(chance.randrange(3, 80)):
        for side in (0, 1):
            code = chance.randrange(30) | (answered if side and command in ("H", "I") else 0)
            body = b"".join(pack(order + kind, value) for kind, value in ((command, code), (ident, number & 255)) if kind)
            body += chance.choice((b"", blob(chance), (s16 if order == ">" else s32)(word(chance)), bytes(4)))
            talk.append((side, pack(order + size, len(body) + counted) + body))
    return talk


def big_endian(chance: random.Random) -> Talk:
    return framed(chance, ">")


def little_endian(chance: random.Random) -> Talk:
    return framed(chance, "<")


def chaos(chance: random.Random) -> Talk:
    """Bytes of no kind, and zeros."""
    return [
        (chance.randrange(2), chance.choice((chance.randbytes, bytes))(chance.randrange(1, 600))) for _ in range(chance.randrange(2, 30))
    ]


NEIGHBOURS: tuple[Maker, ...] = (
    s7, iec104, modbus, dns, smb, rtmp, kafka, bgp, amqp10, amqp091, cassandra, mysql, postgresql, ldap, protobuf, fix, redis, tls, mqtt,
    mongodb, memcached, thrift, zookeeper, sunrpc, diameter, smpp, opcua, tds, dicom, http2, numbers, big_endian, little_endian, chaos,
)  # fmt: skip


LIMIT = 1 << 20


class Capture(list[tuple[int, int, bytes]]):
    """What was captured of a talk, as (side, position, bytes); `how` says what is missing, `from_start` whether it has the beginning."""

    how = ""
    from_start = False


def captured(talk: Talk, chance: random.Random) -> Capture:
    """Return what a capture might have of a talk: one side alone or both, from any byte on, with losses, in segments of any size."""
    found = Capture()
    sides = chance.choice(((0, 1), (0, 1), (0,), (1,)))
    found.from_start = len(sides) == 2 and chance.random() < 0.25
    begin = 0 if found.from_start else chance.randrange(len(talk))
    skip = 0 if found.from_start else chance.choice((0, chance.randrange(40)))
    lossy, most = chance.random() < 0.4, chance.choice((20, 100, 1_448, 1 << 20))
    ends = [0, 0]
    for index, (side, data) in enumerate(talk[begin:]):
        if side not in sides:
            continue
        data = data[skip:] if index == 0 else data
        if chance.random() < 0.2 and found and found[-1][0] == side and len(found[-1][2]) + len(data) < most:
            found[-1] = (side, found[-1][1], found[-1][2] + data)
            ends[side] += len(data)
            continue
        for at in range(0, len(data), most):
            piece = data[at : at + most]
            if not (lossy and chance.random() < 0.15):
                found.append((side, ends[side], piece))
            ends[side] += len(piece)
    found.how = f"{'start' if found.from_start else f'message {begin} byte {skip}'}, sides {sides}, {'losses' if lossy else 'all'}"
    return found


def verdict(found: Capture, port: int) -> Verdict:
    """Return what detection makes of a conversation with a server on this port."""
    detector = Detector((40_000, port), found.from_start, LIMIT)
    ends = [0, 0]
    for order, (side, position, data) in enumerate(found, 1):
        mark = (order, order, 0, order * 1_000)
        lost = [StreamGap(side, ends[side], position - ends[side], "lost", *mark)] if position > ends[side] else []
        ends[side] = position + len(data)
        told = detector.add([*lost, SideData(side, position, data, mark)])
        if told is not None:
            return told
    return detector.finish()


def conversations(maker: Maker, count: int, seed: int = 1) -> Iterator[tuple[str, Capture, int]]:
    """Yield conversations of a protocol with the port of their server, which is one of ours in every third: a name that makes one again."""
    for number in range(count):
        name = f"{maker.__name__} {seed} {number}"
        chance = random.Random(name)
        found = captured(maker(chance), chance)
        yield name, found, chance.choice((102, 50_000, chance.choice(sorted(PORTS))))
