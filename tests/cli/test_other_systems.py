"""Captures are read where there is no Linux: by a process without what macOS or Windows lacks (packages of others cannot be made to
believe in Windows)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from streamdump.cli.app import main

CAPTURE = next((Path(__file__).parents[2] / "captures" / "golden" / "rabbitmq-stream").glob("*.pcap*"))

ELSEWHERE = """
import os, select, signal, sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {missing!r}:
            raise ImportError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Missing())
for name in {missing!r}:
    sys.modules.pop(name, None)
if {system!r} != "linux":
    for module, names in (
        (os, ("geteuid", "getuid", "setresuid", "fchown", "O_TMPFILE", "O_NOFOLLOW", "O_NONBLOCK", "getgroups")),
        (select, ("poll", "epoll")),
        (signal, ("SIGHUP", "SIGPIPE")),
    ):
        for name in names:
            if hasattr(module, name):
                delattr(module, name)
    sys.platform = {system!r}
from streamdump.cli.app import main
sys.exit(main({arguments!r}))
"""
UNIX_ONLY = ("fcntl", "pwd", "grp", "resource", "termios", "scapy", "re2")


def streamdump(system: str, missing: tuple[str, ...], *arguments: str) -> subprocess.CompletedProcess[bytes]:
    code = ELSEWHERE.format(system=system, missing=missing, arguments=list(arguments))
    return subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=120, check=False)


@pytest.mark.parametrize("options", [(), ("--json",), ("-V",), ("-q",)])
def test_a_capture_reads_the_same(options: tuple[str, ...], capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    there = streamdump("darwin", UNIX_ONLY, str(CAPTURE), *options)
    assert main([str(CAPTURE), *options]) == there.returncode == 0
    assert (there.stdout, there.stderr) == (*capfdbinary.readouterr(),)


@pytest.mark.parametrize("command", ["latency", "conversations", "diagnose"])
def test_a_command_says_the_same(command: str, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    there = streamdump("darwin", UNIX_ONLY, command, str(CAPTURE))
    code = main([command, str(CAPTURE)])
    assert (there.stdout, there.returncode) == (capfdbinary.readouterr().out, code)


def test_what_is_written_is_the_same(tmp_path: Path) -> None:
    here, there = tmp_path / "here.pcapng", tmp_path / "there.pcapng"
    assert main([str(CAPTURE), "-w", str(here)]) == 0
    assert streamdump("darwin", UNIX_ONLY, str(CAPTURE), "-w", str(there)).returncode == 0
    assert here.read_bytes() == there.read_bytes()


@pytest.mark.parametrize("arguments", [("-D",), ("-i", "any"), ("-i", "en0")])
def test_live_capture_says_that_it_takes_linux(arguments: tuple[str, ...]) -> None:
    done = streamdump("darwin", UNIX_ONLY, *arguments)
    assert done.returncode == 4
    assert done.stdout == b""
    assert b"capturing works only on Linux" in done.stderr
    assert done.stderr.count(b"\n") == 1


def test_a_pattern_without_its_engine() -> None:
    done = streamdump("linux", ("re2",), str(CAPTURE), "-Y", 'name matches "^Op"')
    assert done.returncode == 2
    assert b"google-re2" in done.stderr
    assert done.stderr.count(b"\n") == 1
