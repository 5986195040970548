"""Authenticates and decrypts records.

An opener receives complete records with their sequence numbers, and returns None for a record that does not authenticate under its
number. No byte of such a record is ever returned.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Protocol

from .schedule import Keys
from .suites import CBC, CCM, CCM_8, CHACHA20, GCM, Suite

HEADER = 5


class Opener(Protocol):
    """Opens the records of one side under one key.

    `min_record`: bytes of the smallest record. `overhead`: bytes of a record besides its content; None if padding hides them.
    """

    min_record: int
    overhead: int | None

    def open(self, data: bytes, at: int, end: int, seq: int) -> tuple[int, bytes] | None:
        """Return the content type and the content of the record data[at:end]; None if it does not authenticate."""
        ...


def make_opener(suite: Suite, keys: Keys, version_13: bool, encrypt_then_mac: bool = False) -> Opener:
    """Return the opener for records under these keys; `encrypt_then_mac`: the MAC of CBC records covers the ciphertext (RFC 7366)."""
    if suite.mode == CBC:
        return _EncryptThenMac(suite, keys) if encrypt_then_mac else _MacThenEncrypt(suite, keys)
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
    """Return the class of a block cipher; the module of Camellia depends on the version of `cryptography`."""
    if name == "AES":
        from cryptography.hazmat.primitives.ciphers.algorithms import AES

        return AES
    try:
        from cryptography.hazmat.decrepit.ciphers.algorithms import Camellia
    except ImportError:
        from cryptography.hazmat.primitives.ciphers.algorithms import Camellia
    return Camellia


class _Aead:
    explicit: int
    """Bytes of a record besides the header, the content and the tag."""

    def __init__(self, aead: Any, tag: int, iv: bytes) -> None:
        from cryptography.exceptions import InvalidTag

        self.min_record = HEADER + tag + self.explicit
        self.overhead: int | None = self.min_record
        self._tag = tag
        self._decrypt = aead.decrypt
        self._salt = iv
        self._iv = int.from_bytes(iv, "big")
        self._wrong = InvalidTag


class _Sealed13(_Aead):
    """TLS 1.3: the header is the associated data; content type and padding follow the content."""

    explicit = 1

    def open(self, data: bytes, at: int, end: int, seq: int) -> tuple[int, bytes] | None:
        try:
            inner: bytes = self._decrypt((self._iv ^ seq).to_bytes(12, "big"), data[at + 5 : end], data[at : at + 5])
        except self._wrong:
            return None
        if inner[-1:] == b"\0":
            inner = inner.rstrip(b"\0")
        return (inner[-1], inner[:-1]) if inner else (0, b"")


class _Sealed12(_Aead):
    """ChaCha20-Poly1305 in TLS 1.2: the nonce is derived from the sequence number."""

    explicit = 0
    """Bytes of the nonce in the record."""

    def open(self, data: bytes, at: int, end: int, seq: int) -> tuple[int, bytes] | None:
        begin = at + HEADER + self.explicit
        size = end - begin - self._tag
        if size < 0:
            return None
        associated = seq.to_bytes(8, "big") + data[at : at + 3] + size.to_bytes(2, "big")
        nonce = self._salt + data[at + HEADER : begin] if self.explicit else (self._iv ^ seq).to_bytes(12, "big")
        try:
            return data[at], self._decrypt(nonce, data[begin:end], associated)
        except self._wrong:
            return None


class _Explicit12(_Sealed12):
    """GCM and CCM in TLS 1.2."""

    explicit = 8


class _Blocks:
    """CBC with an IV in front of each record.

    One decryptor serves all records: decrypting the IV too yields one meaningless block, and then the content.
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
        """Decrypt blocks and remove their padding; None if the padding is wrong."""
        opened = self._update(sealed)[self.BLOCK :]
        padding = opened[-1] + 1
        return opened[:-padding] if padding <= len(opened) and opened[-padding:] == opened[-1:] * padding else None


class _MacThenEncrypt(_Blocks):
    """The MAC covers the content and is encrypted with it."""

    def __init__(self, suite: Suite, keys: Keys) -> None:
        super().__init__(suite, keys)
        self.min_record = HEADER + self.BLOCK + self.BLOCK * (self._mac // self.BLOCK + 1)

    def open(self, data: bytes, at: int, end: int, seq: int) -> tuple[int, bytes] | None:
        if end - at < self.min_record or (end - at - HEADER) % self.BLOCK:
            return None
        opened = self._unpadded(data[at + HEADER : end])
        if opened is None or len(opened) < self._mac:
            return None
        size = len(opened) - self._mac
        content = opened[:size]
        associated = seq.to_bytes(8, "big") + data[at : at + 3] + size.to_bytes(2, "big")
        return (data[at], content) if self._code(associated + content) == opened[size:] else None


class _EncryptThenMac(_Blocks):
    """The MAC covers the ciphertext and follows it."""

    def __init__(self, suite: Suite, keys: Keys) -> None:
        super().__init__(suite, keys)
        self.min_record = HEADER + 2 * self.BLOCK + self._mac

    def open(self, data: bytes, at: int, end: int, seq: int) -> tuple[int, bytes] | None:
        size = end - at - HEADER - self._mac
        if end - at < self.min_record or size % self.BLOCK:
            return None
        sealed = data[at + HEADER : end - self._mac]
        associated = seq.to_bytes(8, "big") + data[at : at + 3] + size.to_bytes(2, "big")
        content = self._unpadded(sealed) if self._code(associated + sealed) == data[end - self._mac : end] else None
        return None if content is None else (data[at], content)
