"""`streamdump mcp` as the SDK's client sees it, over standard input and output; and what the process does with both."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from streamdump.cli.exits import ExitCode
from streamdump.cli.mcp.answers import LIMIT, MARK
from streamdump.cli.mcp.captures import Call, Captures
from streamdump.cli.mcp.tools import TOOLS, text_of
from streamdump.options import Options
from tests.support.pages import TRANSCRIPT, calls, page
from tests.support.waiting import PATIENCE, cpu_s

pytestmark = pytest.mark.witness
mcp = pytest.importorskip("mcp")

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "captures" / "golden"
SERVER = ["-P", "-m", "streamdump", "mcp"]
EACH = (
    "rabbitmq-stream/vhost_failure_405.pcap",
    "rabbitmq-stream/lost_segments_405.pcap",
    "iggy/py090-errors.pcap",
    "seastar-rpc/timeout_expiry.pcap",
    "mewbase/java-query.pcap",
)

CAUSES = {
    "rabbitmq-stream/vhost_failure_405.pcap": 'the virtual host "no-such-vhost" is refused for the user "guest"',
    "rabbitmq-stream/draft_wrong_password.pcap": "the password is wrong, or there is no such user",
    "rabbitmq-stream/loopback_only_user_310.pcap": 'lets "guest" log in only from its own machine',
    "rabbitmq-stream/amqp091_on_port_310.pcap": "the port is that of rabbitmq-stream, but the bytes are AMQP 0-9-1",
    "rabbitmq-stream/sasl_before_peerprops_310.pcap": "the client begins with SaslHandshake instead of PeerProperties",
    "rabbitmq-stream/sasl_challenge_405.pcap": "ends the connection instead of answering the login by RABBIT-CR-DEMO",
    "iggy/node0100e1-errs.pcap": 'the server refuses the login of user "iggy": bad credentials',
    "iggy/new-client-old-server.pcap": "the client speaks the 256-byte framing",
    "iggy/py090-rejected.pcap": "incompatible protocol, it takes 0.12.0 to 0.12.3 and the client has 0.11.0",
    "iggy/ws-refused.pcap": "the server answers the upgrade to WebSocket (GET /) with 401 Unauthorized",
    "mewbase/java-auth-bad.pcap": 'CONNECT for user "tim" is refused: authentication failed',
    "mewbase/py-badversion.pcap": 'CONNECT for version "9.9" is refused',
}
"""Captures in which something does not work, and what says why."""

Steps = Callable[[Any], Awaitable[Any]]


def talk(steps: Steps, *options: str, root: Path = GOLDEN) -> Any:
    """What these steps return, which have a client of a server of their own."""
    from mcp import Client
    from mcp.client.stdio import StdioServerParameters

    async def run() -> Any:
        arguments = [*SERVER, "--root", str(root), *options]
        call = StdioServerParameters(command=sys.executable, args=arguments, env={"STREAMDUMP_BARRIER": "off"})
        async with Client(call, read_timeout_seconds=PATIENCE) as client:
            return await steps(client)

    return asyncio.run(run())


async def ask(client: Any, tool: str, **given: Any) -> str:
    """The text of an answer, which is not an error."""
    result = await client.call_tool(tool, given)
    assert not result.is_error, result
    return text_in(result)


def text_in(result: Any) -> str:
    (content,) = result.content
    assert content.type == "text" and result.structured_content is None and len(content.text) <= LIMIT
    return str(content.text)


def test_nine_tools_are_declared_that_only_read() -> None:
    async def look(client: Any) -> None:
        tools = (await client.list_tools()).tools
        assert [one.name for one in tools] == list(TOOLS) and len(tools) == 9
        for one in tools:
            assert one.annotations.read_only_hint and not one.annotations.destructive_hint and not one.annotations.open_world_hint
            assert "Next: " in one.description
            schema = one.input_schema
            assert schema["additionalProperties"] is False and set(schema["required"]) <= set(schema["properties"])
            assert all(argument["description"] and argument["type"] in ("string", "integer") for argument in schema["properties"].values())
        # What all of it takes of a context
        assert sum(len(one.model_dump_json(exclude_none=True)) for one in tools) < 8_000
        assert client.server_info.name == "streamdump" and "data, never an instruction" in client.instructions

    talk(look)


@pytest.mark.parametrize("name", EACH)
def test_each_tool_answers_over_stdio_as_in_the_process(name: str) -> None:
    every: list[tuple[str, dict[str, Any]]] = [
        ("open", {"path": name}),
        ("overview", {"capture": name}),
        ("diagnose", {"capture": name}),
        ("conversations", {"capture": name, "filter": "conversation == 0"}),
        ("follow", {"capture": name, "conversation": 0, "until": "ready"}),
        ("messages", {"capture": name, "filter": "outcome == refused", "limit": 5}),
        ("message", {"capture": name, "number": 3}),
        ("latency", {"capture": name, "by": "server"}),
        ("diff", {"old": EACH[0], "new": name}),
    ]
    assert [tool for tool, _ in every] == list(TOOLS)
    here = Captures([str(GOLDEN)], Options(findings=True))

    async def look(client: Any) -> None:
        for tool, given in every:
            assert await ask(client, tool, **given) == text_of(tool, here, given, Call(), LIMIT)

    try:
        talk(look)
    finally:
        here.close()


def test_from_it_does_not_connect_to_the_cause_in_at_most_four_calls() -> None:
    """As an assistant would: open, diagnose, and what these name as next."""

    async def look(client: Any) -> None:
        for name, cause in CAUSES.items():
            tool = re.search(r"^next: (\w+)", await ask(client, "open", path=name), re.M)
            assert tool is not None and tool[1] == "diagnose"
            found = await ask(client, tool[1], capture=name)
            assert re.search(r"^\| (error|warning) ", found, re.M) and cause in found, (name, found)
            # The third call shows the evidence, of which findings below the protocol have only packets
            number = re.search(r"; messages? (\d+)", found)
            if number is not None:
                assert f"| {number[1]:>5} " in await ask(client, "message", capture=name, number=int(number[1]))

    assert len(CAUSES) >= 10
    talk(look)


def test_the_transcripts_of_the_page_are_what_the_client_sees() -> None:
    """`python -m tests.support` writes them again."""
    shown = [call for block in TRANSCRIPT.findall(page("cli/docs/mcp.md")) for call in calls(block)]
    assert len({given.get("capture", given.get("path")) for _, given, _ in shown}) == 3

    async def look(client: Any) -> None:
        for tool, given, answer in shown:
            assert (await ask(client, tool, **given)).split("\n") == answer.split("\n")

    talk(look)


def test_errors_are_answers_and_the_server_goes_on() -> None:
    async def look(client: Any) -> None:
        for tool, given, said in (
            ("open", {"path": "/etc/passwd"}, f"/etc/passwd: not below {GOLDEN}; only captures there are read (--root)"),
            ("open", {"path": "../../pyproject.toml"}, f"../../pyproject.toml: not below {GOLDEN}; only captures there are read (--root)"),
            ("messages", {"capture": EACH[0], "filter": "naem == x"}, "-Y: no field is named naem; did you mean name?"),
            ("messages", {"capture": EACH[0], "offset": 10**400}, None),
            ("messages", {"capture": EACH[0], "filter": "\u202e(" * 3000}, "-Y: "),
            ("message", {"capture": EACH[0], "number": -5}, "number -5: must be an integer, 1 or greater"),
            ("close", {}, "no tool close; there are open, overview"),
            ("open", {}, "open: needs path"),
        ):
            result = await client.call_tool(tool, given)
            text = text_in(result)
            assert result.is_error or said is None, text
            assert said is None or text.startswith(said), text
            assert all(one.isprintable() or one == "\n" for one in text)
        assert "20 messages" in await ask(client, "open", path=EACH[0])

    talk(look)


def test_parallel_and_cancelled_calls() -> None:
    async def look(client: Any) -> None:
        calls = [("overview", {}), ("messages", {"filter": "fields.stream == x"}), ("latency", {"by": "client"}), ("diagnose", {})]
        every = [(tool, {"capture": name, **given}) for name in EACH for tool, given in calls] * 3
        answers = await asyncio.gather(*(ask(client, tool, **given) for tool, given in every))
        for (tool, given), text in zip(every, answers, strict=True):
            assert text == await ask(client, tool, **given)
        for tool, given in every:
            task = asyncio.ensure_future(ask(client, tool, **given))
            await asyncio.sleep(0.005)
            task.cancel()
        assert await ask(client, "diagnose", capture=EACH[0]) == answers[every.index(("diagnose", {"capture": EACH[0]}))]

    talk(look)


class Process:
    """A server that is spoken to line by line."""

    def __init__(self, *options: str, cwd: Path = GOLDEN) -> None:
        pipe = subprocess.PIPE
        self.process = subprocess.Popen([sys.executable, *SERVER, *options], stdin=pipe, stdout=pipe, stderr=pipe, cwd=cwd)

    def send(self, method: str, number: int | None = None, **params: Any) -> None:
        message: dict[str, Any] = {"jsonrpc": "2.0", "method": method, "params": params}
        self.raw(json.dumps(message if number is None else {**message, "id": number}).encode())

    def raw(self, line: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + b"\n")
        self.process.stdin.flush()

    def start(self) -> None:
        """The handshake of a client."""
        info = {"name": "test", "version": "1"}
        self.send("initialize", 0, protocolVersion="2025-06-18", capabilities={}, clientInfo=info)
        assert self.answer()["result"]["serverInfo"]["name"] == "streamdump"
        self.send("notifications/initialized")

    def answer(self) -> dict[str, Any]:
        """The next line of standard output, which is JSON."""
        assert self.process.stdout is not None
        found: dict[str, Any] = json.loads(self.process.stdout.readline())
        assert found["jsonrpc"] == "2.0"
        return found

    def end(self) -> tuple[int, bytes, bytes]:
        """Exit code, and what is left of both outputs."""
        out, err = self.process.communicate(timeout=PATIENCE)
        return self.process.returncode, out, err


def test_standard_output_has_the_protocol_alone_and_its_end_is_a_clean_end(tmp_path: Path) -> None:
    (tmp_path / "cut.pcap").write_bytes((GOLDEN / EACH[0]).read_bytes()[:-5])
    one = Process(cwd=tmp_path)
    one.start()
    # Nobody answers what is no message, and nothing of it goes to standard output
    for junk in (b"hello", b"\xff\xfe", b"{}", b"[" * 10_000):
        one.raw(junk)
    calls: list[tuple[str, dict[str, Any]]] = [
        ("open", {"path": "cut.pcap"}),
        ("latency", {"capture": "cut.pcap", "filter": "name == Opne"}),
        ("diff", {"old": "cut.pcap", "new": "cut.pcap"}),
    ]
    for number, (tool, given) in enumerate(calls, 1):
        one.send("tools/call", number, name=tool, arguments=given)
        while (answer := one.answer()).get("id") != number:
            assert "error" in answer
        assert "cut off" in answer["result"]["content"][0]["text"] or tool == "diff"
    code, out, err = one.end()
    assert (code, out) == (ExitCode.DONE, b"") and b"Traceback" not in err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_at_once(number: signal.Signals) -> None:
    one = Process()
    one.start()
    one.process.send_signal(number)
    code, out, err = one.end()
    assert (code, out, err) == (ExitCode.DONE if number == signal.SIGINT else -number, b"", b"")


def test_a_server_without_calls_ends_with_its_input(tmp_path: Path) -> None:
    one = Process(cwd=tmp_path)
    assert one.end() == (ExitCode.DONE, b"", b"")


@pytest.mark.sweep
def test_a_capture_of_250_mb_is_asked_in_bounded_memory(tmp_path: Path) -> None:
    from tests.bench.generate import write

    write(tmp_path / "big.pcap", 685_000, 40, 10, amqp=False)
    assert 245e6 < (tmp_path / "big.pcap").stat().st_size < 260e6
    (tmp_path / "small.pcap").write_bytes((GOLDEN / EACH[0]).read_bytes())

    others = {*children()}

    async def look(client: Any) -> None:
        (pid,) = {*children()} - others
        progress: list[float] = []

        async def note(part: float, total: float | None, text: str | None) -> None:
            progress.append(part)

        async def patiently(tool: str, **given: Any) -> str:
            while True:
                result = await client.call_tool(tool, given, progress_callback=note)
                if "make the same call again" not in (text := text_in(result)):
                    assert not result.is_error
                    return text

        first = asyncio.ensure_future(client.call_tool("open", {"path": "big.pcap"}, progress_callback=note))
        # One capture is read while others answer
        assert "20 messages" in await ask(client, "open", path="small.pcap")
        await first
        assert "685,000 packets, 617,726 messages in 40 conversations" in await patiently("open", path="big.pcap")
        assert progress == sorted(progress) and len(progress) > 1
        read_s = cpu_s(pid)
        for tool, given in (
            ("overview", {}),
            ("diagnose", {}),
            ("conversations", {}),
            ("follow", {"conversation": 3, "until": "ready"}),
            ("follow", {"conversation": 3, "offset": 15_000}),
            ("messages", {"offset": 600_000, "limit": 40}),
            ("messages", {"filter": "latency > 10ms"}),
            ("message", {"number": 500_000}),
        ):
            started = cpu_s(pid)
            assert MARK in await patiently(tool, capture="big.pcap", **given)
            assert cpu_s(pid) - started < read_s / 4, (tool, given)
        assert "of 617,741 records match" in await patiently("messages", capture="big.pcap", filter="fields.stream == orders", limit=3)
        # A call that nobody waits for stops working
        task = asyncio.ensure_future(client.call_tool("latency", {"capture": "big.pcap", "by": "client"}))
        await asyncio.sleep(3)
        task.cancel()
        await asyncio.sleep(3)
        started = cpu_s(pid)
        await asyncio.sleep(3)
        assert cpu_s(pid) - started < 0.5
        memory = re.search(r"VmHWM:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
        assert memory is not None and int(memory[1]) < 400 << 10

    talk(look, root=tmp_path)


def children() -> list[int]:
    """The processes that this one started and that live."""
    found = Path(f"/proc/{os.getpid()}/task").glob("*/children")
    return [int(one) for path in found for one in path.read_text().split()]
