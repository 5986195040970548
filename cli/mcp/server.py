"""The tools over standard input and output, with the Model Context Protocol's own SDK."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from threading import Thread
from typing import Any

import mcp_types as types
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server

import streamdump
from streamdump.errors import Report, StreamdumpError, describe_exception

from ..app import sentences
from ..exits import ENDING, ExitCode
from .answers import Answer
from .captures import Call, Cancelled, Captures, Unfinished
from .tools import INSTRUCTIONS, TOOLS, Argument, text_of

AT_ONCE = 4
"""Calls that are worked on at a time; others wait."""

EVERY_S = 1.0
"""Seconds from one report of progress to the next."""

READ_ONLY = types.ToolAnnotations(read_only_hint=True, destructive_hint=False, idempotent_hint=True, open_world_hint=False)


def serve(captures: Captures, limit: int) -> None:
    """Answer calls until standard input ends; `limit`: characters of an answer."""
    # Nothing is left behind that has to be removed, and what waits for standard input cannot be woken
    for one in ENDING:
        signal.signal(one, signal.SIG_DFL)
    signal.signal(signal.SIGINT, lambda number, frame: os._exit(ExitCode.DONE))
    # Tracebacks of what a client sends
    logging.getLogger("mcp").setLevel(logging.CRITICAL)
    logging.getLogger("client").setLevel(logging.CRITICAL)
    try:
        asyncio.run(_serve(captures, limit))
    finally:
        captures.close()


async def _serve(captures: Captures, limit: int) -> None:
    places = asyncio.Semaphore(AT_ONCE)
    listed = types.ListToolsResult(tools=[_declared(name) for name in TOOLS])

    async def list_tools(context: ServerRequestContext[Any], params: types.PaginatedRequestParams | None) -> types.ListToolsResult:
        return listed

    async def call_tool(context: ServerRequestContext[Any], params: types.CallToolRequestParams) -> types.CallToolResult:
        call = Call()
        answer = await _in_thread(context, call, places, partial(_answer, captures, params.name, params.arguments or {}, call, limit))
        return types.CallToolResult(content=[types.TextContent(text=answer[0])], is_error=answer[1])

    server = Server(
        "streamdump", version=streamdump.__version__, instructions=INSTRUCTIONS, on_list_tools=list_tools, on_call_tool=call_tool
    )
    async with stdio_server() as (read, write):
        await server.run(read, write, server.create_initialization_options())


def _declared(name: str) -> types.Tool:
    """Return the declaration of a tool."""
    tool = TOOLS[name]
    properties = {one: _property(argument) for one, argument in tool.arguments.items()}
    needed = [one for one, argument in tool.arguments.items() if argument.default is None]
    schema = {"type": "object", "properties": properties, "required": needed, "additionalProperties": False}
    return types.Tool(name=name, description=tool.text, input_schema=schema, annotations=READ_ONLY)


def _property(argument: Argument) -> dict[str, str | int]:
    """Return the JSON schema of an argument."""
    found: dict[str, str | int] = {"type": argument.kind, "description": argument.text}
    if argument.default:
        found["default"] = int(argument.default) if argument.kind == "integer" else argument.default
    return found


async def _in_thread(
    context: ServerRequestContext[Any], call: Call, places: asyncio.Semaphore, work: Callable[[], tuple[str, bool]]
) -> tuple[str, bool]:
    """What `work` returns, done in a thread that ends with the process, and that is given up where the call is cancelled."""
    loop, done = asyncio.get_running_loop(), asyncio.Event()
    found: list[tuple[str, bool]] = []

    def leave() -> None:
        places.release()
        done.set()

    def run() -> None:
        try:
            found.append(work())
        finally:
            # The loop may have ended meanwhile
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(leave)

    await places.acquire()
    Thread(target=run, daemon=True).start()
    try:
        while not done.is_set():
            try:
                await asyncio.wait_for(done.wait(), EVERY_S)
            except TimeoutError:
                if call.progress is not None:
                    await context.session.report_progress(call.progress, 1.0)
    finally:
        call.cancelled.set()
    return found[0] if found else ("cancelled", True)


def _answer(captures: Captures, tool: str, given: dict[str, Any], call: Call, limit: int) -> tuple[str, bool]:
    """What a tool answers, and whether that is an error."""
    try:
        if tool not in TOOLS:
            return Answer([f"no tool {tool}; there are {', '.join(TOOLS)}"]).text(limit), True
        return text_of(tool, captures, given, call, limit), False
    except Unfinished as unfinished:
        return Answer([str(unfinished)]).text(limit), False
    except Cancelled:
        return "cancelled", True
    except StreamdumpError as error:
        return Answer(list(sentences(error))).text(limit), True
    except Exception as error:
        return Answer([Report(describe_exception(error), "there is no answer").text(None)]).text(limit), True
