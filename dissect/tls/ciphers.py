"""Opens sealed records: checks that they are as they were sent, and gives what is in them.

An opener is given whole records and their sequence number; None says that a record is not what the key's owner sealed under that number.
Nothing of a record that does not authenticate is ever handed on.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Protocol

from .schedule import Keys
from .suites import CBC, CCM, CCM_8, CHACHA20, GCM, Suite

HEADER = 5


class Opener(Protocol):
    """Opens the records of one side under one key.

    `least`: the smallest whole record. `overhead`: how much longer a record is than what is in it; None where padding hides that.
    """

    least: int
    overhead: int | None

    def open(self, data: bytes, at: int, end: int, seq: int) -> tuple[int, bytes] | None:
        """The content type and the content of the record data[at:end]."""
        ...


def opener_of(suite: Suite, keys: Keys, version_13: bool, mac_last: bool = False) -> Opener:
    """What opens records under these keys; `mac_last`: the MAC of CBC records is over the sealed bytes (encrypt-then-MAC)."""
    if suite.mode == CBC:
        return _MacLast(suite, keys) if mac_last else _MacFirst(suite, keys)
    aead, tag = _aead(suite, keys.key)
    if version_13:
        return _Sealed13(aead, tag, keys.iv)
    return _Sealed12(aead, tag, keys.iv) if suite.mode == CHACHA20 else _Explicit12(aead, tag, keys.iv)


def _aead(suite: Suite, key: bytes) -> tuple[Any, int]:
    from cryptography.hazmat.primitives.ciphers import aead

    if suite.mode in (CCM, CCM_8):
        size = 8 if suite.mode == CCM_8 else 16
        return aead.AESCCM(key, size), size
    return (aead.AESGCM if suite.mode == GCM else aead.ChaCha20Poly1305)(key), 16


def _algorithm(name: str) -> Any:
    """A block cipher; where Camellia is depends on the version of `cryptography`."""
    if name == "AES":
        from cryptography.hazmat.primitives.ciphers.algorithms import AES

        return AES
    try:
        from cryptography.hazmat.decrepit.ciphers.algorithms import Camellia
    except ImportError:
        from cryptography.hazmat.primitives.ciphers.algorithms import Camellia
    return Camellia


class _Aead:
    more: int
    """Bytes of a record besides the header, the content and the tag."""

    def __init__(self, aead: Any, tag: int, iv: bytes) -> None:
        from cryptography.exceptions import InvalidTag

        self.least = HEADER + tag + self.more
        self.overhead: int | None = self.least
        self._tag = tag
        self._decrypt = aead.decrypt
        self._salt = iv
        self._iv = int.from_bytes(iv, "big")
        self._wrong = InvalidTag


class _Sealed13(_Aead):
    """TLS 1.3: the header is authenticated as it stands, the content type and padding stand behind the content."""

    more = 1

    def open(self, data: bytes, at: int, end: int, seq: int) -> tuple[int, bytes] | None:
        try:
            inner: bytes = self._decrypt((self._iv ^ seq).to_bytes(12, "big"), data[at + 5 : end], data[at : at + 5])
        except self._wrong:
            return None
        if inner[-1:] == b"\0":
            inner = inner.rstrip(b"\0")
        return (inner[-1], inner[:-1]) if inner else (0, b"")


class _Sealed12(_Aead):
    """ChaCha20-Poly1305 in TLS 1.2: the nonce is made of the sequence number."""

    more = 0
    """Bytes of the nonce that come with the record."""

    def open(self, data: bytes, at: int, end: int, seq: int) -> tuple[int, bytes] | None:
        begin = at + HEADER + self.more
        size = end - begin - self._tag
        if size < 0:
            return None
        told = seq.to_bytes(8, "big") + data[at : at + 3] + size.to_bytes(2, "big")
        nonce = self._salt + data[at + HEADER : begin] if self.more else (self._iv ^ seq).to_bytes(12, "big")
        try:
            return data[at], self._decrypt(nonce, data[begin:end], told)
        except self._wrong:
            return None


class _Explicit12(_Sealed12):
    """GCM and CCM in TLS 1.2."""

    more = 8


class _Blocks:
    """CBC with an IV in front of each record.

    One decryptor serves all records: fed the IV as if it were sealed, it gives a block of no meaning, and from there on what it should.
    """

    BLOCK = 16

    def __init__(self, suite: Suite, keys: Keys) -> None:
        from hmac import digest

        from cryptography.hazmat.primitives.ciphers import Cipher, modes

        algorithm = _algorithm(suite.algorithm)
        self.overhead: int | None = None
        self._update = Cipher(algorithm(keys.key), modes.CBC(bytes(self.BLOCK))).decryptor().update
        self._code = partial(digest, keys.mac, digest=suite.mac)
        self._mac = len(keys.mac)

    def _unpadded(self, sealed: bytes) -> bytes | None:
        """What these blocks hold without their padding."""
        opened = self._update(sealed)[self.BLOCK :]
        padding = opened[-1] + 1
        return opened[:-padding] if padding <= len(opened) and opened[-padding:] == opened[-1:] * padding else None


class _MacFirst(_Blocks):
    """The MAC is over the content, and sealed with it."""

    def __init__(self, suite: Suite, keys: Keys) -> None:
        super().__init__(suite, keys)
        self.least = HEADER + self.BLOCK + self.BLOCK * (self._mac // self.BLOCK + 1)

    def open(self, data: bytes, at: int, end: int, seq: int) -> tuple[int, bytes] | None:
        if end - at < self.least or (end - at - HEADER) % self.BLOCK:
            return None
        opened = self._unpadded(data[at + HEADER : end])
        if opened is None or len(opened) < self._mac:
            return None
        size = len(opened) - self._mac
        content = opened[:size]
        told = seq.to_bytes(8, "big") + data[at : at + 3] + size.to_bytes(2, "big")
        return (data[at], content) if self._code(told + content) == opened[size:] else None


class _MacLast(_Blocks):
    """The MAC is over the sealed bytes, and stands behind them."""

    def __init__(self, suite: Suite, keys: Keys) -> None:
        super().__init__(suite, keys)
        self.least = HEADER + 2 * self.BLOCK + self._mac

    def open(self, data: bytes, at: int, end: int, seq: int) -> tuple[int, bytes] | None:
        size = end - at - HEADER - self._mac
        if end - at < self.least or size % self.BLOCK:
            return None
        sealed = data[at + HEADER : end - self._mac]
        told = seq.to_bytes(8, "big") + data[at : at + 3] + size.to_bytes(2, "big")
        content = self._unpadded(sealed) if self._code(told + sealed) == data[end - self._mac : end] else None
        return None if content is None else (data[at], content)
