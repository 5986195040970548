"""Two ends of a TLS connection by Python's `ssl`, without a network: what they send, and the secrets that they log."""

from __future__ import annotations

import atexit
import base64
import contextlib
import datetime
import ipaddress
import os
import select
import shutil
import socket
import ssl
import struct
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import IO, NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import NameOID

from tests.support.frames import ACK, FIN, PSH, SYN, Packet, block, ethernet, ip4, pcap, tcp
from tests.support.peers import PATIENCE, free_port

CLIENT, SERVER = 0, 1
CLIENT_PORT, SERVER_PORT = 40000, 5551
START_NS = 1_700_000_000_000_000_000

Said = tuple[int, bytes]
"""A side, and the bytes it sends at once."""

FFDHE2048 = int(
    "ffffffffffffffffadf85458a2bb4a9aafdc5620273d3cf1d8b9c583ce2d3695a9e13641146433fbcc939dce249b3ef97d2fe363630c75d8f681b202aec4617ad3df1ed5"
    "d5fd65612433f51f5f066ed0856365553ded1af3b557135e7f57c935984f0c70e0e68b77e2a689daf3efe8721df158a136ade73530acca4f483a797abc0ab182b324fb61"
    "d108a94bb2c8e3fbb96adab760d7f4681d4f42a3de394df4ae56ede76372bb190b07a7c8ee0a6d709e02fce1cdf7e2ecc03404cd28342f619172fe9ce98583ff8e4f1232"
    "eef28183c3fe3b1b4c6fad733bb5fcbc2ec22005c58ef1837d1683b2c6f34a26c1b2effa886b423861285c97ffffffffffffffff",
    16,
)


class Identity(NamedTuple):
    """A certificate with its key, as files."""

    certificate: str
    key: str


@cache
def folder() -> Path:
    """One for the process that asks first, which removes it when it ends; its forks do not."""
    made, owner = Path(tempfile.mkdtemp(prefix="streamdump-tls-")), os.getpid()

    def remove() -> None:
        if os.getpid() == owner:
            shutil.rmtree(made, ignore_errors=True)

    atexit.register(remove)
    return made


@cache
def identity(kind: str = "ec", name: str = "broker.example", days: int = 3650) -> Identity:
    """A certificate that signs itself."""
    key = ec.generate_private_key(ec.SECP256R1()) if kind == "ec" else rsa.generate_private_key(65537, 2048)
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    begin = datetime.datetime(2023, 1, 1, tzinfo=datetime.UTC)
    names = x509.SubjectAlternativeName([x509.DNSName(name), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(subject).public_key(key.public_key()).serial_number(1)
    builder = builder.not_valid_before(begin).not_valid_after(begin + datetime.timedelta(days=days)).add_extension(names, False)
    builder = builder.add_extension(x509.BasicConstraints(True, None), True)
    certificate = builder.sign(key, hashes.SHA256())
    paths = folder() / f"{kind}-{name}-{days}.pem", folder() / f"{kind}-{name}-{days}.key"
    paths[0].write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    plain = serialization.NoEncryption()
    paths[1].write_bytes(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain))
    return Identity(str(paths[0]), str(paths[1]))


@cache
def groups() -> str:
    """A file with the group of RFC 7919 for ephemeral Diffie-Hellman."""
    path = folder() / "ffdhe2048.pem"
    prime = b"\0" + FFDHE2048.to_bytes(256, "big")
    der = bytes.fromhex("3082010802820101") + prime + bytes.fromhex("020102")  # two integers, the prime and the generator
    path.write_text(f"-----BEGIN DH PARAMETERS-----\n{base64.encodebytes(der).decode()}-----END DH PARAMETERS-----\n")
    return str(path)


def contexts(version: str = "1.3", ciphers: str = "", *, client_asks: bool = False) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """The client's and the server's settings, for one version of TLS; the log of secrets is set by `Talk`."""
    chosen = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}[version]
    client, server = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    client.check_hostname = False
    client.verify_mode = ssl.CERT_NONE
    for kind in ("ec", "rsa"):
        server.load_cert_chain(*identity(kind))
    server.load_dh_params(groups())
    for context in (client, server):
        context.minimum_version = context.maximum_version = chosen
        if ciphers:
            context.set_ciphers(f"{ciphers}:@SECLEVEL=0")
        context.set_alpn_protocols(["streams"])
    if client_asks:
        server.verify_mode = ssl.CERT_OPTIONAL
        server.load_verify_locations(identity("ec").certificate)
    return client, server


class Talk:
    """A connection: `sent` has what each side put on the wire, in order."""

    def __init__(
        self,
        client: ssl.SSLContext,
        server: ssl.SSLContext,
        session: ssl.SSLSession | None = None,
        name: str = "broker.example",
        log: Path | None = None,
    ) -> None:
        self.sent: list[Said] = []
        self._log = log or Path(tempfile.mkstemp(dir=folder(), suffix=".keys")[1])
        client.keylog_filename = str(self._log)
        self._bios = [(ssl.MemoryBIO(), ssl.MemoryBIO()), (ssl.MemoryBIO(), ssl.MemoryBIO())]
        self.ends = [
            client.wrap_bio(*self._bios[0], server_side=False, server_hostname=name, session=session),
            server.wrap_bio(*self._bios[1], server_side=True),
        ]
        self.handshake = False

    @property
    def keys(self) -> bytes:
        return self._log.read_bytes()

    def pump(self) -> None:
        """Carry what is to be sent until there is nothing left."""
        moved = True
        while moved:
            moved = False
            for side in (CLIENT, SERVER):
                data = self._bios[side][1].read()
                if data:
                    moved = True
                    self.sent.append((side, data))
                    self._bios[1 - side][0].write(data)
                    if self.handshake:
                        self._take(1 - side)
            if not self.handshake:
                moved = self._shake() or moved

    def _shake(self) -> bool:
        done = 0
        for end in self.ends:
            try:
                end.do_handshake()
                done += 1
            except ssl.SSLWantReadError:
                pass
        if done == 2:
            self.handshake = True
            for side in (CLIENT, SERVER):
                self._take(side)
        return done == 2

    def _take(self, side: int) -> bytes:
        data = b""
        while True:
            try:
                piece = self.ends[side].read(1 << 20)
            except ssl.SSLError:
                return data
            if not piece:
                return data
            data += piece

    def failed(self) -> None:
        """Carry what a side says that ends the handshake."""
        for side in (CLIENT, SERVER):
            data = self._bios[side][1].read()
            if data:
                self.sent.append((side, data))

    def begin(self) -> Talk:
        self._shake()
        self.pump()
        assert self.handshake
        return self

    def say(self, side: int, data: bytes) -> None:
        """One side writes."""
        if data:
            self.ends[side].write(data)
            self.pump()

    def close(self, side: int = CLIENT) -> None:
        """One side says goodbye."""
        with contextlib.suppress(ssl.SSLError):
            self.ends[side].unwrap()
        self.pump()


def talk(said: Iterable[Said], version: str = "1.3", ciphers: str = "", close: bool = True) -> Talk:
    """A connection that carries these bytes."""
    one = Talk(*contexts(version, ciphers)).begin()
    for side, data in said:
        one.say(side, data)
    if close:
        one.close()
    return one


class Wire:
    """Packets of one connection, with its handshake of TCP."""

    def __init__(self, port: int = SERVER_PORT, client_port: int = CLIENT_PORT, syn: bool = True, start_ns: int = START_NS) -> None:
        self.ports = client_port, port
        self.next = [1000, 5000]
        self.packets: list[Packet] = []
        self.time_ns = start_ns
        if syn:
            self._put(CLIENT, b"", SYN, -1)
            self._put(SERVER, b"", SYN | ACK, -1)

    def _put(self, side: int, data: bytes, flags: int, back: int = 0) -> None:
        addresses = bytes.fromhex("c0000201"), bytes.fromhex("c0000202")
        segment = tcp(
            data,
            sport=self.ports[side],
            dport=self.ports[1 - side],
            seq=self.next[side] + back & 0xFFFF_FFFF,
            ack=self.next[1 - side],
            flags=flags,
        )
        self.packets.append(Packet(ethernet(ip4(segment, src=addresses[side], dst=addresses[1 - side])), self.time_ns))
        self.time_ns += 1_000_000

    def send(self, said: Iterable[Said], size: int = 1460) -> Wire:
        """These bytes in segments of at most `size`."""
        for side, data in said:
            for at in range(0, len(data), size):
                piece = data[at : at + size]
                self._put(side, piece, ACK | PSH)
                self.next[side] += len(piece)
        return self

    def end(self) -> Wire:
        for side in (CLIENT, SERVER):
            self._put(side, b"", FIN | ACK)
            self.next[side] += 1
        return self

    def capture(self, without: Sequence[int] = ()) -> bytes:
        """The packets as a file; `without`: numbers, from 1, of those that are lost."""
        return pcap([one for number, one in enumerate(self.packets, 1) if number not in without], nano=True)


def secrets_block(text: bytes, order: str = "<") -> bytes:
    """A Decryption Secrets Block with a key log."""
    return block(0x0A, struct.pack(order + "II", 0x544C534B, len(text)) + text, order)


class Recorder:
    """Stands between a client and a server on loopback, and keeps what each sends, in order."""

    def __init__(self, server_port: int) -> None:
        self.sent: list[Said] = []
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._server_port = server_port
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        client, _ = self._listener.accept()
        self._listener.close()
        server = socket.create_connection(("127.0.0.1", self._server_port))
        ways = [threading.Thread(target=self._carry, args=way, daemon=True) for way in ((client, server, CLIENT), (server, client, SERVER))]
        for way in ways:
            way.start()
        for way in ways:
            way.join()
        client.close()
        server.close()

    def _carry(self, source: socket.socket, target: socket.socket, side: int) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                with self._lock:
                    self.sent.append((side, data))
                    target.sendall(data)
        with contextlib.suppress(OSError):
            target.shutdown(socket.SHUT_WR)

    def wait(self) -> list[Said]:
        """What was sent, once both have ended."""
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive()
        return self.sent


class _Heard:
    """What a program has printed."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self._text = b""

    def until(self, text: bytes) -> None:
        """Wait until this is printed, and forget what came before."""
        deadline = time.monotonic() + PATIENCE
        while text not in self._text:
            assert select.select([self._stream], [], [], max(0, deadline - time.monotonic()))[0], self._text
            part = os.read(self._stream.fileno(), 1 << 16)
            assert part, self._text
            self._text += part
        self._text = self._text.partition(text)[2]


class OpenSSL:
    """`openssl s_server` and `s_client` that talk to each other; for what Python's `ssl` cannot do."""

    def __init__(self, server: Sequence[str] = (), kind: str = "ec") -> None:
        self.port = free_port()
        self.echoes = "-rev" in server
        one = identity(kind)
        command = ["openssl", "s_server", "-accept", f"127.0.0.1:{self.port}", "-cert", one.certificate, "-key", one.key, *server]
        self.server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        assert self.server.stdout is not None
        self.heard = _Heard(self.server.stdout)
        self.heard.until(b"ACCEPT")

    def __enter__(self) -> OpenSSL:
        return self

    def __exit__(self, *_: object) -> None:
        self.server.kill()
        self.server.wait()
        for stream in (self.server.stdin, self.server.stdout):
            if stream is not None:
                stream.close()

    def talk(self, lines: Sequence[bytes], client: Sequence[str] = (), ticket: Path | None = None) -> tuple[list[Said], bytes]:
        """What a client and the server send when the client says these lines (some of one letter are commands), and the secrets.
        `ticket`: wait for the file that the client keeps its session in."""
        recorder = Recorder(self.port)
        log = Path(tempfile.mkstemp(dir=folder(), suffix=".keys")[1])
        command = ["openssl", "s_client", "-connect", f"127.0.0.1:{recorder.port}", "-keylogfile", str(log), *client]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        assert process.stdin is not None
        assert process.stdout is not None
        heard = _Heard(process.stdout)
        heard.until(b"Verify return code")
        for line in lines:
            process.stdin.write(line)
            process.stdin.flush()
            if len(line) == 2:
                heard.until({b"R\n": b"RENEGOTIATING", b"K\n": b"KEYUPDATE", b"k\n": b"KEYUPDATE"}[line])
            elif self.echoes:
                heard.until(line.strip()[::-1])
            else:
                self.heard.until(line)
        deadline = time.monotonic() + PATIENCE
        while ticket is not None and not (ticket.exists() and b"-----END" in ticket.read_bytes()):
            assert time.monotonic() < deadline
            time.sleep(0.002)
        process.stdin.write(b"Q\n")
        process.stdin.flush()
        process.stdin.close()
        process.stdout.read()
        process.stdout.close()
        process.wait(PATIENCE)
        return recorder.wait(), log.read_bytes()
