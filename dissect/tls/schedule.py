"""Key schedules of TLS 1.2 and 1.3: from logged secrets to record keys."""

from __future__ import annotations

from io import BytesIO
from typing import NamedTuple

from .suites import CBC, CHACHA20, Suite


class Keys(NamedTuple):
    """Record keys of one side; `mac` is used by CBC suites only."""

    key: bytes
    iv: bytes
    mac: bytes = b""


def prf(digest: str, secret: bytes, label: bytes, seed: bytes, size: int) -> bytes:
    """Return `size` bytes of the pseudorandom function of TLS 1.2."""
    import hmac

    seed = label + seed
    made, step = b"", seed
    while len(made) < size:
        step = hmac.digest(secret, step, digest)
        made += hmac.digest(secret, step + seed, digest)
    return made[:size]


def expand_label(digest: str, secret: bytes, label: bytes, size: int) -> bytes:
    """Return HKDF-Expand-Label of TLS 1.3 with an empty context, at most one block."""
    import hmac

    label = b"tls13 " + label
    info = size.to_bytes(2, "big") + bytes((len(label),)) + label + b"\0\1"
    return hmac.digest(secret, info, digest)[:size]


def keys_12(suite: Suite, master: bytes, client_random: bytes, server_random: bytes) -> tuple[Keys, Keys]:
    """Return the keys of the client's and of the server's records in TLS 1.2."""
    import hashlib

    mac = hashlib.new(suite.mac).digest_size if suite.mac else 0
    # The IV of a CBC record comes with it.
    iv = 0 if suite.mode == CBC else 12 if suite.mode == CHACHA20 else 4
    block = prf(suite.prf, master, b"key expansion", server_random + client_random, 2 * (mac + suite.key + iv))
    mac_client, mac_server, client, server, iv_client, iv_server = map(BytesIO(block).read, (mac, mac, suite.key, suite.key, iv, iv))
    return Keys(client, iv_client, mac_client), Keys(server, iv_server, mac_server)


def keys_13(suite: Suite, secret: bytes) -> Keys:
    """Return the keys for a traffic secret of TLS 1.3."""
    return Keys(expand_label(suite.prf, secret, b"key", suite.key), expand_label(suite.prf, secret, b"iv", 12))


def next_secret(suite: Suite, secret: bytes) -> bytes:
    """Return the traffic secret after a KeyUpdate."""
    return expand_label(suite.prf, secret, b"traffic upd", len(secret))
