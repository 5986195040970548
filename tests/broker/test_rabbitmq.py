"""What real clients and a real broker say to each other: as it happens, and from the file that was written meanwhile.

Run by `pytest -m broker`, as root with rabbitmq-server, openssl and npm installed.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from streamdump.cli.app import main
from tests.broker.rabbitmq import Broker, broker, folder_with, python_with
from tests.support.metrics import by, compare, endpoint_of, prometheus, reader, scraped
from tests.support.peers import capturing, may_capture, records

pytestmark = [
    pytest.mark.broker,
    pytest.mark.skipif(not may_capture(), reason="may not capture"),
]

CLIENT_S = 60

RSTREAM = """
import asyncio, logging, ssl, sys
from rstream import AMQPMessage, Consumer, ConsumerOffsetSpecification, OffsetType, Producer, RawMessage
logging.disable()
port, scene, keys = int(sys.argv[1]), sys.argv[2], sys.argv[3]
how = {"username": "guest", "password": "wrong" if scene == "wrong password" else "guest"}
if scene == "tls":
    how["ssl_context"] = ssl.create_default_context()
    how["ssl_context"].check_hostname = False
    how["ssl_context"].verify_mode = ssl.CERT_NONE
    how["ssl_context"].keylog_filename = keys

async def consume(stream, wanted):
    consumer, got, done = Consumer("127.0.0.1", port, **how), [], asyncio.Event()
    def one(message, context):
        got.append(message)
        len(got) == wanted and done.set()
    await consumer.start()
    await consumer.subscribe(stream, one, decoder=bytes, offset_specification=ConsumerOffsetSpecification(OffsetType.FIRST, None))
    return consumer, done

async def main():
    producer = Producer("127.0.0.1", port, max_retries=1, **how)
    try:
        await asyncio.wait_for(producer.start(), 10)
    except Exception:
        return
    name = scene.replace(" ", "-")
    await producer.create_stream(name, exists_ok=True)
    if scene == "duplicates":
        for number in (1, 2, 3, 2, 3, 4):
            await producer.send_wait(name, RawMessage(b"message %d" % number, publishing_id=number), publisher_name="billing")
    else:
        for number in range(5):
            await producer.send_wait(name, b"message %d" % number)
    if scene in ("publish and consume", "tls"):
        consumer, done = await consume(name, 5)
        await asyncio.wait_for(done.wait(), 20)
        await consumer.close()
    if scene == "deleted stream":
        consumer, _ = await consume(name, 1000)
        await asyncio.sleep(0.5)
        await producer.delete_stream(name)
        await asyncio.sleep(1)
    await producer.close()

asyncio.run(main())
"""

JAVASCRIPT = """
const rabbit = require("rabbitmq-stream-js-client");
async function main() {
  const client = await rabbit.connect({hostname: "127.0.0.1", port: Number(process.argv[2]), username: "guest", password: "guest",
    vhost: "/", heartbeat: 0});
  await client.createStream({stream: "js", arguments: {}});
  const publisher = await client.declarePublisher({stream: "js", publisherRef: "billing"});
  for (let number = 0; number < 5; number++) await publisher.send(Buffer.from(`message ${number}`));
  let got = 0;
  await new Promise(async (done) => {
    await client.declareConsumer({stream: "js", offset: rabbit.Offset.first()}, () => { if (++got === 5) done(); });
  });
  await client.close();
}
main().then(() => process.exit(0), (error) => { console.error(error); process.exit(1); });
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with broker(tmp_path_factory.mktemp("broker")) as ports:
        yield ports


@pytest.fixture(scope="module")
def rstream(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return python_with(tmp_path_factory.mktemp("rstream"), "rstream")


@pytest.fixture(scope="module")
def javascript(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return folder_with(tmp_path_factory.mktemp("npm") / "client", "rabbitmq-stream-js-client")


def seen(port: int, folder: Path, client: list[str], *options: str, cwd: Path | None = None) -> tuple[Path, list[dict[str, Any]]]:
    """What a client says, as a file and as it was read live, where the file is read the same."""
    capture = folder / "client.pcapng"
    decoded = ("-d", f"tcp.port=={port},rabbitmq-stream", *options)
    with capturing("-i", "lo", "-f", f"tcp port {port}", "--json", "-w", str(capture), *decoded) as live:
        subprocess.run(client, cwd=cwd, timeout=CLIENT_S, check=False, capture_output=True)
        code, out, err = live.finish()
    assert code == 0, err
    from_file = subprocess.run(
        [sys.executable, "-m", "streamdump", "--json", str(capture), *decoded], capture_output=True, text=True, timeout=60, check=False
    )
    assert from_file.returncode == 0, from_file.stderr
    found = records(from_file.stdout)
    said = [one for one in found if one["record"] == "message"]
    # The number of a record counts endings, too, whose place live may be another. Only live, the host shows processes.
    numbers = ("number", "request", "processes")
    assert [{**one, **dict.fromkeys(numbers)} for one in records(out) if one["record"] == "message"] == [
        {**one, **dict.fromkeys(numbers)} for one in said
    ]
    return capture, found


def scene(name: str, server: Broker, rstream: Path, folder: Path, *options: str) -> tuple[Path, list[dict[str, Any]]]:
    port = server.sealed if name == "tls" else server.plain
    keys = folder / "keys.log"
    keys.touch()
    return seen(port, folder, [str(rstream), "-c", RSTREAM, str(port), name, str(keys)], *options)


def answered(found: list[dict[str, Any]]) -> set[str]:
    """The commands of which a response was paired with its request."""
    return {one["name"] for one in found if one["record"] == "message" and one["outcome"] == "answered"}


def rules(capture: Path, port: int, capsys: pytest.CaptureFixture[str], *options: str) -> dict[str, dict[str, Any]]:
    """What `diagnose` finds above notes, by rule."""
    main(["diagnose", "--json", "-d", f"tcp.port=={port},rabbitmq-stream", *options, str(capture)])
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    return {one["rule"]: one for one in found if one["record"] == "finding" and one["severity"] != "note"}


HANDSHAKE = {"PeerProperties", "SaslHandshake", "SaslAuthenticate", "Tune", "Open"}


def test_publish_and_consume(server: Broker, rstream: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capture, found = scene("publish and consume", server, rstream, tmp_path)
    assert answered(found) >= HANDSHAKE | {"Create", "Metadata", "DeclarePublisher", "Subscribe"}
    assert len([one for one in found if one.get("name") == "Publish"]) == 5
    delivered = sum(one["fields"]["chunk"]["num_records"] for one in found if one.get("name") == "Deliver")
    assert delivered == 5
    assert rules(capture, server.plain, capsys) == {}


def test_a_client_in_javascript(server: Broker, javascript: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capture, found = seen(server.plain, tmp_path, ["node", "-e", JAVASCRIPT, "-", str(server.plain)], cwd=javascript)
    assert answered(found) >= HANDSHAKE
    (version,) = {
        entry["value"]
        for one in found
        if one.get("name") == "PeerProperties" and one["sender"] == "server"
        for entry in one["fields"]["peer_properties"]
        if entry["key"] == "version"
    }
    if tuple(map(int, version.split(".")[:2])) < (3, 11):
        # It asks for the versions of commands, which this broker does not know: it closes.
        closed = rules(capture, server.plain, capsys)["rabbitmq-stream.closed-with-code"]
        assert "does not know ExchangeCommandVersions" in closed["cause"]
    else:
        assert sum(one["fields"]["chunk"]["num_records"] for one in found if one.get("name") == "Deliver") == 5
        assert rules(capture, server.plain, capsys) == {}


def test_a_wrong_password(server: Broker, rstream: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capture, found = scene("wrong password", server, rstream, tmp_path)
    (refused,) = {(one["name"], one["fields"]["response_code_label"]) for one in found if one.get("outcome") == "refused"}
    assert refused == ("SaslAuthenticate", "authentication failure")
    assert set(rules(capture, server.plain, capsys)) == {"rabbitmq-stream.authentication-refused"}
    assert "wrong" not in json.dumps(found)


def test_publishing_ids_that_were_there_before(server: Broker, rstream: Path, tmp_path: Path) -> None:
    _, found = scene("duplicates", server, rstream, tmp_path)
    confirmed = [one["fields"]["publishing_ids"] for one in found if one.get("name") == "PublishConfirm"]
    assert [each for ids in confirmed for each in ids] == [1, 2, 3, 2, 3, 4]


def test_a_deleted_stream(server: Broker, rstream: Path, tmp_path: Path) -> None:
    _, found = scene("deleted stream", server, rstream, tmp_path)
    assert "Delete" in answered(found)
    updates = [one for one in found if one.get("name") == "MetadataUpdate"]
    assert {one["fields"]["code_label"] for one in updates} == {"stream not available"}


def test_tls_with_its_keys(server: Broker, rstream: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    keys = ("--keylog", str(tmp_path / "keys.log"))
    capture, found = scene("tls", server, rstream, tmp_path, *keys)
    assert answered(found) >= {"Open", "Create", "DeclarePublisher"}
    assert sum(one["fields"]["chunk"]["num_records"] for one in found if one.get("name") == "Deliver") == 5
    assert rules(capture, server.sealed, capsys, *keys) == {}


def test_what_prometheus_holds_after_the_scenes(server: Broker, rstream: Path, tmp_path: Path) -> None:
    """The same as `latency`, `stats` and `diagnose` say of the packets written meanwhile."""
    pytest.importorskip("prometheus_client")
    copy, port = tmp_path / "copy.pcapng", server.plain
    decoded = ("-d", f"tcp.port=={port},rabbitmq-stream")
    live = ("-i", "lo", "-f", f"tcp port {port}", *decoded, "-w", str(copy), "--listen", "127.0.0.1:0")
    with capturing("metrics", *live, "--label", "stream", stdout=subprocess.PIPE) as capture:
        endpoint = endpoint_of(capture)
        with prometheus(tmp_path, endpoint) as address:
            for name in ("publish and consume", "wrong password", "duplicates", "deleted stream"):
                client = [str(rstream), "-c", RSTREAM, str(port), name, ""]
                subprocess.run(client, timeout=CLIENT_S, check=False, capture_output=True)
            # An end by one side is reported two seconds later
            time.sleep(4)
            held = scraped(address, endpoint)
        code, _, err = capture.finish()
    assert code == 0, err
    requests = by(held, "streamdump_requests_total", "messaging_operation_name", "outcome")
    assert requests["SaslAuthenticate", "refused"] >= 1 and requests["Delete", "answered"] == 1
    # Streams hold what other tests published, too
    assert by(held, "messaging_client_consumed_messages_total")[()] >= 10
    assert {"rabbitmq-stream.authentication-refused"} <= {rule for (rule,) in by(held, "streamdump_findings_total", "rule")}
    compare(held, reader(copy, *decoded))
