"""Golden files: written and read back; what is compared, and in which words; what lies in the settings."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamdump.errors import UsageError
from streamdump.golden import align
from streamdump.golden.align import Effort, aligned, common, out_of_order
from streamdump.golden.compare import differences
from streamdump.golden.model import GoldenConversation, Line, Total, Transcript, ordered, unpair
from streamdump.golden.normalise import Normaliser
from streamdump.golden.ranges import merged, without
from streamdump.golden.settings import CheckSettings, read_settings, settings_for
from streamdump.golden.text import GoldenError, parsed, written
from streamdump.golden.values import Alias, Placeholder, ValueSet, read, same, shown
from tests.golden.rebuild import GOLDEN, compared, frames, rebuilt, said_bytes

ENDS = Alias("client", 1), Alias("server", 1)
HANDSHAKE = GOLDEN / "rabbitmq-stream" / "handshake_close_405.pcap"


STARTED = "streamdump golden 1\nconversation client 1 > server 1 iggy\n"


# Values and files

PLAIN = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(st.characters(exclude_categories=["Cs"])),
    st.binary(),
    st.builds(Alias, st.sampled_from(["session", "host"]), st.integers(1, 9)),
    st.builds(Placeholder, st.sampled_from(["redacted", "version", "12 bytes sha256 00ff"])),
)
VALUES = st.one_of(PLAIN, st.lists(PLAIN, max_size=3))


@given(VALUES)
def test_a_value_reads_back_as_it_was(value: Any) -> None:
    text = shown(value)
    assert text.isprintable()
    again, stop = read(text, 0)
    assert stop == len(text)
    assert same(again, value)


def test_kinds_of_numbers_differ() -> None:
    assert not same(1, True)
    assert not same(1, 1.0)
    assert not same([1], [True])
    assert same([1, b"a"], [1, b"a"])


NAMES = st.one_of(st.sampled_from(["Open", "unknown 0x0777", "get_me"]), st.text(min_size=1, max_size=6))
PATHS = st.sampled_from(["stream", 'properties["a b]"]', "chunk.entries[3].offset", "frame.event.$x", "a-b"])


@st.composite
def sayings(draw: st.DrawFn) -> Transcript:
    """What a capture might say."""
    said = Transcript(only=draw(st.sampled_from([frozenset(), frozenset(("names",)), frozenset(("handshake", "names"))])))
    for number in range(draw(st.integers(1, 2))):
        conversation = GoldenConversation("iggy", draw(st.sampled_from([None, "L9"])), True, (Alias("client", number + 1), ENDS[1]))
        asked: list[Line] = []
        for _ in range(draw(st.integers(0, 8))):
            fields = draw(st.dictionaries(PATHS, PLAIN, max_size=3))
            kind = draw(st.sampled_from(["request", "response", "one_way", "gap"]))
            if kind == "request":
                line = Line(0, draw(NAMES), kind, draw(st.sampled_from([None, None, "unanswered"])), fields)
                asked.append(line)
            elif kind == "response":
                request = draw(st.sampled_from([None, *asked]))
                line = Line(1, draw(NAMES), kind, draw(st.sampled_from(["answered", "refused"])) if request else None, fields)
                line.request = request
                if request is not None:
                    request.responses.append(line)
            elif kind == "gap":
                line = Line(draw(st.integers(0, 1)), "gap", kind, "lost", {"size": 3, "in_frame": False})
            else:
                line = Line(draw(st.integers(0, 1)), draw(NAMES), kind, None, fields)
            conversation.lines.append(line)
        conversation.flows.append(
            Total(1, "poll_messages", "group a", "list", items=draw(st.lists(st.dictionaries(PATHS, PLAIN), max_size=3)))
        )
        conversation.flows.append(
            Total(1, "PublishConfirm", "publisher 1", "set", items=merged((number, number) for number in draw(st.sets(st.integers(0, 20)))))
        )
        conversation.flows[0].fields = {"version": ValueSet((1, 2))} if draw(st.booleans()) else {}
        said.conversations.append(conversation)
    return said


@given(sayings())
def test_a_golden_file_reads_back_as_it_was(said: Transcript) -> None:
    text = written(said)
    again = parsed(text, "golden")
    assert written(again) == text
    assert [len(one.lines) for one in again.conversations] == [len(one.lines) for one in said.conversations]
    for one, other in zip(said.conversations, again.conversations, strict=True):
        for line, back in zip(ordered(one.lines), other.lines, strict=True):
            assert (back.name, back.kind, back.outcome, len(back.responses)) == (line.name, line.kind, line.outcome, len(line.responses))
            assert (back.request is None) == (line.request is None)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "a golden file begins with 'streamdump golden'"),
        ("<<<<<<< HEAD\n", "a golden file begins with"),
        ("streamdump golden 2\n", "version 2 of the format is not known"),
        ("streamdump golden 1\nconversation\n", "x.golden:2: neither a conversation nor"),
        ("streamdump golden 1\n  > Open\n", "a line that stands nowhere"),
        ("streamdump golden 1\nconversation client 1 > server 1 iggy\n  > Open  stream\n", "a field without a value at column 15"),
        ("streamdump golden 1\nconversation client 1 > server 1 iggy\n  > Open maybe\n", "maybe is not an outcome or kind of a message"),
        ("streamdump golden 1\nconversation client 1 > server 1 iggy\n  < Open answered @4\n", "@4: there are 0 requests before"),
        ('streamdump golden 1\nconversation client 1 > server 1 iggy\n  > Open  stream="a\n', "no value"),
        ('streamdump golden 1\nconversation client 1 > server 1 iggy\n  < A set "x"\n    = 9-1\n', "9-1 is not a range of numbers"),
        (f"streamdump golden 1\nconversation client {'1' * 4400} > server 1 iggy\n", "neither a conversation nor"),
        (f"{STARTED}  > Open  a={'[' * 20_000}\n", "a value in too many others at column 112"),
        (f"{STARTED}  > Open  a{'.a' * 20_000}=1\n", "a path of too many parts at column"),
        (f"{STARTED}  > Open  a=1e999\n", "no number that JSON has at column 11"),
        (f"{STARTED}  > Open  a=NaN\n", "no number that JSON has"),
        (f"{STARTED}  > Open {'maybe' * 1_000}\n", "maybemaybe ... emaybemaybe"),
        (f'{STARTED}  < A set "x"\n    = \x1b[2J\n', r"\u001b[2J is not a range"),
        (f'{STARTED}  < A set "x"\n    = {", ".join(["1"] * 500_001)}\n', "more than 500,000 values"),
        (f"{STARTED}  > Open{'  a=1' * 500_001}\n", "more than 500,000 values"),
        ("streamdump golden 1\n" * 100_001, "more than 100,000 lines"),
    ],
)
def test_what_is_wrong_with_a_golden_file_is_told_with_its_line(text: str, reason: str) -> None:
    with pytest.raises(GoldenError, match=r"x\.golden:[0-9]+: .*--update rewrites it") as error:
        parsed(text, "x.golden")
    assert reason in str(error.value)


def test_a_run_of_numbers_is_not_spelt_out() -> None:
    for run in ("1-16777215", "0-18446744073709551615"):
        text = f'{STARTED}  < PublishConfirm set "publisher 1"\n    = {run}\n'
        said = parsed(text, "x.golden")
        assert said.conversations[0].flows[0].items == [tuple(map(int, run.split("-")))]
        assert written(said).endswith(f"    = {run}\n")


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 9))), st.lists(st.tuples(st.integers(0, 40), st.integers(0, 9))))
def test_runs_are_the_sets_that_they_stand_for(one: list[tuple[int, int]], other: list[tuple[int, int]]) -> None:
    first, second = (merged((at, at + size) for at, size in each) for each in (one, other))
    numbers, others = ({number for low, high in each for number in range(low, high + 1)} for each in (first, second))
    assert numbers == {number for at, size in one for number in range(at, at + size + 1)}
    assert first == merged((number, number) for number in numbers)
    assert without(first, second) == merged((number, number) for number in numbers - others)


def test_values_that_come_again_are_kept_in_their_order() -> None:
    said = parsed(f'{STARTED}  < A flow "x"  a=1  a=2\n        a=1\n', "x.golden")
    assert said.conversations[0].flows[0].fields == {"a": ValueSet((1, 2, 1))}


def test_aliases_among_several_values_are_those_of_the_golden_file() -> None:
    """They stand nowhere else, so only their place tells which is which."""
    line = "  < A answered  a=<connection 3>  a=<connection 1>\n"
    golden, got = (parsed(STARTED + text, "x.golden") for text in (line, line.replace("3", "7").replace("1", "4")))
    assert differences(golden, got, CheckSettings()) == []
    assert differences(golden, parsed(STARTED + line.replace("  a=<connection 1>", ""), "x.golden"), CheckSettings())


@given(st.text(st.sampled_from('streamdump golden 1\n conversation client > <"=[].@0-')))
def test_no_text_makes_the_reader_fail_otherwise(text: str) -> None:
    with contextlib.suppress(GoldenError):
        parsed("streamdump golden 1\nconversation client 1 > server 1 iggy\n" + text, "golden")


def test_a_golden_file_is_small_and_has_no_secret() -> None:
    for path in GOLDEN.rglob("*.pcap"):
        if path.name.startswith(("sasl", "wrong", "py080-errors", "java-auth")):
            text = written(said_bytes(path.read_bytes()))
            assert len(text) < 40_000
            assert not any(secret in text for secret in ("iggy\\0", "guest\\0", "<redacted 1", 'password="')), path


def test_lines_of_both_sides_stand_as_their_own_orders_say() -> None:
    """Whenever each came: a response behind its request, a line of the server as soon as it can."""
    one, two = Line(0, "A", "request", None), Line(0, "B", "request", None)
    answers = [Line(1, "A", "response", "answered", request=one), Line(1, "B", "response", "answered", request=two)]
    pushed = Line(1, "P", "one_way", None)
    lines = [one, two, answers[0], pushed, answers[1]]
    for seed in range(20):
        mixed = list(lines)
        random.Random(seed).shuffle(mixed)
        sides = [[line for line in lines if line.side == side] for side in (0, 1)]
        merged = [sides[line.side].pop(0) for line in mixed]
        assert [line.name for line in ordered(merged)] == ["A", "A", "P", "B", "B"]


def test_a_request_and_its_response_of_one_side() -> None:
    """As damage or a program gone wrong may have it: nobody answers himself, and the file says the same as the capture."""
    found = frames(GOLDEN / "mewbase" / "java-publish.pcap")
    crossed = [frame._replace(side=1) if frame.name == "CONNECT" else frame for frame in found]
    data = rebuilt(crossed, 1, 7451)
    text = written(said_bytes(data))
    assert "  < CONNECT" in text
    assert "  < RESPONSE answered @0" in text
    assert written(parsed(text, "golden")) == text
    assert compared(data, rebuilt(crossed, 2, 7451)) == []


def test_pairs_that_no_order_of_both_sides_allows() -> None:
    """Each side would answer before it is asked."""
    asked = [Line(side, name, "request", None) for side, name in enumerate("AB")]
    answers = [Line(1 - one.side, one.name, "response", "answered", request=one) for one in asked]
    for one, answer in zip(asked, answers, strict=True):
        one.responses.append(answer)
    lines = [answers[1], asked[0], answers[0], asked[1]]
    unpair(lines)
    assert [answer.request is None for answer in answers] == [one.responses == [] for one in asked]
    assert sum(answer.request is None for answer in answers) == 1
    said = Transcript([GoldenConversation("iggy", None, True, ENDS, lines)])
    text = written(said)
    assert written(parsed(text, "golden")) == text


# Aligning


def test_the_longest_common_subsequence() -> None:
    assert common("abcde", "abxde", Effort()) == [(0, 0), (1, 1), (3, 3), (4, 4)]
    assert common("", "abc", Effort()) == common("abc", "", Effort()) == []
    assert [a for a, _ in common("aXbYc", "abZc", Effort())] == [0, 2, 4]


def test_what_the_first_key_leaves_is_aligned_by_the_next() -> None:
    pairs = aligned(["a1", "b1", "c1"], ["a1", "b2", "c1"], [lambda one: one, lambda one: one[0]], Effort())
    assert pairs == [(0, 0), (1, 1), (2, 2)]


@given(st.permutations(range(8)))
def test_the_fewest_are_out_of_order(places: list[int]) -> None:
    gone = out_of_order(places)
    left = [place for index, place in enumerate(places) if index not in gone]
    assert left == sorted(left)
    assert (len(gone) == 0) == (places == sorted(places))


@pytest.fixture
def looked(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The steps of each search for a block."""
    found: list[int] = []
    search = SequenceMatcher.find_longest_match

    def counted(self: Any, alo: int, ahi: int, blo: int, bhi: int) -> Any:
        found.append(sum(len(self.b2j.get(item, ())) + 1 for item in self.a[alo:ahi]))
        return search(self, alo, ahi, blo, bhi)

    monkeypatch.setattr(SequenceMatcher, "find_longest_match", counted)
    yield found


def _long(count: int, kinds: int) -> Transcript:
    conversation = GoldenConversation("rabbitmq-stream", None, True, ENDS)
    conversation.lines = [Line(0, "StoreOffset", "one_way", None, {"offset": number % kinds}) for number in range(count)]
    return Transcript([conversation])


@pytest.mark.parametrize(
    ("count", "kinds"), [(30_000, 30_000), (10_000, 7), (10_000, 1), pytest.param(100_000, 100_000, marks=pytest.mark.sweep)]
)
def test_long_conversations_cost_little(count: int, kinds: int, looked: list[int]) -> None:
    golden, got = _long(count, kinds), _long(count, kinds)
    lines = got.conversations[0].lines
    del lines[count // 3]
    lines[10].fields["offset"] = -1
    assert len(differences(golden, got, CheckSettings())) == 2
    assert sum(looked) <= align.EFFORT + 2 * count * align.FOR_EACH


def test_hundreds_of_conversations_find_each_other() -> None:
    def many(order: list[int]) -> Transcript:
        said = Transcript()
        for number in order:
            conversation = GoldenConversation("iggy", "L9", True, (Alias("client", number + 1), ENDS[1]))
            conversation.lines = [Line(0, "create_stream", "request", None, {"name": f"s{number}"}), Line(0, "ping", "request", None)]
            said.conversations.append(conversation)
        return said

    order = list(range(300))
    random.Random(4).shuffle(order)
    got = many(order)
    assert differences(many(list(range(300))), got, CheckSettings()) == []
    got.conversations[7].lines[0].fields["name"] = "other"
    found = differences(many(list(range(300))), got, CheckSettings())
    assert len(found) == 1
    assert 'name is "other"' in found[0].text


def test_an_id_that_stands_elsewhere_is_one_difference() -> None:
    def sessions(*numbers: int) -> Transcript:
        conversation = GoldenConversation("iggy", None, True, ENDS)
        conversation.lines = [Line(0, f"m{at}", "one_way", None, {"session": Alias("session", one)}) for at, one in enumerate(numbers)]
        return Transcript([conversation])

    assert differences(sessions(1, 1, 2, 2), sessions(2, 2, 1, 1), CheckSettings()) == []
    found = differences(sessions(1, 1, 2, 2), sessions(1, 1, 2, 1), CheckSettings())
    assert [one.text for one in found] == ["conversation client1: m3 message: session is <session 1>, golden <session 2>"]
    found = differences(sessions(1, 1), sessions(1, 2), CheckSettings())
    assert [one.text for one in found] == ["conversation client1: m1 message: session is <session new>, golden <session 1>"]


# Settings


def settings_of(text: str, tmp_path: Path, name: str = "streamdump.toml") -> CheckSettings:
    path = tmp_path / name
    path.write_text(text)
    found = read_settings(path)
    assert found is not None
    return found


def test_settings_are_found_above_the_capture_then_above_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    (here / "pyproject.toml").write_text("[tool.streamdump.check]\nonly = 'names'\n")
    assert settings_for(inner / "x.pcap").only == "names"
    (tmp_path / "a" / "pyproject.toml").write_text("[tool.other]\nx = 1\n")
    assert settings_for(inner / "x.pcap").only == "names"
    (tmp_path / "a" / "streamdump.toml").write_text("[check]\nonly = 'handshake'\n")
    found = settings_for(inner / "x.pcap")
    assert (found.only, found.source) == ("handshake", tmp_path / "a" / "streamdump.toml")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[check]\nonyl = 'names'", "check.onyl: unknown key; did you mean only?"),
        ("[check]\nonly = 'handshakes'", "check.only: must be all, handshake or names; did you mean handshake?"),
        ("[check]\nunordered = 1", "check.unordered: must be true or false, is the number 1"),
        ("[check]\nignore = 'fields.x'", "check.ignore: must be a list of texts, is the text 'fields.x'"),
        ("[check]\nignore = ['chunk.x']", "check.ignore: 'chunk.x' is not a field; write it from fields. on"),
        ("[check.mask]\ntpye = []", "check.mask.tpye: unknown key; did you mean type?"),
        ("[check.mask.pattern]\n'fields.x' = '('", "check.mask.pattern: '(' is not a regular expression"),
        ("[check.mask.text]\nU1 = 'x'", "check.mask.text: 'U1' cannot stand for a value"),
        ("[check.max_latency]\nOpen = 50", "check.max_latency.Open: must be text such as '50ms', is the number 50"),
        ("[check.max_latency]\nOpen = '50'", "check.max_latency.Open: '50' is not a time; write a number with ns, us, µs, ms, s, min, h"),
        ("[check.rabbitmq-streem]\nignore = []", "check.rabbitmq-streem: unknown key; did you mean rabbitmq-stream?"),
        ("[check.rabbitmq-stream.Opne]\nignore = []", "check.rabbitmq-stream.Opne: unknown message; did you mean Open?"),
        ("[check.iggy.ping]\nonly = 'all'", "check.iggy.ping.only: unknown key; there are "),
        ("[chekc]\nonly = 'all'", "no table [check] in it, but chekc"),
        ("[check\n", "Expected"),
        (f"[check]\nignore = {'[' * 20_000}\n", "too many tables or lists in each other"),
        (f"[check]\nx = {'9' * 4_400}\n", "a number of too many digits"),
        (f"[check]\na{'.a' * 20_000} = 1\n", "a name of too many parts"),
        (f"[check]\n{'a' * 1_000} = 1\n", "check.aaaa"),
        (f"#{' ' * (128 << 10)}\n[check]\n", "is larger than 128 KiB"),
        ("[check.mask.pattern]\n'fields.x' = '(?=a)'", "check.mask.pattern: '(?=a)' is not a regular expression of RE2"),
        ("[check.mask.text]\n" + "".join(f"{'a' * number} = 'x'\n" for number in range(1, 22)), "check.mask.text: more than 20 patterns"),
        (f"[check.max_latency]\nOpen = '{'9' * 400}ms'", "is not a time"),
    ],
)
def test_what_is_wrong_in_the_settings_is_told_with_the_nearest_name(text: str, reason: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError) as error:
        settings_of(text, tmp_path)
    assert reason in str(error.value)
    assert str(error.value).startswith(f"{tmp_path}/streamdump.toml: ")
    assert len(str(error.value)) < len(str(tmp_path)) + 700


def test_a_pattern_takes_no_time_that_grows_with_the_square(tmp_path: Path) -> None:
    """One that goes back would take longer than the universe is old."""
    for table, pattern in (("pattern", "'fields.a'"), ("text", "word")):
        settings = settings_of(f"[check.mask.{table}]\n{pattern} = '(a+)+b'\n", tmp_path)
        said = parsed(f'{STARTED}  > Open  a="{"a" * 100}\ud800"\n', "x.golden")
        Normaliser(settings).again(said)
        assert said.conversations[0].lines[0].fields["a"] in ("a" * 100 + "\ud800", "a" * 100 + "?")


def _changed(settings: CheckSettings) -> list[str]:
    """A handshake with another product, another answer and another reason compared with itself."""
    found = frames(HANDSHAKE)
    changed = [
        frame._replace(data=frame.data.replace(b"probe", b"frobe").replace(b"\0\x01\0\0\0\x02", b"\0\x01\0\0\0\x02")) for frame in found
    ]
    return [one.text for one in compared(rebuilt(found, 1), rebuilt(changed, 2), settings)]


def test_ignored_and_masked_fields(tmp_path: Path) -> None:
    assert len(_changed(CheckSettings())) == 1
    product = 'fields.peer_properties[\\"product\\"]'
    for text in (
        f'[check]\nignore = ["{product}"]',
        '[check]\nignore = ["fields.peer_properties"]',
        f'[check.rabbitmq-stream.PeerProperties]\nignore = ["{product}"]',
        f'[check.mask]\ntype = ["{product}"]',
        f'[check.mask.pattern]\n"{product}" = "[fp]robe"',
        '[check.mask.text]\nproduct = "[fp]robe"',
    ):
        assert _changed(settings_of(text, tmp_path)) == [], text
    for text in (
        f'[check.rabbitmq-stream.Open]\nignore = ["{product}"]',
        f'[check.iggy]\nignore = ["{product}"]',
        f'[check.mask.pattern]\n"{product}" = "p.*"',
    ):
        assert len(_changed(settings_of(text, tmp_path))) == 1, text


def test_what_is_left_out_by_itself_can_be_kept(tmp_path: Path) -> None:
    kept = settings_of('[check]\nkeep = ["fields.peer_properties[\\"version\\"]"]', tmp_path)
    text = written(said_bytes(HANDSHAKE.read_bytes(), kept))
    assert 'peer_properties["version"]="4.0.5"' in text
    assert 'peer_properties["version"]="4.0.5"' not in written(said_bytes(HANDSHAKE.read_bytes()))


def test_limits_on_latency(tmp_path: Path) -> None:
    data = HANDSHAKE.read_bytes()
    assert compared(data, data, settings_of('[check.max_latency]\nOpen = "1min"', tmp_path)) == []
    found = compared(data, data, settings_of('[check.rabbitmq-stream.Open]\nmax_latency = "1ns"', tmp_path))
    assert [one.kind for one in found] == ["latency"]
    assert found[0].text.startswith("conversation client1: Open answered after ")
    assert "allowed are 1 ns (packet " in found[0].text
    (took,) = [
        line.latency_ns
        for conversation in said_bytes(data).conversations
        for line in conversation.lines
        if line.name == "Open" and line.request
    ]
    assert took is not None
    assert compared(data, data, settings_of(f'[check.max_latency]\nOpen = "{took}ns"', tmp_path)) == []
    assert len(compared(data, data, settings_of(f'[check.max_latency]\nOpen = "{took - 1}ns"', tmp_path))) == 1


def test_only_the_handshake_or_names() -> None:
    data = (GOLDEN / "rabbitmq-stream" / "create_delete_310.pcap").read_bytes()
    names = [line.name for line in said_bytes(data, CheckSettings(only="handshake")).conversations[0].lines]
    assert set(names) == {"PeerProperties", "SaslHandshake", "SaslAuthenticate", "Tune", "Open"}
    said = said_bytes(data, CheckSettings(only="names"))
    assert not any(line.fields for line in said.conversations[0].lines)
    # what a golden file leaves out is not compared, whoever asks for it
    assert parsed(written(said), "golden").only == {"names"}


def test_heartbeats_only_where_they_are_asked_for() -> None:
    data = (GOLDEN / "rabbitmq-stream" / "heartbeat_405.pcap").read_bytes()
    assert "Heartbeat" not in written(said_bytes(data))
    text = written(said_bytes(data, CheckSettings(heartbeats=True)))
    assert "  > Heartbeat one-way" in text
    assert parsed(text, "golden").heartbeats
