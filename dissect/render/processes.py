"""The processes behind a conversation, as text."""

from __future__ import annotations

from ..model import ConversationRow, Finding, Process, Processes


def of_row(row: ConversationRow) -> list[str]:
    """Return a text for each process of a conversation."""
    return texts(row.processes, row.client)


def of_finding(one: Finding) -> list[str]:
    """Return a text for each process of a finding's conversation."""
    return texts(one.processes, one.dst if one.sender == "server" else one.src)


def texts(processes: Processes | None, client: str | None) -> list[str]:
    """Return a text for each process: the side it is on, and its known fields."""
    found = []
    for one in processes or ():
        side = "one side" if one.endpoint is None else one.endpoint if client is None else "client" if one.endpoint == client else "server"
        found.append(f"{side} {text(one)}")
    return found


def text(one: Process) -> str:
    """Return the known fields of a process: `orders (pid 700, pod shop/orders-x2x4q, container producer)`."""
    pod = one.pod if one.namespace is None else f"{one.namespace}/{one.pod}"
    every = (("pid", one.pid), ("pod", pod), ("container", one.container), ("host", one.host))
    parts = [f"{name} {value}" for name, value in every if value is not None]
    parts += ["and others"] if one.others else []
    if one.process is None:
        return ", ".join(parts)
    return f"{one.process} ({', '.join(parts)})" if parts else one.process
