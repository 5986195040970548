"""What real clients sent to a real broker, and what they got, body by body as they say it themselves, against `entries`.

Run by `pytest -m broker`, as root with rabbitmq-server, openssl and npm installed.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.broker.rabbitmq import Broker
from tests.broker.test_rabbitmq import CLIENT_S, javascript, rstream, server
from tests.support.peers import capturing, may_capture, records

__all__ = ["javascript", "rstream", "server"]

pytestmark = [
    pytest.mark.broker,
    pytest.mark.skipif(not may_capture(), reason="may not capture"),
]

RSTREAM = """
import asyncio, json, logging, os, sys
from rstream import AMQPMessage, CompressionType, Consumer, ConsumerOffsetSpecification, OffsetType, Producer, RawMessage, amqp_decoder
logging.disable()
port, log = int(sys.argv[1]), open(sys.argv[2], "w")
how = {"username": "guest", "password": "guest"}
plain = ["grün ✓".encode(), b"", os.urandom(300), b'{"a": 1}\\n', bytes(range(256)), b"x" * 70_000]
packed = [b"packed %d" % number for number in range(12)]

def say(what, body, **more):
    print(json.dumps({"what": what, "body": body.hex(), **more}), file=log)

async def main():
    producer = Producer("127.0.0.1", port, **how)
    await producer.start()
    await producer.create_stream("entries", exists_ok=True)
    for number, body in enumerate(plain, 1):
        await producer.send_wait("entries", RawMessage(body, publishing_id=number), publisher_name="billing")
        say("sent", body, id=number)
    await producer.send_wait("entries", RawMessage(b"again", publishing_id=3), publisher_name="billing")
    say("sent", b"again", id=3, dropped=True)
    for number in range(7, 10):
        body = b"amqp %d" % number
        message = AMQPMessage(body=body, application_properties={"n": number, "who": "rstream"})
        message.publishing_id = number
        await producer.send_wait("entries", message, publisher_name="billing")
        say("sent", body, id=number, properties={"n": number, "who": "rstream"})
    await producer.send_sub_entry("entries", compression_type=CompressionType.Gzip, sub_entry_messages=[*packed], publisher_name="other")
    for body in packed:
        say("sent", body)
    wanted, got, done = len(plain) + 3 + len(packed), 0, asyncio.Event()
    consumer = Consumer("127.0.0.1", port, **how)
    def one(data, context):
        nonlocal got
        message = amqp_decoder(data) if data[:2] == b"\\0S" else None
        properties = {} if message is None else {key.decode() if isinstance(key, bytes) else key: value.decode() if isinstance(value, bytes)
            else value for key, value in message.application_properties.items()}
        say("got", data if message is None else message.body, offset=context.offset, properties=properties)
        got += 1
        got == wanted and done.set()
    await consumer.start()
    await consumer.subscribe("entries", one, decoder=bytes, offset_specification=ConsumerOffsetSpecification(OffsetType.FIRST, None))
    await asyncio.wait_for(done.wait(), 20)
    await consumer.close()
    await producer.close()
    log.close()

asyncio.run(main())
"""

JAVASCRIPT = """
const rabbit = require("rabbitmq-stream-js-client"), fs = require("fs");
const [port, log] = [Number(process.argv[2]), process.argv[3]];
const say = (what, body, more) => fs.appendFileSync(log, JSON.stringify({what, body: body.toString("hex"), ...more}) + "\\n");
async function main() {
  const client = await rabbit.connect({hostname: "127.0.0.1", port, username: "guest", password: "guest", vhost: "/", heartbeat: 0});
  await client.createStream({stream: "js-entries", arguments: {}});
  const publisher = await client.declarePublisher({stream: "js-entries", publisherRef: "billing"});
  const bodies = [Buffer.from("grün ✓"), Buffer.from([0xff, 0, 1]), Buffer.from("x".repeat(3000))];
  for (const body of bodies) { await publisher.send(body); say("sent", body); }
  const number = Buffer.from("with properties");
  await publisher.send(number, {applicationProperties: {n: "7"}, messageProperties: {subject: "s"}});
  say("sent", number, {properties: {n: "7"}});
  let got = 0;
  await new Promise(async (done) => {
    await client.declareConsumer({stream: "js-entries", offset: rabbit.Offset.first()}, (message) => {
      say("got", message.content, {offset: Number(message.offset), properties: message.applicationProperties || {}});
      if (++got === 4) done();
    });
  });
  await client.close();
}
main().then(() => process.exit(0), (error) => { console.error(error); process.exit(1); });
"""


def properties(entry: dict[str, Any]) -> dict[str, Any]:
    """The properties of the application, without the types of AMQP."""
    found = [one for one in entry["properties"] if one["section"] == "application-properties"]
    return {one["key"]: one["value"]["value"] if isinstance(one["value"], dict) else one["value"] for one in found}


def compared(port: int, folder: Path, client: list[str], cwd: Path | None = None) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """What the client says of itself, and the entries that were captured of it, live and from the file that was written meanwhile."""
    capture, log = folder / "client.pcapng", folder / "client.log"
    decoded = ("-d", f"tcp.port=={port},rabbitmq-stream")
    with capturing("entries", "-i", "lo", "-f", f"tcp port {port}", "--json", "-w", str(capture), *decoded) as live:
        done = subprocess.run([*client, str(port), str(log)], cwd=cwd, timeout=CLIENT_S, check=False, capture_output=True, text=True)
        code, out, err = live.finish()
    assert code == 0, err
    call = [sys.executable, "-m", "streamdump", "entries", "--json", str(capture), *decoded]
    from_file = subprocess.run(call, capture_output=True, text=True, timeout=60, check=False)
    assert from_file.returncode == 0, from_file.stderr
    assert records(out) == records(from_file.stdout)
    if done.returncode:
        pytest.skip(f"the client did not get through: {done.stderr[-300:]}")
    return [json.loads(line) for line in log.read_text().splitlines()], records(out)


def check(said: list[dict[str, Any]], found: list[dict[str, Any]]) -> None:
    sent, got = ([one for one in said if one["what"] == what] for what in ("sent", "got"))
    published, delivered = ([one for one in found if one["name"] == name] for name in ("Publish", "Deliver"))
    assert [one["body"] for one in published] == [one["body"] for one in sent]
    assert [one["outcome"] for one in published] == ["deduplicated" if one.get("dropped") else "confirmed" for one in sent]
    assert [(one["offset"], one["body"], properties(one)) for one in delivered] == [
        (one["offset"], one["body"], one["properties"]) for one in got
    ]
    assert {one["outcome"] for one in delivered} == {"delivered"}
    for one, entry in zip(sent, published, strict=True):
        assert properties(entry) == one.get("properties", {})
        assert entry["publishing_id"] == one.get("id", entry["publishing_id"])
    stored = [one["body"] for one in sent if not one.get("dropped")]
    assert [one["body"] for one in delivered] == stored


def test_rstream(server: Broker, rstream: Path, tmp_path: Path) -> None:
    said, found = compared(server.plain, tmp_path, [str(rstream), "-c", RSTREAM])
    assert len(found) == 22 + 21
    assert {one["compression"] for one in found if one["name"] == "Publish"} == {None, "gzip"}
    check(said, found)


def test_javascript(server: Broker, javascript: Path, tmp_path: Path) -> None:
    said, found = compared(server.plain, tmp_path, ["node", "-e", JAVASCRIPT, "-"], cwd=javascript)
    check(said, found)
