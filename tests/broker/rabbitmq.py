"""A broker of Debian's rabbitmq-server with a directory, a name and ports of its own on 127.0.0.1, and clients from package indexes."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.peers import free_port

PLACES = ("/usr/lib/rabbitmq/bin", *os.environ["PATH"].split(":"))
"""Debian's command in the path changes to a user of its own, who may not write where tests do."""

START = 90.0
"""Seconds that a broker may take to start."""


class Broker(NamedTuple):
    """Where a broker listens."""

    plain: int
    sealed: int


@contextmanager
def broker(directory: Path) -> Iterator[Broker]:
    """A broker with streams, plain and in TLS, while the block runs. Erlang's port mapper and the server have process groups of their
    own, which end with it."""
    server = shutil.which("rabbitmq-server", path=":".join(PLACES))
    if server is None:
        pytest.skip("rabbitmq-server is not installed")
    ports = Broker(free_port(), free_port())
    certificate = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    keys = ["-keyout", str(directory / "key.pem"), "-out", str(directory / "certificate.pem")]
    subprocess.run([*certificate, *keys], check=True, capture_output=True, timeout=60)
    (directory / "plugins").write_text("[rabbitmq_stream].\n")
    settings = {
        "listeners.tcp.local": f"127.0.0.1:{free_port()}",
        "stream.listeners.tcp.local": f"127.0.0.1:{ports.plain}",
        "stream.listeners.ssl.local": f"127.0.0.1:{ports.sealed}",
        "stream.advertised_host": "127.0.0.1",
        "stream.advertised_port": ports.plain,
        "stream.advertised_tls_port": ports.sealed,
        "ssl_options.certfile": directory / "certificate.pem",
        "ssl_options.keyfile": directory / "key.pem",
    }
    (directory / "rabbitmq.conf").write_text("".join(f"{name} = {value}\n" for name, value in settings.items()))
    mapper = str(free_port())
    environment = {
        **os.environ,
        "HOME": str(directory),
        "ERL_EPMD_ADDRESS": "127.0.0.1",
        "ERL_EPMD_PORT": mapper,
        "RABBITMQ_NODENAME": "streamdump@localhost",
        "RABBITMQ_DIST_PORT": str(free_port()),
        "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
        "RABBITMQ_CONFIG_FILE": str(directory / "rabbitmq.conf"),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(directory / "plugins"),
        "RABBITMQ_MNESIA_BASE": str(directory / "data"),
        "RABBITMQ_LOG_BASE": str(directory / "log"),
        "RABBITMQ_PID_FILE": str(directory / "pid"),
    }
    # Started by the server the port mapper would stay behind.
    commands = (["epmd", "-address", "127.0.0.1", "-port", mapper], [server])
    nowhere = subprocess.DEVNULL
    processes = [
        subprocess.Popen(command, env=environment, cwd=directory, stdout=nowhere, stderr=nowhere, start_new_session=True)
        for command in commands
    ]
    try:
        for port in ports:
            _wait(port)
        yield ports
    finally:
        for process in reversed(processes):
            os.killpg(process.pid, signal.SIGTERM)
            process.wait(60)


def _wait(port: int) -> None:
    end = time.monotonic() + START
    while time.monotonic() < end:
        with socket.socket() as one:
            if one.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.5)
    pytest.skip("the broker did not start")


def python_with(folder: Path, package: str) -> Path:
    """A Python of its own with a package from the index."""
    subprocess.run([sys.executable, "-m", "venv", folder], check=True, timeout=120)
    python = folder / "bin" / "python"
    install = [str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check", package]
    if subprocess.run(install, capture_output=True, timeout=120, check=False).returncode:
        pytest.skip(f"the package index has no {package} for us")
    return python


def folder_with(folder: Path, package: str) -> Path:
    """A folder in which node finds a package of npm."""
    if shutil.which("npm") is None:
        pytest.skip("npm is not installed")
    folder.mkdir()
    (folder / "package.json").write_text("{}")
    if subprocess.run(["npm", "install", "--silent", package], cwd=folder, capture_output=True, timeout=120, check=False).returncode:
        pytest.skip(f"npm has no {package} for us")
    return folder
