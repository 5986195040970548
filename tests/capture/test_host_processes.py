"""The processes of this host behind connections: a made /proc, and the real one with a capture of loopback."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path
from time import monotonic

import pytest

from streamdump.capture import host_processes
from streamdump.capture.host_processes import AGES, MAX_PENDING, HostProcess, HostProcesses, socket_keys
from streamdump.capture.live import Live
from streamdump.inspector import Inspector
from streamdump.model import Options, Process
from tests.support.peers import may_capture

CLIENT, SERVER = (bytes([127, 0, 0, 1]), (41234).to_bytes(2, "big")), (bytes([127, 0, 0, 1]), (5552).to_bytes(2, "big"))
ENDS = CLIENT[0] + SERVER[0] + CLIENT[1] + SERVER[1]
INSIDE, OUTSIDE = (bytes([172, 17, 0, 2]), CLIENT[1]), (bytes([192, 0, 2, 1]), SERVER[1])
FORWARDED = INSIDE[0] + OUTSIDE[0] + INSIDE[1] + OUTSIDE[1]
ID = "9f2c1b7e4d5a" + "0" * 52


class MadeProc:
    """A folder like /proc, and a clock."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.path = path
        self.now = 100.0
        self.reads = 0
        monkeypatch.setattr(host_processes, "monotonic", lambda: self.now)
        self.process(1, "init")
        self.table("self", "")
        (path / "self" / "ns").mkdir()
        (path / "self" / "ns" / "net").symlink_to("net:[1]")
        read = HostProcesses._read

        def counted(one: HostProcesses, name: str, most: int) -> bytes:
            self.reads += 1
            return read(one, name, most)

        monkeypatch.setattr(HostProcesses, "_read", counted)
        self.host = HostProcesses(str(path))

    def process(self, pid: int, name: str, *sockets: int, cgroup: str = "0::/\n", namespace: int = 1) -> None:
        folder = self.path / str(pid)
        (folder / "fd").mkdir(parents=True)
        (folder / "ns").mkdir()
        (folder / "comm").write_text(f"{name}\n")
        (folder / "cgroup").write_text(cgroup)
        (folder / "ns" / "net").symlink_to(f"net:[{namespace}]")
        (folder / "fd" / "0").symlink_to("/dev/null")
        for at, inode in enumerate(sockets, 1):
            (folder / "fd" / str(at)).symlink_to(f"socket:[{inode}]")

    def table(self, pid: str, *lines: str, name: str = "tcp") -> None:
        (self.path / pid / "net").mkdir(parents=True, exist_ok=True)
        (self.path / pid / "net" / name).write_text("  sl  local_address rem_address   st\n" + "".join(f"{one}\n" for one in lines))

    def found(self, *ages: float, ends: bytes = ENDS) -> list[HostProcess]:
        """What is found at these ages of a connection."""
        started, found = self.now, list[HostProcess]()
        self.host.begin(7, ends)
        for age in ages or AGES:
            self.now = started + age + 0.01
            found += self.host.found()
        return found


def line(local: tuple[bytes, bytes], remote: tuple[bytes, bytes], inode: int, mapped: bool = False) -> str:
    key = socket_keys(local, remote)[mapped].decode()
    return f"   3:{key}01 00000000:00000000 00:00000000 00000000  1000        0 {inode} 1 0000000000000000 20 4 30 10 -1"


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MadeProc:
    return MadeProc(tmp_path, monkeypatch)


def test_both_ends_of_a_connection(made: MadeProc) -> None:
    made.process(41, "client", 501, 777)
    made.process(42, "server", 502)
    made.table("self", line(CLIENT, SERVER, 501), line(SERVER, CLIENT, 502))
    assert made.found() == [HostProcess(7, 0, Process(None, "client", 41)), HostProcess(7, 1, Process(None, "server", 42))]


def test_a_socket_is_found_once_it_was_accepted(made: MadeProc) -> None:
    made.process(41, "client", 501)
    made.table("self", line(CLIENT, SERVER, 501), line(SERVER, CLIENT, 0))
    assert [one.side for one in made.found(0.0)] == [0]
    made.process(42, "server", 502)
    made.table("self", line(CLIENT, SERVER, 501), line(SERVER, CLIENT, 502))
    made.now += 0.5
    assert [(one.side, one.process.pid) for one in made.host.found()] == [(1, 42)]
    assert not made.host._pending


@pytest.mark.parametrize("ends", [ENDS, ENDS[4:8] + ENDS[:4] + ENDS[10:] + ENDS[8:10]])
def test_a_later_connection_on_the_same_ports_is_not_that_of_the_first(made: MadeProc, ends: bytes) -> None:
    made.host.begin(6, ends)
    assert not made.host.found()
    made.table("self", line(CLIENT, SERVER, 501), line(SERVER, CLIENT, 502))
    made.process(40, "client", 501)
    made.process(50, "server", 502)
    assert {one.conversation for one in made.found()} == {7}


def test_a_dual_stack_socket_is_found(made: MadeProc) -> None:
    made.process(42, "server", 502)
    made.table("self", line(SERVER, CLIENT, 502, True), name="tcp6")
    assert [one.process.pid for one in made.found()] == [42]


def test_addresses_of_ipv6() -> None:
    one = socket_keys((bytes(15) + b"\1", b"\x15\xb0"), (bytes(15) + b"\2", b"\xa1\x12"))
    if sys.byteorder == "little":
        assert one == (b" 00000000000000000000000001000000:15B0 00000000000000000000000002000000:A112 ",)


def test_the_container(made: MadeProc) -> None:
    made.process(42, "server", 502, cgroup=f"0::/kubepods.slice/kubepods-pod1.slice/cri-containerd-{ID}.scope\n")
    made.table("self", line(SERVER, CLIENT, 502))
    assert [one.process.container for one in made.found()] == ["9f2c1b7e4d5a"]


UID = "6f2d3b1c-09aa-4d0e-8f5e-1c2b3a4d5e6f"
SLICE = f"pod{UID.replace('-', '_')}.slice"


@pytest.mark.parametrize(
    ("cgroup", "pod"),
    [
        (f"0::/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-{SLICE}/cri-containerd-{ID}.scope\n", UID),
        (f"0::/kubepods.slice/kubepods-{SLICE}/crio-{ID}.scope\n", UID),
        (f"12:pids:/kubepods/burstable/pod{UID}/{ID}\n11:cpu,cpuacct:/kubepods/burstable/pod{UID}/{ID}\n", UID),
        (f"0::/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod{'ab' * 16}.slice/cri-containerd-{ID}.scope\n", "ab" * 16),
        (f"0::/system.slice/docker-{ID}.scope/kubelet/kubepods/pod{UID}/{ID}\n", UID),
        (f"0::/system.slice/docker-{ID}.scope\n", None),
        (f"0::/machine.slice/libpod-{ID}.scope\n", None),
        (f"0::/machine.slice/machine-libpod_pod_{ID}.slice/libpod-{ID}.scope\n", None),
    ],
)
def test_the_pod_of_a_container(made: MadeProc, cgroup: str, pod: str | None) -> None:
    made.process(42, "server", 502, cgroup=cgroup)
    made.table("self", line(SERVER, CLIENT, 502))
    assert [(one.process.container, one.process.pod, one.process.namespace) for one in made.found()] == [(ID[:12], pod, None)]


def test_a_socket_of_several_processes_is_marked(made: MadeProc) -> None:
    made.process(42, "parent", 502)
    made.process(43, "child", 502)
    made.table("self", line(SERVER, CLIENT, 502))
    assert [one.process for one in made.found()] == [Process(None, "child", 43, others=True)]


def test_another_network_namespace(made: MadeProc) -> None:
    made.process(60, "inside", 601, namespace=2)
    made.table("60", line(INSIDE, OUTSIDE, 601))
    assert [(one.side, one.process.process) for one in made.found(ends=FORWARDED)] == [(0, "inside")]


def test_the_loopback_of_another_namespace_is_another_one(made: MadeProc) -> None:
    made.process(60, "inside", 601, namespace=2)
    made.table("60", line(CLIENT, SERVER, 601))
    assert made.found() == []


def test_the_same_connection_in_two_namespaces_is_of_neither(made: MadeProc) -> None:
    for pid in (60, 70):
        made.process(pid, "inside", pid * 10, namespace=pid)
        made.table(str(pid), line(INSIDE, OUTSIDE, pid * 10))
    assert made.found(ends=FORWARDED) == []


@pytest.mark.parametrize("read", [65, 100, 201, 999])
def test_searches_that_take_too_long_reach_every_process(made: MadeProc, monkeypatch: pytest.MonkeyPatch, read: int) -> None:
    every = [str(pid) for pid in range(1, 1_001)]
    searched: set[int] = set()

    def slow(_: HostProcesses, pid: int, until: float) -> None:
        searched.add(pid)
        made.now += host_processes.MAX_SCAN_S / read * 1.0001

    monkeypatch.setattr(HostProcesses, "_names", lambda *_: every)
    monkeypatch.setattr(HostProcesses, "_note_sockets", slow)
    for _ in range(-(-1_000 // (read - host_processes.RECENT))):
        made.host._search()
    assert len(searched) == 1_000


def test_what_may_not_be_read_stays_unknown(tmp_path: Path) -> None:
    host = HostProcesses(str(tmp_path / "nothing"))
    host.begin(0, ENDS)
    assert host.found() == []


@pytest.mark.parametrize("text", ["", "\n", "x" * 5_000, " 0100007F:A112 0100007F:15B0 ", " 0100007F:A112 0100007F:15B0 01 x y z - - - q"])
def test_tables_of_other_kinds_say_nothing(made: MadeProc, text: str) -> None:
    (made.path / "self" / "net" / "tcp").write_text(text)
    assert made.found() == []


def test_the_cost_does_not_grow_with_connections(made: MadeProc) -> None:
    for conversation in range(2 * MAX_PENDING):
        made.host.begin(conversation, ENDS[:8] + conversation.to_bytes(2, "big") + ENDS[10:])
    assert len(made.host._pending) == MAX_PENDING
    made.reads = 0
    for _ in range(1_000):
        made.now += 0.001
        made.host.found()
    assert made.reads <= 4 * 3
    made.now += AGES[-1]
    made.host.found()
    made.now += 1
    made.host.found()
    assert not made.host._pending


def test_after_a_slow_look_comes_a_long_pause(made: MadeProc, monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(*_: object) -> list[HostProcess]:
        made.now += 1
        return []

    monkeypatch.setattr(made.host, "_look", slow)
    made.found(0.0)
    assert made.host._next >= made.now + 20


@pytest.mark.live
@pytest.mark.skipif(not may_capture(), reason="needs CAP_NET_RAW")
def test_the_processes_of_a_captured_connection() -> None:
    server = socket.create_server(("127.0.0.1", 0))
    port = str(server.getsockname()[1])
    said = "import socket, sys; input(); s = socket.create_connection(('127.0.0.1', int(sys.argv[1]))); s.sendall(bytes(8)); input()"
    client = subprocess.Popen([sys.executable, "-c", said, port], stdin=subprocess.PIPE)
    assert client.stdin is not None
    try:
        with Live(["lo"], expression=f"tcp port {port}") as live:
            inspector = Inspector([live], Options())
            client.stdin.write(b"\n")
            client.stdin.flush()
            accepted, _ = server.accept()
            until = monotonic() + 20
            for batch in live.batches():
                inspector.process(batch)
                inspector.age(live.now_ns)
                rows = inspector.rows()
                if monotonic() > until or (rows and len(rows[0].processes or ()) == 2):
                    break
            accepted.close()
    finally:
        client.communicate(b"\n")
        server.close()
    (row,) = inspector.rows()
    assert {one.endpoint: one.pid for one in row.processes or ()} == {row.client: client.pid, row.server: os.getpid()}
    assert all((one.process or "").startswith("python") for one in row.processes or ())
