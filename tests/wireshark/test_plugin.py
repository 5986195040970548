"""The plugin for Wireshark: what tshark shows with it, and what it must not show."""

from __future__ import annotations

import json
import random
import re
import shutil
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from streamdump.filter import names_of
from streamdump.layout import (
    Array,
    Bits,
    Blob,
    Choice,
    Field,
    Fixed,
    FixedText,
    Group,
    Layout,
    Optional,
    Repeat,
    Rest,
    RestText,
    Sized,
    Style,
    Text,
    boolean,
    f64le,
    following,
    i16le,
    read,
    u8,
    u16,
    u32,
)
from streamdump.protocols import field_registry
from streamdump.protocols.dissector import Dissector
from streamdump.wireshark import generate, plugin_protocols, prefix
from tests.bench.sweep import KINDS, variants
from tests.fuzz.mutate import mutated
from tests.support.captures import capture_name, every_family
from tests.support.encoder import encode
from tests.support.frames import pcap
from tests.support.logins import IGGY, RABBITMQ, SECRET, Login, damaged, flipped
from tests.support.rewrite import Packet, capture, packets, server_port, tcp_offset, with_ports
from tests.support.secrets import conversation, found
from tests.wireshark.comparing import DIFFERENCES, GOLDEN, PREFIXES, captures, compare, equal, frames, leaves, tshark, written

pytestmark = [pytest.mark.witness, pytest.mark.skipif(shutil.which("tshark") is None, reason="tshark is not installed")]

FOLDER = Path(__file__).parents[2] / "dissect" / "wireshark"
OTHERS = Path(__file__).parents[2] / "captures" / "samples" / "others"
SEALED = "-O", ",".join(PREFIXES.values())
"""Of all protocols, those of the plugin in full."""

EQUAL = 0.95
SAMPLE = 4
LOGINS = [login for login in (*RABBITMQ, *IGGY) if login.protocol in PREFIXES]


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("plugin"))


@every_family(captures())
def test_tshark_shows_what_json_prints(paths: list[Path], subtests: pytest.Subtests, script: Path) -> None:
    for path in paths:
        with subtests.test(capture_name(path)):
            known = json.loads(DIFFERENCES.read_text())["differences"].get(f"{path.parent.name}/{path.name}", {})
            compared = compare(script, path)
            assert dict(compared.differ) == known, compared.examples


def test_hardly_anything_differs() -> None:
    known = json.loads(DIFFERENCES.read_text())
    for family, values in known["values"].items():
        differ = sum(sum(fields.values()) for name, fields in known["differences"].items() if name.startswith(f"{family}/"))
        assert differ <= (1 - EQUAL) * values


def test_filters_have_the_names_that_are_listed(script: Path) -> None:
    declared = set(re.findall(r'^P:field\("([^"]+)"', script.read_text(), re.M))
    for protocol in plugin_protocols():
        for name, *_ in names_of().listed(protocol.name):
            assert name.removeprefix("fields.") in declared or not name.startswith("fields."), f"{prefix(protocol)}: {name}"


def _spread(found: list[Packet], number: int) -> list[Packet]:
    """The same packets from other ports of the client."""
    server = server_port(found)
    return with_ports(found, lambda port: port if port == server else 1024 + (port + 61 * number) % 64_000)


def _fuzzed(found: list[Packet], chance: random.Random) -> list[Packet]:
    """The same packets, some payloads damaged; they keep their sizes."""
    out = []
    for packet in found:
        at = tcp_offset(packet)
        begin = None if at is None else at + (packet.raw[at + 12] >> 4) * 4
        if begin is not None and begin < len(packet.raw) and chance.random() < 0.4:
            payload = packet.raw[begin:]
            packet = packet._replace(raw=packet.raw[:begin] + mutated([payload], chance)[: len(payload)].ljust(len(payload), b"\0"))
        out.append(packet)
    return out


@pytest.mark.parametrize("family", sorted({path.parent.name for path in captures()}))
def test_nothing_fails_beside_damage(family: str, script: Path, tmp_path: Path) -> None:
    chance = random.Random(family)
    paths = [path for path in captures() if path.parent.name == family and path.suffix == ".pcap" and path.stat().st_size < 100_000]
    for path in chance.sample(paths, min(SAMPLE, len(paths))):
        whole = packets(path)
        every = [variant.packets for variant in variants(whole, chance) if variant.kind in KINDS]
        every += [_fuzzed(whole, chance) for _ in range(8)]
        (tmp_path / "damaged.pcapng").write_bytes(
            capture(packet for number, one in enumerate(every) for packet in _spread(one, number)).read()
        )
        assert tshark(script, tmp_path / "damaged.pcapng", "-2", "-V").stdout


@pytest.mark.parametrize("path", sorted(OTHERS.glob("*.pcap")), ids=lambda path: path.stem)
def test_what_others_speak_is_not_ours(path: Path, script: Path) -> None:
    assert tshark(script, path, "-Y", " or ".join(PREFIXES.values())).stdout == ""


def _shown(login: Login, script: Path, tmp_path: Path, *arguments: str) -> str:
    (tmp_path / "login.pcap").write_bytes(pcap(conversation(login.sent, login.port)))
    return tshark(script, tmp_path / "login.pcap", *arguments).stdout


@pytest.mark.parametrize("login", LOGINS, ids=lambda login: f"{login.protocol} {login.name}")
def test_a_secret_is_not_shown(login: Login, script: Path, tmp_path: Path) -> None:
    told = _shown(login, script, tmp_path, "-V", *SEALED) + _shown(login, script, tmp_path)
    assert "redacted" in told
    assert found(SECRET, {"tshark": told}) == []


@pytest.mark.parametrize("login", [LOGINS[0], LOGINS[-1]], ids=lambda login: login.protocol)
def test_a_preference_shows_it(login: Login, script: Path, tmp_path: Path) -> None:
    told = _shown(login, script, tmp_path, "-V", *SEALED, "-o", f"{PREFIXES[login.protocol]}.secrets:TRUE")
    assert found(SECRET, {"tshark": told})


@pytest.mark.parametrize("login", [RABBITMQ[0], RABBITMQ[1], IGGY[0], IGGY[-1]], ids=lambda login: f"{login.protocol} {login.name}")
def test_a_damaged_login_shows_none(login: Login, script: Path, tmp_path: Path) -> None:
    chance = random.Random(login.name)
    bits = [(index, bit) for index, (_, data) in enumerate(login.sent) for bit in range(len(data) * 8)]
    every = []
    for number, (index, bit) in enumerate(chance.sample(bits, 60)):
        every += conversation(flipped(login, index, bit), login.port, client_port=10_000 + number)
    for _ in range(20):
        every += damaged(chance, login, 3)
    (tmp_path / "damaged.pcap").write_bytes(pcap(every))
    told = tshark(script, tmp_path / "damaged.pcap", "-V", *SEALED).stdout + tshark(script, tmp_path / "damaged.pcap").stdout
    assert found(SECRET, {"tshark": told}) == []


def _columns(script: Path, name: str, wanted: str, *arguments: str) -> list[list[str]]:
    fields = [part for field in wanted.split() for part in ("-e", field)]
    done = tshark(script, GOLDEN / name, "-T", "fields", *fields, *arguments)
    return [line.split("\t") for line in done.stdout.splitlines()]


def test_expert_information(script: Path) -> None:
    refused = _columns(
        script, "rabbitmq-stream/wrong_password_405.pcap", "rabbitmq_stream.response_code_label", "-Y", "rabbitmq_stream.refused"
    )
    assert ["authentication failure"] in refused
    labels = _columns(script, "iggy/py080-errors.pcap", "iggy.status_label", "-Y", "iggy.refused")
    assert len(labels) > 3
    assert ["ok"] not in labels
    cut = _columns(script, "rabbitmq-stream/snaplen_96_310.pcap", "frame.number", "-Y", "rabbitmq_stream.fault")
    assert cut


def test_requests_and_responses_find_each_other(script: Path) -> None:
    pairs = _columns(
        script, "iggy/py080-basic.pcap", "frame.number iggy.response_in iggy.response_to iggy.response_time", "-2", "-Y", "iggy"
    )
    answers = {number: asked for number, _, asked, time in pairs if asked and float(time) >= 0}
    assert len(answers) == len(pairs) / 2
    assert all(answers[response] == number for number, response, _, _ in pairs if response)


def test_decode_as_and_the_layout_can_be_chosen(script: Path, tmp_path: Path) -> None:
    whole = packets(GOLDEN / "iggy" / "py080-basic.pcap")
    moved = tmp_path / "moved.pcapng"
    moved.write_bytes(capture(with_ports(whole, lambda port: 4321 if port == server_port(whole) else port)).read())
    shown = tshark(script, moved, "-d", "tcp.port==4321,iggy", "-Y", "iggy", "-T", "fields", "-e", "iggy.code").stdout
    assert "38" in shown.split()
    wrong = tshark(script, moved, "-d", "tcp.port==4321,iggy", "-o", "iggy.layout:L0", "-Y", "iggy.note or iggy.fault").stdout
    assert wrong


def test_the_info_column_sums_up(script: Path) -> None:
    told = tshark(script, GOLDEN / "rabbitmq-stream" / "access_refused_436.pcap").stdout
    assert re.search(r"PeerProperties > correlation_id=1 peer_properties: \d", told)
    assert "access refused" in told


def test_an_arrow_shows_the_direction_to_the_server(script: Path) -> None:
    """Also of messages that nobody answers, and of requests that the server makes; as the text view has it."""
    told = tshark(script, GOLDEN / "rabbitmq-stream" / "js_publish_consume_405.pcap", "-Y", "rabbitmq_stream").stdout
    ways = dict(re.findall(r"(Deliver|Credit|StoreOffset|Open) ([<>])(?= )", told))
    assert ways == {"Deliver": "<", "Credit": ">", "StoreOffset": ">", "Open": "<"}
    tuned = re.findall(r"([0-9.]+) → [0-9.]+ .* Tune ([<>])", told)
    assert tuned
    for source, way in tuned:
        assert way == ("<" if source == "127.0.0.2" else ">"), "the server asks, the client answers"
    told = tshark(script, GOLDEN / "rabbitmq-stream" / "midstream_310.pcap", "-Y", "rabbitmq_stream").stdout
    assert "MetadataUpdate <" in told


def test_what_is_written_by_hand_is_small() -> None:
    assert len((FOLDER / "runtime.lua").read_text().splitlines()) <= 700
    assert len((FOLDER / "types.lua").read_text().splitlines()) <= 180


KINDS_OF_LAMPS = {1: "oil", 2: "gas"}
HEAD = (Field("size", u32, default=following), Field("command", u8, labels={1: "Words", 2: "Numbers"}))
WORDS = Layout(
    "Words",
    *HEAD,
    Field("kind", u8, labels=KINDS_OF_LAMPS),
    Field("flags", Bits(u16, ("upper", 4), ("lower", 12, {7: "seven"}))),
    Field("choice", Choice("kind", {1: Text(u16, null=0xFFFF), 2: Blob(u8)}, Fixed(2))),
    Choice("kind", {2: (Field("gas", FixedText(3)),)}),
    Field("many", Array((Field("name", Text(u8)), Field("on", boolean)), u16)),
    Field("region", Sized(u32, (Field("count", u8), Field("labels", Array(u8, "count"), labels=KINDS_OF_LAMPS)))),
    Field("pairs", Sized(u16, Repeat(Group(Field("left", i16le), Field("right", f64le))))),
    Optional(Field("tail", RestText())),
    key=1,
)
NUMBERS = Layout(
    "Numbers",
    *HEAD,
    *(Field(name, one) for name, one in field_registry.NUMBERS.items()),
    Field("rest", Rest()),
    key=2,
    kind="one_way",
)
SAID: list[tuple[Layout, dict[str, Any]]] = [
    (
        WORDS,
        {"kind": 1, "flags": {"upper": 3, "lower": 7}, "choice": "warm", "many": [], "region": {"count": 0, "labels": []}, "pairs": []},
    ),
    (
        WORDS,
        {
            "kind": 2,
            "flags": {"upper": 15, "lower": 1},
            "choice": b"\x01\x02",
            "gas": "abc",
            "many": [{"name": "one", "on": True}, {"name": "two", "on": False}],
            "region": {"count": 2, "labels": [2, 9]},
            "pairs": [{"left": -2, "right": 0.5}, {"left": 3, "right": -1e9}],
            "tail": "the end",
        },
    ),
    (NUMBERS, {**{name: 1 if one is boolean else 100 for name, one in field_registry.NUMBERS.items()}, "rest": b"xyz"}),
]


def test_every_word_of_the_tables_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And what a table gets is in the plugin without a line more."""
    loaded = structs.replace(generate.PROTOCOLS[0].loaded, dissector=Dissector, tables=(WORDS, NUMBERS), added=())
    made_up = structs.replace(generate.PROTOCOLS[0], name="lamps", title="Lamps", ports=(7998,), load=lambda: loaded)
    monkeypatch.setattr(generate, "PROTOCOLS", (made_up,))
    written(tmp_path)
    sent = [encode(layout, {"command": layout.key, **values}) for layout, values in SAID]
    (tmp_path / "words.pcap").write_bytes(pcap(conversation([(0, frame) for frame in sent], 7998)))
    shown = [
        one
        for _, found in frames(tshark(tmp_path / "streamdump.lua", tmp_path / "words.pcap", "-T", "json").stdout, ("lamps",)).items()
        for one in found
    ]
    assert len(shown) == len(SAID)
    for (layout, _), frame, (_, values) in zip(SAID, sent, shown, strict=True):
        fields, notes, fault = read(layout, frame, 0, len(frame), Style())
        assert (notes, fault) == ([], None)
        expected: dict[str, list[Any]] = defaultdict(list)
        leaves(fields, "", expected)
        for path, several in expected.items():
            assert all(map(equal, several, values[path])), (path, several, values[path])
            assert len(values[path]) == len(several), path
