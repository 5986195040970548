"""tshark with the plugin beside --json: how many of the values that --json prints of whole messages tshark prints too.

python -m tests.wireshark.comparing [NAME...] [--update] [--passes 1]

What is left out of the count, as the plugin does not read it: the sections of AMQP bodies, what compressed sub-batches hold, null (there is
nothing to print), and messages with a fault. What differs all the same is in `differences.json`, by capture and field; why, in
`cli/docs/wireshark.md`.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Collection
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[2]))

from streamdump.capture.files import open_capture
from streamdump.inspector import Inspector
from streamdump.model import Message, Options
from streamdump.wireshark import plugin, plugin_protocols, prefix
from streamdump.wireshark.generate import LEFT_OUT

GOLDEN = Path(__file__).parents[2] / "captures" / "golden"
DIFFERENCES = Path(__file__).with_name("differences.json")
PREFIXES = {protocol.name: prefix(protocol) for protocol in plugin_protocols()}

UNORDERED = ("reorder", "duplicated", "py070-reorder")
"""Captures whose segments tshark has to sort, which it does not do where some are lost."""

NOT_PASSED_ON = ("ws-fragments", "ws-lossy", "ws-midstream", "processes_wireshark_made", "processes_hostile_made")
"""Captures of which Wireshark passes little on: WebSocket in fragments, or without the upgrade; pcapng with custom blocks, which it counts
as packets, and with a damaged block of names, at which it stops."""

Values = dict[str, list[Any]]


class Pairs(list[tuple[str, Any]]):
    """An object of JSON that may repeat a key, as tshark's do."""


class Compared(NamedTuple):
    """How many values --json prints, and those that tshark does not print, by protocol and field, with an example of each."""

    values: int
    differ: Counter[str]
    examples: dict[str, str]


def written(folder: Path) -> Path:
    """The plugin in a file of this folder."""
    path = folder / "streamdump.lua"
    path.write_text(plugin("0"), encoding="utf-8")
    return path


def tshark(script: Path, capture: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """tshark on a capture with a plugin; a failure of the plugin is an error, whatever tshark says."""
    command = ["tshark", "-n", "-r", str(capture), "-X", f"lua_script:{script}", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=300, check=False)
    wrong = re.search(r"Lua ?Error[^\n]*|Lua: Error[^\n]*\n?[^\n]*", done.stdout + done.stderr)
    assert wrong is None, wrong[0]
    return done


def captures() -> list[Path]:
    """The golden captures of what the plugin reads."""
    folders = [folder for folder in sorted(GOLDEN.iterdir()) if folder.is_dir() and folder.name not in LEFT_OUT]
    found = [path for folder in folders for path in sorted(folder.glob("*.pcap*")) if path.suffix in (".pcap", ".pcapng", ".gz")]
    return [path for path in found if path.stem not in NOT_PASSED_ON]


def compare(script: Path, capture: Path, passes: int = 2) -> Compared:
    """Hold what tshark prints of a capture against what --json does."""
    ours = [one for batch in Inspector([open_capture(capture)], Options()).batches() for one in batch if isinstance(one, Message)]
    ours = [one for one in ours if one.protocol in PREFIXES]
    sorts = str(any(word in capture.name for word in UNORDERED)).upper()
    wanted = " ".join(["frame", *PREFIXES.values()])
    arguments = ["-o", f"tcp.reassemble_out_of_order:{sorts}", "-T", "json", "-J", wanted, *(["-2"] if passes == 2 else [])]
    theirs = frames(tshark(script, capture, *arguments).stdout)
    packet = {one.number: one.packets[1] for one in ours}
    total = 0
    differ: Counter[str] = Counter()
    examples: dict[str, str] = {}
    for message in ours:
        if message.fault is not None:
            continue
        queue = theirs.get(message.packets[1], [])
        index = next((index for index, (name, _) in enumerate(queue) if name == PREFIXES[message.protocol]), None)
        shown: Values = {} if index is None else queue.pop(index)[1]
        for path, values in _expected(message, packet).items():
            found = shown.get(path, [])
            for place, value in enumerate(values):
                total += value is not None
                if value is not None and (place >= len(found) or not equal(value, found[place])):
                    field = f"{message.protocol} {path if shown else '(no such frame)'}"
                    differ[field] += 1
                    examples.setdefault(field, f"packet {message.packets[1]}, {message.name}: {value!r}, not {found[place : place + 1]}")
    return Compared(total, differ, examples)


def _expected(message: Message, packet: dict[int, int]) -> Values:
    """What --json prints of a message, by field, lists one after the other; the pair by the packet of the request."""
    found: Values = defaultdict(list)
    leaves(message.fields, "", found)
    if message.request is not None:
        found["response_to"].append(packet[message.request])
        if message.latency_ns is not None and message.packets[0] == message.packets[1]:
            found["response_time"].append(f"{message.latency_ns / 1e9:.9f}")
    return found


def leaves(value: Any, path: str, into: Values) -> None:
    """The values of a message, by field."""
    if isinstance(value, dict):
        for name, one in value.items():
            packed = name == "messages" and value.get("compression")
            if name == "sections":
                into[f"{path}.body"].append(None)
            elif not packed:
                leaves(one, f"{path}.{name}" if path else name, into)
    elif isinstance(value, list):
        for one in value:
            leaves(one, path, into)
    elif value is not None:
        into[path].append(value)


def frames(text: str, names: Collection[str] = PREFIXES.values()) -> dict[int, list[tuple[str, Values]]]:
    """By packet, the frames of these protocols that tshark shows, each with the values of its fields in their order."""
    found: dict[int, list[tuple[str, Values]]] = defaultdict(list)
    for entry in json.loads(text or "[]", object_pairs_hook=Pairs):
        layers = dict(dict(entry)["_source"])["layers"]
        number = int(dict(dict(layers)["frame"])["frame.number"])
        for name, layer in layers:
            if name in names and isinstance(layer, Pairs):
                values: Values = defaultdict(list)
                _flatten(layer, f"{name}.", values)
                if values:
                    found[number].append((name, values))
    return found


def _flatten(layer: Pairs, before: str, into: Values) -> None:
    for name, value in layer:
        if isinstance(value, Pairs):
            _flatten(value, before, into)
        elif name.startswith(before):
            into[name.removeprefix(before)].append(value)


def equal(ours: Any, theirs: str) -> bool:
    """Whether a value of --json is what tshark prints: numbers as text, truth as 1 and 0, bytes with colons, 128 bits as bytes."""
    if isinstance(ours, bool):
        return theirs in ("1" if ours else "0", "true" if ours else "false")
    if isinstance(ours, float):
        return abs(float(theirs or "nan") - ours) <= 1e-6 * max(1, abs(ours))
    if str(ours) == theirs or theirs.replace(":", "") == ours:
        return True
    data = theirs.replace(":", "")
    if isinstance(ours, str) and ours.lstrip("-").isdigit() and re.fullmatch("[0-9a-f]{32}", data):
        return int(ours) in (int.from_bytes(bytes.fromhex(data), order, signed=ours[0] == "-") for order in ("little", "big"))
    return False


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*", help="parts of the captures' names")
    parser.add_argument("--update", action="store_true", help="write differences.json")
    parser.add_argument("--passes", type=int, default=2)
    options = parser.parse_args()
    values: Counter[str] = Counter()
    differ: Counter[str] = Counter()
    known: dict[str, Any] = {"values": values, "differences": {}}
    with tempfile.TemporaryDirectory() as folder:
        script = written(Path(folder))
        for path in captures():
            name = f"{path.parent.name}/{path.name}"
            if options.names and not any(one in name for one in options.names):
                continue
            compared = compare(script, path, options.passes)
            values[path.parent.name] += compared.values
            differ[path.parent.name] += compared.differ.total()
            if compared.differ:
                known["differences"][name] = dict(sorted(compared.differ.items()))
                print(f"{name}: {compared.differ.total()} of {compared.values}", flush=True)
                for field, count in compared.differ.most_common(4):
                    print(f"    {count:5} {field}: {compared.examples[field]}"[:200])
    for family, count in values.items():
        print(f"{family}: {count - differ[family]} of {count} values are equal, {100 - 100 * differ[family] / count:.2f} %")
    if options.update:
        DIFFERENCES.write_text(json.dumps(known, indent=2) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
