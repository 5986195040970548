"""Shows the handshake of a real client with a real RabbitMQ broker, and finds the wrong password of another, live:
python tests/bench/rabbitmq_live.py [--python PYTHON]

Needs rabbitmq-server (Debian: apt-get install rabbitmq-server), CAP_NET_RAW, and the client rstream (pip install rstream) for the
Python that runs this or the one that --python names. The broker runs with a directory, a name and ports of its own on 127.0.0.1 and
ends with the script. Exit code 0 when all messages of the handshake were shown with their answers, and the wrong password was named.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.capture.peers import capturing, free_port, records

HANDSHAKE = ("PeerProperties", "SaslHandshake", "SaslAuthenticate", "Tune", "Open", "Create", "DeclarePublisher", "Publish")
PLACES = ("/usr/lib/rabbitmq/bin", *os.environ["PATH"].split(":"))
"""Debian's command in the path changes to a user of its own, who may not write where this script does."""

START = 90.0
"""Seconds that a broker may take to start."""

CLIENT = """
import asyncio, sys
from rstream import Producer

async def main():
    async with Producer("127.0.0.1", int(sys.argv[1]), username="guest", password=sys.argv[2]) as producer:
        await producer.create_stream("live", exists_ok=True)
        for number in range(3):
            await producer.send_wait("live", b"message %d" % number)

asyncio.run(main())
"""


def broker(directory: Path, port: int) -> list[subprocess.Popen[bytes]]:
    """A broker with streams on this port of 127.0.0.1, each in a process group of its own: Erlang's port mapper and the server."""
    server = shutil.which("rabbitmq-server", path=":".join(PLACES))
    if server is None:
        sys.exit("rabbitmq-server is not installed")
    (directory / "plugins").write_text("[rabbitmq_stream].\n")
    (directory / "rabbitmq.conf").write_text(
        f"listeners.tcp.local = 127.0.0.1:{free_port()}\nstream.listeners.tcp.local = 127.0.0.1:{port}\n"
    )
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
    # Started by the server it would stay behind.
    commands = (["epmd", "-address", "127.0.0.1", "-port", mapper], [server])
    nowhere = subprocess.DEVNULL
    return [
        subprocess.Popen(command, env=environment, cwd=directory, stdout=nowhere, stderr=nowhere, start_new_session=True)
        for command in commands
    ]


def wait(port: int) -> None:
    end = time.monotonic() + START
    while time.monotonic() < end:
        with socket.socket() as one:
            if one.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.5)
    sys.exit("the broker did not start")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default=sys.executable, help="a Python that has rstream")
    python = parser.parse_args().python
    port = free_port()
    with tempfile.TemporaryDirectory() as directory:
        processes = broker(Path(directory), port)
        try:
            wait(port)
            for form in ((), ("--json",)):
                with capturing("-i", "lo", "-f", f"tcp port {port}", *form) as capture:
                    subprocess.run([python, "-c", CLIENT, str(port), "guest"], timeout=60, check=True)
                    time.sleep(0.5)
                    _, out, err = capture.finish()
                if not form:
                    print(out, err, sep="")
            with capturing("diagnose", "-i", "lo", "-f", f"tcp port {port}") as capture:
                client = subprocess.Popen([python, "-c", CLIENT, str(port), "wrong"], stderr=subprocess.DEVNULL)
                # Told before the capture, and perhaps the client, ends
                found = capture.line()
                client.terminate()
                client.wait(60)
                _, told, err = capture.finish()
            print(found, told, err, sep="\n")
        finally:
            for process in reversed(processes):
                os.killpg(process.pid, signal.SIGTERM)
                process.wait(60)
    messages = [one for one in records(out) if one["record"] == "message"]
    asked = {one["name"] for one in messages}
    missing = [name for name in HANDSHAKE if name not in asked]
    unanswered = [one["name"] for one in messages if one["name"] in HANDSHAKE[:6] and one["kind"] == "response" and one["request"] is None]
    refused = "rabbitmq-stream.authentication-refused" in found
    print("the wrong password is found" if refused else f"of the wrong password it says: {found}")
    print("the handshake is complete" if not missing and not unanswered else f"missing: {missing}, without a request: {unanswered}")
    return 1 if missing or unanswered or not refused else 0


if __name__ == "__main__":
    sys.exit(main())
