"""Packed captures: told by content, read as a stream, damage anywhere."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import random
import struct
import sys
from collections.abc import Callable

import cramjam
import pytest
import xxhash

from streamdump.capture import blocks as blocks_module
from streamdump.capture import unpack
from streamdump.capture.files import open_capture
from streamdump.errors import CaptureError, MissingCodec
from tests.support.frames import Packet, ethernet, ip4, parse, pcap, pcapng, reader, segments, tcp

RANDOM = random.Random(3)
PACKETS = [Packet(ethernet(ip4(tcp(RANDOM.randbytes(n % 900) + bytes(n % 400), seq=n)))) for n in range(400)]
PLAIN = pcap(PACKETS, nano=True)


def lz4_head(descriptor: bytes) -> bytes:
    return bytes.fromhex("04224d18") + descriptor + bytes((xxhash.xxh32_intdigest(descriptor) >> 8 & 0xFF,))


def lz4_frame(data: bytes, flags: int = 0x60, size: int = 4, block: int = 1 << 16) -> bytes:
    """An lz4 frame of blocks that are compressed one by one."""
    parts = [lz4_head(bytes((flags, size << 4)) + (len(data).to_bytes(8, "little") if flags & 8 else b""))]
    for at in range(0, len(data), block):
        packed = bytes(cramjam.lz4.compress_block(data[at : at + block], store_size=False))
        if len(packed) < block:
            parts.append(struct.pack("<I", len(packed)) + packed)
        else:
            parts.append(struct.pack("<I", len(data[at : at + block]) | 1 << 31) + data[at : at + block])
        parts.append(struct.pack("<I", xxhash.xxh32_intdigest(parts[-1][4:])) if flags & 0x10 else b"")
    return b"".join([*parts, bytes(4), struct.pack("<I", xxhash.xxh32_intdigest(data)) if flags & 4 else b""])


PACK: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "zstd": lambda data: bytes(cramjam.zstd.compress(data)),
    "lz4": lambda data: bytes(cramjam.lz4.compress(data)),
    "lz4 in blocks of 64 KiB": lz4_frame,
    "lz4 with all that a frame can have": lambda data: lz4_frame(data, 0x7C, 7, 1 << 20),
    "xz": lzma.compress,
    "bzip2": bz2.compress,
}
MEMBERS = ("gzip", "zstd", "lz4", "xz", "bzip2")
SKIPPED_FRAME = bytes.fromhex("5a2a4d18 05000000") + b"notes"


@pytest.mark.parametrize("container", [pcap, pcapng])
@pytest.mark.parametrize("name", PACK)
def test_every_packing_of_every_container_gives_the_same_segments(name: str, container: Callable[..., bytes]) -> None:
    expected = segments(PLAIN)
    assert len(expected) == 400
    assert segments(PACK[name](container(PACKETS) if container is pcapng else PLAIN)) == expected
    assert expected == parse(PACKETS)[0]


@pytest.mark.parametrize("name", MEMBERS)
def test_members_follow_one_another(name: str) -> None:
    pack = PACK[name]
    packed = pack(PLAIN[:20]) + pack(PLAIN[20:50_000]) + pack(b"") + pack(PLAIN[50_000:])
    assert segments(packed) == segments(PLAIN)


@pytest.mark.parametrize("name", ["gzip", "xz", "bzip2"])
def test_zero_bytes_behind_and_between_members_are_padding(name: str) -> None:
    pack = PACK[name]
    assert segments(pack(PLAIN[:5000]) + bytes(100_000) + pack(PLAIN[5000:]) + bytes(1_000_000)) == segments(PLAIN)


@pytest.mark.parametrize("name", ["zstd", "lz4"])
def test_frames_that_carry_something_else_are_skipped(name: str) -> None:
    pack = PACK[name]
    packed = SKIPPED_FRAME + pack(PLAIN[:5000]) + SKIPPED_FRAME * 2 + pack(PLAIN[5000:]) + SKIPPED_FRAME
    assert segments(packed) == segments(PLAIN)


def unpacked(frame: bytes) -> bytes:
    pieces = unpack.packing(blocks_module.RawInput(io.BytesIO(frame), "test"))
    assert pieces is not None
    return b"".join(pieces)


def linked(*blocks: bytes) -> bytes:
    """An lz4 frame of compressed blocks that may refer to those before; the first stands as it is."""
    first, *others = blocks
    parts = [struct.pack("<I", len(first) | 1 << 31) + first, *(struct.pack("<I", len(one)) + one for one in others)]
    return b"".join([lz4_head(bytes.fromhex("40 70")), *parts, bytes(4)])


def test_lz4_blocks_that_refer_to_those_before() -> None:
    """Written by hand: token, literals, distance and length of the match, and the five literals that end a block."""
    data = random.Random(9).randbytes(70_000)
    far = bytes.fromhex("1f 41 ffff 08 50") + b"12345"  # "A" and 27 bytes from 65,535 before
    near = bytes.fromhex("00 0100 50") + b"67890"  # the byte before, four times
    output = data + b"A"
    output += output[-65_535:][:27] + b"12345"
    output += output[-1:] * 4 + b"67890"
    output += b"B" + (output + b"B")[-65_535:][:27] + b"12345"
    assert unpacked(linked(data, far, near, far.replace(b"A", b"B"))) == output


@pytest.mark.parametrize(("code", "most"), [(4, 1 << 16), (5, 1 << 18), (6, 1 << 20), (7, 1 << 22)])
def test_lz4_blocks_are_no_larger_than_their_frame_says(code: int, most: int) -> None:
    head = lz4_head(bytes((0x60, code << 4)))
    assert len(unpacked(head + struct.pack("<I", most | 1 << 31) + bytes(most) + bytes(4))) == most
    with pytest.raises(blocks_module.Damaged, match=f"a block of {most + 1} bytes"):
        unpacked(head + struct.pack("<I", (most + 1) | 1 << 31) + bytes(most + 1) + bytes(4))


def test_lz4_block_of_a_few_literals_after_others() -> None:
    assert unpacked(linked(b"some data before", b"\x30abc", b"\x10d")) == b"some data beforeabcd"


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 14, 15, 16, 269, 270, 271, 65_535])
def test_lz4_history_of_any_size(size: int) -> None:
    window = random.Random(size).randbytes(size)
    block = b"\x00" + struct.pack("<H", max(size, 4)) + b"\x50" + b"12345"  # four bytes from where the window starts
    assert unpacked(linked(window, block)) == window + window.rjust(4, b"\0")[:4] + b"12345"


def whole_packets(packed: bytes) -> tuple[list[int], CaptureError]:
    """The sequence numbers before the error, and the error."""
    opened = open_capture(io.BytesIO(packed), name="packed")
    numbers: list[int] = []
    with pytest.raises(CaptureError) as caught:
        for batch in opened:
            numbers += [packet.number for packet in batch]
    assert list(opened) == []
    return numbers, caught.value


@pytest.mark.parametrize("name", PACK)
def test_truncation_gives_all_whole_packets_and_one_error(name: str) -> None:
    packed = PACK[name](PLAIN)
    for share in (0.1, 0.5, 0.9):
        cut = packed[: int(len(packed) * share)]
        try:
            numbers, error = whole_packets(cut)
        except CaptureError as found:  # of the packings that give nothing before their first block is whole
            assert "cut off" in str(found)
            continue
        assert numbers == list(range(1, len(numbers) + 1))
        assert "cut off" in str(error)
        assert error.file == "packed"
        assert error.packet == (len(numbers) or None)
        ends = 24 + sum(16 + len(one.data) for one in PACKETS[: len(numbers)])
        assert error.offset == ends


def test_truncated_gzip_gives_what_gzip_gives() -> None:
    packed = gzip.compress(PLAIN)[:-40_000]
    raw = gzip.GzipFile(fileobj=io.BytesIO(packed))
    got = b""
    with pytest.raises(EOFError):
        while True:
            got += raw.read1(100)
    numbers, _ = whole_packets(packed)
    assert numbers == list(range(1, sum(map(len, _until(got))) + 1))


def _until(data: bytes) -> list[list[int]]:
    opened, found = reader(data), []
    with pytest.raises(CaptureError):
        found.extend([packet.number for packet in packets] for packets in opened)
    return found


def test_wrong_checksum_at_the_end_of_gzip_loses_nothing() -> None:
    packed = bytearray(gzip.compress(PLAIN))
    packed[-6] ^= 1
    numbers, error = whole_packets(bytes(packed))
    assert len(numbers) == 400
    assert "the gzip data is damaged" in str(error)
    assert error.packet == 400


@pytest.mark.parametrize("name", ["xz", "bzip2"])
def test_wrong_checksum_at_the_end_loses_little(name: str) -> None:
    packed = bytearray(PACK[name](PLAIN))
    packed[-5 if name == "bzip2" else -40] ^= 1
    numbers, error = whole_packets(bytes(packed))
    assert len(numbers) >= 390
    assert f"the {name} data is damaged" in str(error)


def test_wrong_checksums_of_lz4_lose_nothing_before_them() -> None:
    """Damage that unpacks all the same: a byte of a block that stands as it is, and the checksums themselves."""
    noise = pcap([Packet(ethernet(ip4(tcp(RANDOM.randbytes(1400), seq=n)))) for n in range(400)])
    packed = lz4_frame(noise, 0x7C)
    for at, what, least in ((14, "frame's header", 0), (300_000, "block", 170), (len(packed) - 1, "frame", 400)):
        bad = bytearray(packed)
        bad[at] ^= 1
        numbers: list[int] = []
        with pytest.raises(CaptureError, match=f"the lz4 data is damaged: the checksum of a {what} is wrong"):
            numbers.extend(packet.number for packets in open_capture(io.BytesIO(bytes(bad)), name="x") for packet in packets)
        assert least <= len(numbers) <= least + 50


@pytest.mark.parametrize("name", PACK)
def test_something_else_behind_the_data(name: str) -> None:
    numbers, error = whole_packets(PACK[name](PLAIN) + b"something")
    assert len(numbers) == 400
    assert "other data follows" in str(error)


@pytest.mark.parametrize("name", PACK)
def test_damage_in_the_middle_never_breaks_the_reader(name: str) -> None:
    packed = PACK[name](PLAIN)
    chance = random.Random(7)
    for _ in range(30):
        bad = bytearray(packed)
        at = chance.randrange(len(bad))
        bad[at : at + 8] = chance.randbytes(8)
        try:
            for batch in open_capture(io.BytesIO(bytes(bad)), name="packed"):
                assert len(batch)
        except CaptureError as error:
            assert str(error).startswith("packed: ")


@pytest.mark.parametrize("name", PACK)
def test_packed_text_is_no_capture(name: str) -> None:
    with pytest.raises(CaptureError, match="not a capture"):
        reader(PACK[name](b"hello world, this is text"))


@pytest.mark.parametrize("name", ["gzip", "zstd", "xz", "bzip2", "lz4"])
def test_packed_nothing_is_empty(name: str) -> None:
    with pytest.raises(CaptureError, match="is empty"):
        reader(PACK[name](b""))


@pytest.mark.parametrize(("name", "package"), [("zstd", unpack.ZSTD_CODEC), ("lz4", "cramjam")])
def test_missing_codec_has_its_own_error(name: str, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    packed = PACK[name](PLAIN)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingCodec, match=f"compressed with {name}; reading it needs the package {package}"):
        reader(packed)


@pytest.mark.parametrize(
    ("name", "data", "most"),
    [
        ("xz", lzma.compress(PLAIN, filters=[{"id": lzma.FILTER_LZMA2, "dict_size": 512 << 20, "mode": lzma.MODE_FAST}]), 256),
        ("zstd", bytes.fromhex("28b52ffd 00 a8 010000"), 128),
    ],
)
def test_data_that_takes_more_memory_than_allowed_is_not_damaged(name: str, data: bytes, most: int) -> None:
    with pytest.raises(CaptureError, match=f"the {name} data needs more than {most} MiB of memory to decompress; use {name} -dc"):
        list(reader(data).batches())


def test_the_legacy_format_of_lz4_is_called_what_it_is() -> None:
    block = bytes(cramjam.lz4.compress_block(PLAIN, store_size=False))
    with pytest.raises(CaptureError, match="is compressed in the legacy lz4 format, which is not supported; use lz4 -dc"):
        reader(bytes.fromhex("02214c18") + struct.pack("<I", len(block)) + block)


@pytest.mark.parametrize("name", ["gzip", "zstd", "xz", "bzip2"])
def test_bomb_is_unpacked_piece_by_piece(name: str) -> None:
    """A packet that claims 256 MiB of zero bytes: refused by its length, long before they are unpacked."""
    packed = PACK[name](pcap([]) + bytes.fromhex("00000000 00000000 01000010 01000010") + bytes(16 << 20))
    opened = open_capture(io.BytesIO(packed), name="bomb")
    with pytest.raises(CaptureError, match="claims 268435457 bytes"):
        list(opened)


@pytest.mark.parametrize("mebibytes", [12, pytest.param(40, marks=pytest.mark.sweep)])
@pytest.mark.parametrize("name", ["gzip", "zstd", "xz", "bzip2"])
def test_little_that_unpacks_to_very_many_packets_comes_in_blocks(name: str, mebibytes: int) -> None:
    """Zero bytes are packets of no bytes; 32 KiB of zstd hold 64 million of them."""
    packed = PACK[name](pcap([]) + bytes(mebibytes << 20))
    opened = open_capture(io.BytesIO(packed), name="bomb")
    batches = [(len(packets), len(packets[0].buffer)) for packets in opened]
    assert sum(rows for rows, _ in batches) == (mebibytes << 20) // 16
    assert max(size for _, size in batches) <= 3 * blocks_module.BLOCK


EMPTY = {
    "gzip": gzip.compress(b""),
    "bzip2": bz2.compress(b""),
    "xz": lzma.compress(b""),
    "zstd": bytes(cramjam.zstd.compress(b"")),
    "zstd with a large window": bytes.fromhex("28b52ffd 00 88 010000"),
    "lz4": lz4_frame(b"", size=7),
    "lz4 with a small block": lz4_head(bytes((0x60, 0x70))) + struct.pack("<I", 1) + b"\0" + bytes(4),
    "frames to be skipped": bytes.fromhex("502a4d18 00000000"),
}


@pytest.mark.parametrize("name", EMPTY)
def test_members_of_nothing_cost_little_more_than_their_bytes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    packed = EMPTY[name] * 2000
    handled = 0
    read = blocks_module.RawInput.read

    def counting_read(self: blocks_module.RawInput, size: int) -> bytes:
        nonlocal handled
        data = read(self, size)
        handled += len(data)
        return data

    def room(size: int) -> bytearray:
        nonlocal handled
        handled += size
        return bytearray(size)

    monkeypatch.setattr(blocks_module.RawInput, "read", counting_read)
    monkeypatch.setattr(unpack, "bytearray", room, raising=False)
    assert unpacked(packed) == b""
    assert handled < 2000 * unpack.FIRST_PIECE + len(packed) + (5 << 20)


def test_unpacked_and_packed_positions() -> None:
    packed = gzip.compress(PLAIN)
    opened = open_capture(io.BytesIO(packed), name="x")
    assert opened.bytes_total is None
    list(opened)
    assert opened.bytes_read == len(packed)
