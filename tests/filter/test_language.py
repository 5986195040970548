"""The language of filters: what it takes, what it refuses and where, and what comparisons mean."""

from __future__ import annotations

import re
from typing import Any, Literal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamdump.errors import FilterError
from streamdump.filter import NameTable, compile_filter, names_of
from streamdump.filter.grammar import DEPTH_LIMIT, LENGTH_LIMIT, parse, parts_of, printable, quoted
from streamdump.filter.names import FROM_TSHARK
from streamdump.model import Ending, Exchange, Fault, Gap, Head, Message, Options
from streamdump.protocols import PROTOCOLS
from tests.support.captures import GOLDEN

MINUTE = 60_000_000_000


def message(number: int = 1, **changed: Any) -> Message:
    """A message of RabbitMQ Streams, an answer unless said otherwise."""
    values: dict[str, Any] = {
        "v": 1,
        "number": number,
        "time": "",
        "time_ns": 1_700_000_000_000_000_000,
        "conversation": 0,
        "src": "192.0.2.1:5552",
        "dst": "[2001:db8::7]:40000",
        "sender": "server",
        "protocol": "rabbitmq-stream",
        "name": "Open",
        "kind": "response",
        "id": 4,
        "stream": None,
        "file": 0,
        "packets": (None, 9),
        "position": 0,
        "size": 1500,
        "fields": {"response_code": 16, "response_code_label": "access refused", "stream": ""},
        "request": 7,
        "outcome": "refused",
        "latency_ns": 20_000_000,
        "notes": ["odd", "it is"],
        "fault": None,
    }
    return Message(**{**values, **changed})


GAP = Gap(1, 2, "", 0, 0, "192.0.2.1:5552", "[2001:db8::7]:40000", "server", "rabbitmq-stream", 10, 53, "lost", False)
EXCHANGE = Exchange(
    1, 3, "", 0, 0, "192.0.2.1:5552", "[2001:db8::7]:40000", "rabbitmq-stream", "Tune", None, None, 1, None, "unanswered", "closed", None, 5
)


def holds(expression: str, record: Any = None, **changed: Any) -> bool:
    return compile_filter(expression).keeps(message(**changed) if record is None else record)


@pytest.mark.parametrize(
    "expression",
    [
        "name == Open",
        "name == 'Open' and name == \"Open\"",
        "  name\n==\tOpen  ",
        "not name == Tune",
        "not not name == Open",
        "name == Tune or name == Open and kind == response",
        "name in {Tune,Open}",
        "name contains pe and name matches '^O.e'",
        "latency == 20ms and latency == 0.02s and latency == 20000us and latency == 20000000 and latency > 19.9ms",
        "latency_ns <= 20ms and not latency < 20ms and latency < 1min and latency < 1h",
        "size == 1500 and size == 1.5k and size < 1.5KiB and size in {1.5k}",
        "size >= 1500 and size <= 0x5dc and size > -1 and size < 1e6",
        "size > 0xff and size < 0xfff and size > 0x1k and not size == 0xfk",
        "time == 2023-11-14T22:13:20Z and time == '2023-11-14T23:13:20+01:00' and time > 2023-11-14Z",
        "time < 2023-11-14T22:13:20.000000001Z and time_ns == 1700000000000000000 and time_ns >= 2023-11-14T22:13Z",
        "time matches '^2023-11-14T22:13:20.0+Z$'",
        "src == 192.0.2.1 and src == 192.0.2.1:5552 and src == 192.0.0.0/16 and src != 192.0.2.1:1",
        "server == 192.0.2.1 and client == [2001:db8::7]:40000 and client == 2001:db8::/32 and client == 2001:0db8:0::7",
        "ip == 192.0.2.1 and ip == 2001:db8::7 and not ip == 10.0.0.0/8 and port == 5552 and port == 40000 and port > 39999",
        "src contains :55 and dst matches '40000$' and ip contains 2001",
        "response_code == access_refused and response_code == 'ACCESS REFUSED' and response_code == 16",
        "response_code in {ok, access_refused} and response_code != ok and response_code matches refused",
        "fields.response_code_label == 'access refused' and response_code_label contains access",
        "notes == odd and notes contains is and notes",
        "id == 4 and request and not fault and not fault.reason contains x and packets == 9",
        "not stream and not stream == x and stream != x",
        "number == 1 and record == message and v == 1",
    ],
)
def test_what_holds(expression: str) -> None:
    assert holds(expression)
    assert not holds(f"not ({expression})")


@pytest.mark.parametrize(
    ("expression", "open_", "publish", "any_"),
    [
        ("name == Open", True, False, True),
        ("name != Open", False, True, True),
        ("not (name == Open and size > 5)", True, True, True),
        ("not (name == Open or size > 5)", False, True, True),
        ("protocol == iggy or size > 5 and protocol == mewbase", False, False, False),
        ("protocol == iggy or size > 5", True, True, True),
        ("kind == response and name in {Open, Publish} and response_code == ok", True, False, True),
        ("port == 5552 and not kind == request", True, False, True),
        ("port == 1", False, False, False),
        ("ip == 10.0.0.0/8 or conversation == 4", False, False, False),
        ("record == gap", False, False, False),
        ("reason == lost or waited > 1s", False, False, False),
    ],
)
def test_what_may_be_kept_before_fields_are_known(expression: str, open_: bool, publish: bool, any_: bool) -> None:
    wanted = compile_filter(expression).wanted
    about = Head("rabbitmq-stream", 3, "192.0.2.1:5552", "[2001:db8::7]:40000")
    heads = (about._replace(name="Open", kind="response"), about._replace(name="Publish", kind="request"), about)
    assert tuple(wanted is None or bool(wanted(head)) for head in heads) == (open_, publish, any_)


def test_a_protocol_alone_is_a_filter() -> None:
    for record in (message(), GAP, EXCHANGE):
        assert holds("rabbitmq-stream", record)
        assert not holds("iggy or not rabbitmq-stream", record)
    assert holds("not (iggy and latency) and rabbitmq-stream and size == 1500")
    alone, written = compile_filter("seastar-rpc").wanted, compile_filter("protocol == seastar-rpc").wanted
    assert alone is not None and written is not None
    for protocol in ("seastar-rpc", "rabbitmq-stream"):
        head = Head(protocol, 3, "192.0.2.1:5552", "192.0.2.7:40000")
        assert alone(head) == written(head) == (protocol == "seastar-rpc")


def test_what_is_not_there_equals_nothing_and_differs_from_everything() -> None:
    for expression in ("name == Publish", "latency < 1s", "latency >= 0", "stream contains x", "response_code == ok", "name matches ''"):
        assert not holds(expression, GAP)
        assert holds(f"not {expression}", GAP)
    for operator in ("contains", "matches"):
        assert holds(f"name {operator} ''")
        assert not holds(f"reason {operator} ''", msgspec.structs.replace(EXCHANGE, reason=None))
    assert holds("name != Publish and latency != 1s and not name", GAP)
    assert holds("reason == lost and in_frame == false and size < 1KiB and not in_frame == true", GAP)
    assert holds("in_frame and position", GAP), "zero and false are there"
    assert holds("reason == closed and outcome == unanswered and name == Tune and not response", EXCHANGE)


def test_the_client_of_an_exchange_is_known_from_the_messages_before() -> None:
    found = compile_filter("client == 2001:db8::7")
    assert not found.keeps(EXCHANGE)
    assert found.select([message(), EXCHANGE, GAP]) == [message(), EXCHANGE, GAP]
    assert compile_filter("server == 2001:db8::7").select([message(), EXCHANGE, GAP]) == []
    assert not holds("client or server", sender=None)


def test_lists_are_passed_through_and_any_element_counts() -> None:
    entries = [{"size": 1, "sections": [{"section": "data", "value": "00"}]}, {"size": 300, "body": "ff"}]
    fields = {"chunk": {"num_entries": 2, "entries": entries}, "publishing_ids": [1, 2]}
    for expression in ("entries.size == 300", "fields.chunk.entries.size < 2", "publishing_ids == 2", "chunk and entries.body == ff"):
        assert holds(expression, fields=fields), expression
    assert not holds("entries.size == 2", fields=fields)
    assert holds("entries.size != 2", fields=fields)
    assert not holds("entries.size != 1", fields=fields), "a != b is not a == b"
    assert not holds("entries", fields={"chunk": {"entries": []}}), "an empty list is not there"


def test_entries_of_keys_and_values() -> None:
    fields = {"properties": [{"key": "product", "value": "x"}, {"key": "a b.c", "value": "7"}]}
    assert holds('fields.properties["product"] == x and properties["a b.c"] == 7 and not properties["none"]', fields=fields)
    assert holds("properties['product'] and fields.properties.key == product", fields=fields)
    assert not holds('properties["product"] == 7', fields=fields)


def test_open_documents_take_any_path_from_fields_on() -> None:
    event = {"price": 5, "tags": ["a", "b"], "in": {"deep": True}, "$x": "5", "a key": 1.5, "again": [{"key": "k", "value": 9}]}
    fields = {"type": "PUB", "frame": {"channel": "c", "event": event}}
    asked = {"protocol": "mewbase", "name": "PUB", "fields": fields}
    for expression in (
        "fields.frame.event.price == 5",
        "fields.frame.event.price in {4, 5} and fields.frame.event.price > 4.5",
        "fields.frame.event.tags == b and fields.frame.event.tags contains a",
        "fields.frame.event.in.deep == true and not fields.frame.event.in.deep == false",
        "fields.frame.event.$x == 5 and fields.frame.event.$x == '5'",
        'fields.frame.event["a key"] == 1.5 and fields.frame.event.again.k == 9',
        "not fields.frame.event.none and fields.frame.event",
        "channel == c and frame.channel == c",
    ):
        assert holds(expression, **asked), expression
    assert not holds("fields.frame.event.price == '5'", **asked), "quotes make a text"
    with pytest.raises(FilterError, match=r"no field is named event\.price"):
        compile_filter("event.price == 5")


def test_values_of_amqp_are_compared_without_their_type() -> None:
    fields = {"published_messages": [{"sections": [{"section": "properties", "value": {"ttl": {"type": "uint", "value": 9}}}]}]}
    assert holds("fields.published_messages.sections.value.ttl == 9", fields=fields)


def test_integers_wider_than_64_bits_are_numbers() -> None:
    asked = {"protocol": "iggy", "fields": {"messages": [{"id": "340282366920938463463374607431768211455"}]}}
    assert holds("messages.id == 340282366920938463463374607431768211455 and fields.messages.id > 1k", **asked)
    assert not holds("messages.id < 5", **asked)


def test_floats_that_are_no_numbers_are_less_than_nothing() -> None:
    asked = {"protocol": "iggy", "fields": {"cache_metrics": [{"hit_ratio": "NaN"}, {"hit_ratio": 0.25}]}}
    assert holds("hit_ratio == 0.25 and hit_ratio < 1", **asked)
    assert not holds("hit_ratio > 0.5 or hit_ratio <= 0.1", **asked)


def test_bytes_are_compared_as_hex_where_they_stay_bytes() -> None:
    fields = {"body": b"\x00\xff"}
    assert holds("fields.body == 00ff and fields.body contains ff and fields.body matches '^00'", fields=fields)


def test_labels_that_options_bring() -> None:
    options = Options(verbs={17: "GET_SCHEMA_VERSION"})
    asked = message(protocol="seastar-rpc", fields={"verb": 17, "verb_label": "GET_SCHEMA_VERSION"})
    assert compile_filter("verb == get_schema_version and verb == 17", options).keeps(asked)
    with pytest.raises(FilterError, match="did you mean GET_SCHEMA_VERSION"):
        compile_filter("verb == get_shema_version", options)
    # ScyllaDB's are found without an option where the traffic shows that it is ScyllaDB
    assert compile_filter("verb == get_schema_version").keeps(asked)
    with pytest.raises(FilterError, match=r"verb has no label sleep_long; .*; --verbs can give it other labels"):
        compile_filter("verb == sleep_long")


@pytest.mark.parametrize(
    ("expression", "carets", "told"),
    [
        ("", "^", "the filter is empty"),
        ("strem == x", "^^^^^", "no field is named strem; did you mean stream?"),
        ("name == x and fields.chunk.num_entris > 3", " " * 14 + "^" * 23, "did you mean fields.chunk.num_entries?"),
        ("iggy == 1", "^^^^", "no field is named iggy; did you mean protocol == iggy?"),
        ("not gap", "    ^^^", "no field is named gap; did you mean record == gap?"),
        ("size > 3 and Publish", "             ^^^^^^^", "no field is named Publish; did you mean name == Publish?"),
        ("publish", "^^^^^^^", "no field is named publish; did you mean name == Publish?"),
        ("unanswered", "^" * 10, "no field is named unanswered; did you mean outcome == unanswered?"),
        ("rabbitmq", "^" * 8, "no field is named rabbitmq; did you mean rabbitmq-stream?"),
        ("rabbitmq_stream", "^" * 15, "did you mean rabbitmq-stream?"),
        ("scylla", "^^^^^^", "did you mean seastar-rpc?"),
        ("tcp.lenght > 5", "^" * 10, "no field is named tcp.lenght; streamdump protocols --fields lists them"),
        ("peer_properties.product == x", "^" * 23, 'did you mean peer_properties["product"]?'),
        ("peer_properties[product] == x", " " * 15 + "^" * 9, 'a key in brackets needs quotes: ["product"]'),
        ("name.x == 1", "^^^^^^", "no field is named name.x"),
        ("fields.trailing.x == 1", "^" * 17, "no field is named fields.trailing.x; did you mean fields.trailing?"),
        ("response_code == acces_refused", " " * 17 + "^" * 13, "has no label acces_refused; did you mean access refused?"),
        ("latency > soon", " " * 10 + "^^^^", "latency is a duration; soon is not a duration; write 20ms"),
        ("latency > 20k", " " * 10 + "^^^", "latency has no unit k; the units are ns, us"),
        ("latency > 0.02", " " * 10 + "^" * 4, "latency is in nanoseconds without a unit; write 0.02s or 0.02ms"),
        ("size > 20ms", " " * 7 + "^^^^", "size is not a duration in ms"),
        ("size == big", " " * 8 + "^^^", "size is a number; big is not a number"),
        ("size == '5'", " " * 8 + "^^^", "size is a number; text in quotes is not a number"),
        ("name < 5", " " * 7 + "^", "name is text, which has no order"),
        ("in_frame < 5", " " * 11 + "^", "in_frame is true or false, which has no order"),
        ("src > 10.0.0.0", " " * 6 + "^" * 8, "is an address, and addresses have no order"),
        ("src == localhost", " " * 7 + "^" * 9, "src is an address; localhost is not an address"),
        ("size contains 5", " " * 14 + "^", "size is a number; contains works on text only"),
        ("chunk == 5", " " * 9 + "^", "chunk is an object"),
        ("time > yesterday", " " * 7 + "^" * 9, "time is a time; yesterday is not a time; write 2024-03-01T12:00:00Z"),
        ("time > 2024-03-01T12:00:00", " " * 7 + "^" * 19, "has no time zone"),
        ("time > 2024-02-30Z", " " * 7 + "^" * 11, "is not a time"),
        ("sender == sever", " " * 10 + "^^^^^", "sender is never sever; did you mean server?"),
        ("protocol in {iggy, rabbit}", " " * 19 + "^" * 6, "protocol is never rabbit"),
        ("record == endings", " " * 10 + "^" * 7, "record is never endings; did you mean ending"),
        ("name matches 'a('", " " * 13 + "^^^^", "not a valid regular expression"),
        ("name = Open", " " * 5 + "^", "= is not an operator; use =="),
        ("name == Open && size = 5", " " * 21 + "^", "= is not an operator; use =="),
        ("name == Open & size", " " * 13 + "^", "write and\n"),
        ("latency > 20 ms", " " * 13 + "^^", "write the unit directly after its number"),
        ("name not in {Open}", " " * 5 + "^^^", "write `not` before the name: not NAME in {a, b}"),
        ("number in {1..5}", " " * 11 + "^" * 4, "number is a number; 1..5 is not a number; write >= 1 and <= 5"),
        ("name == ", " " * 8 + "^", "a value is missing here"),
        ("name == and", " " * 8 + "^^^", "put quotes around and to use it as text"),
        ("(name == x", " " * 10 + "^", "a parenthesis is not closed"),
        ("name == x)", " " * 9 + "^", "`and` or `or` was expected here"),
        ("name == x name", " " * 10 + "^^^^", "`and` or `or` was expected here"),
        ("name x", " " * 5 + "^", "or an operator"),
        ("name in x", " " * 8 + "^", "`in` needs a list"),
        ("name in {}", " " * 9 + "^", "a value was expected here"),
        ("name in {a b}", " " * 11 + "^", "a comma or } was expected here"),
        ("name == 'x", " " * 8 + "^", "the quote that starts here is not closed"),
        ("5552 == port", "^^^^", "the name of a field was expected here"),
        ("size == " + "9" * 500, None, "is not a number"),
        ("(" * (DEPTH_LIMIT + 2) + "size" + ")" * (DEPTH_LIMIT + 2), None, "nested parentheses"),
        ("not " * 5000 + "size", None, "nested parentheses"),
        ("size or " * LENGTH_LIMIT, None, "the limit is"),
        ("size == 1\x1b[31m", " " * 8 + "^" * 9, r"size is a number; 1\x1b[31m is not a number"),
    ],
)
def test_what_is_refused_and_where(expression: str, carets: str | None, told: str) -> None:
    with pytest.raises(FilterError) as caught:
        compile_filter(expression)
    said = str(caught.value)
    assert told in said
    assert all(line.isprintable() for line in said.splitlines())
    assert len(said.splitlines()) == 3
    if carets is not None:
        assert said.splitlines()[2] == f"  {carets}"


def test_what_tshark_calls_otherwise_is_known_here_by_a_name_of_ours() -> None:
    known = {*names_of().known(), *(protocol.name for protocol in PROTOCOLS)}
    assert known.issuperset(FROM_TSHARK.values())
    assert known.isdisjoint(FROM_TSHARK)


def test_a_place_far_in_a_long_filter_is_shown_with_what_is_around_it() -> None:
    long = " or ".join(["size == 1"] * 100)
    with pytest.raises(FilterError) as caught:
        compile_filter(f"{long} or strem == 5 or {long}")
    _, line, carets = str(caught.value).splitlines()
    assert len(line) < 150
    assert line[carets.index("^") : carets.rindex("^") + 1] == "strem"


def test_a_name_or_value_of_thousands_of_parts_is_not_repeated_whole() -> None:
    long = ".".join(["part"] * 5_000)
    for text in (f"{long} == 1", long, f"response_code == {long}", f"kind == {long}", f"fields.size == '{long}'"):
        with pytest.raises(FilterError) as caught:
            compile_filter(text)
        assert len(caught.value.reason) < 300
    (hint,) = compile_filter(f"name == {long}").hints
    assert len(hint) < 200


def test_a_name_that_no_message_has_is_no_error_but_a_hint() -> None:
    assert compile_filter("name == publish").hints == ["no message is named publish; did you mean Publish?"]
    assert compile_filter("name == 'Q7'").hints == ["no message is named Q7; for the field with that name write fields.name"]
    assert compile_filter("name in {Open, 'unknown 0x0777'} or name contains publish").hints == []


def test_every_name_of_a_golden_capture_is_known() -> None:
    """Except names of unknown messages, and a type of mewbase that no server knows."""
    found = {name for path in GOLDEN.glob("*/*.jsonl") for name in re.findall(r'"name":"([^"]+)","kind"', path.read_text())}
    strange = {name for name in found - {*names_of().messages} if not name.startswith("unknown")}
    assert "Empty" in found and strange == {"PUBLISH"}


def test_what_latency_calls_a_command_is_a_name() -> None:
    hint = "command is a field name; did you mean name == Open?"
    assert compile_filter("command == Open or latency > 2s").hints == [hint]
    assert compile_filter("command in {reply, request} or command contains Open or stream == Open").hints == []


@pytest.mark.parametrize(
    ("name", "meant"), [("poll_messages", "name == poll_messages"), ("refused", "outcome == refused"), ("request", "kind == request")]
)
def test_a_name_that_is_a_value_too_comes_with_a_hint(name: str, meant: str) -> None:
    assert compile_filter(f"{name} or size > 5").hints == [f"{name} alone tests for a field with that name; did you mean {meant}?"]
    assert compile_filter(f"{meant} or not {name} != 1 or fault").hints == []


@pytest.mark.parametrize("term", ["latency > 1ms", "latency", "outcome == refused", "outcome in {answered, refused}"])
def test_a_request_with_what_only_its_response_has_comes_with_a_hint(term: str) -> None:
    hint = f"only responses have {term.split()[0]}, and no Publish is one; select a response by name instead"
    assert compile_filter(f"stream and name == Publish and {term}").hints == [hint]
    assert compile_filter(f"name == Publish and {term}", Options(exchanges=True)).hints == []
    assert compile_filter("name == Publish and outcome == refused", entries=True).hints == []
    for other in (f"name == Publish or {term}", f"name == Publish and not {term}", f"name == PublishConfirm and {term}"):
        assert compile_filter(other).hints == []


@pytest.mark.parametrize("name", ["Deliver", "Heartbeat"])
def test_no_hint_names_a_response_that_there_is_not(name: str) -> None:
    (hint,) = compile_filter(f"name == {name} and latency").hints
    assert hint == f"only responses have latency, and no {name} is one; select a response by name instead"


def test_unanswered_requests_and_names_of_both_need_no_hint() -> None:
    for text in ("name == Publish and outcome == unanswered", "name == Negotiation and latency", "name == Publish and latency != 1ms"):
        assert compile_filter(text).hints == []


def test_no_request_of_a_golden_capture_has_what_only_responses_have() -> None:
    found = {
        name
        for path in GOLDEN.glob("*/*.jsonl")
        for name, kind in re.findall(r'"name":"([^"]+)","kind":"([^"]+)"', path.read_text())
        if kind == "response"
    }
    assert found and not any(map(names_of().answers_nothing, found))


def test_a_time_without_a_unit_comes_with_a_hint() -> None:
    assert compile_filter("relative >= 2").hints == ["relative: 2 is in nanoseconds; did you mean 2s or 2ms?"]
    assert compile_filter("latency in {20, 30ms}").hints == ["latency: 20 is in nanoseconds; did you mean 20s or 20ms?"]
    assert compile_filter("latency > 0 or delta > 2s or waited_ns > 5000 or size > 20").hints == []


def test_a_name_that_is_an_object_elsewhere_comes_with_a_hint() -> None:
    assert compile_filter("stream_id == 1").hints == [
        "stream_id is an object in some messages; there its value is stream_id.value",
    ]
    with pytest.raises(FilterError, match=r"orders is not a number; in some messages its value is stream_id\.value"):
        compile_filter("stream_id == orders")
    assert compile_filter("stream_id.value == orders or partition_id == 1 or partitions == 1").hints == []


def test_hundreds_of_terms_are_one_filter() -> None:
    assert holds(" or ".join(f"size == {number}" for number in range(2000)))
    assert holds(f"size in {{{', '.join(map(str, range(2000)))}}}")
    assert holds("(" * (DEPTH_LIMIT - 1) + "size" + ")" * (DEPTH_LIMIT - 1))


def test_filters_that_look_at_keys_alone_leave_fields_alone() -> None:
    assert not compile_filter("name == Open and latency > 1ms or client == ::1").reads_fields
    assert compile_filter("name == Open and fields.stream").reads_fields
    assert compile_filter("fields").reads_fields
    # What is wrong with bodies shows once they are decoded
    assert compile_filter("notes").reads_fields
    assert compile_filter("fault.field contains body").reads_fields


def test_cheap_terms_are_asked_first() -> None:
    class Untouchable(dict[str, Any]):
        def get(self, *_: Any) -> Any:
            raise AssertionError("fields were looked at")

    assert not holds("response_code == ok and name == Publish", fields=Untouchable())
    assert holds("response_code == ok or name == Open", fields=Untouchable())


@given(st.integers(0, 40), st.integers(10, 60))
def test_a_search_takes_no_longer_for_what_drives_others_mad(few: int, many: int) -> None:
    assert not holds(f"name matches '^(a+)+{'b' * few}$'", name="a" * many * 1000 + "!")


# Any text

WORDS = ["name", "size", "stream", "latency", "time", "src", "fields.chunk", 'properties["a"]', "response_code", "fields.frame.event.x"]
WORDS += ["==", "!=", "<", "in", "{", "}", ",", "(", ")", "and", "or", "not", "contains", "matches"]
WORDS += ["'x'", '"(', "Open", "20ms", "::1/8", "\\"]
SOME = st.lists(st.sampled_from(WORDS), max_size=12)
SOUP = st.one_of(st.text(), SOME.map(" ".join), SOME.map("".join))


@given(SOUP)
def test_any_text_is_a_filter_or_an_error_with_a_place(text: str) -> None:
    try:
        found = compile_filter(text)
    except FilterError as error:
        assert 0 <= error.start <= len(text)
        line, carets = error.place()
        assert line.isprintable()
        assert set(carets) == {" ", "^"}
    else:
        for record in (message(), GAP, EXCHANGE):
            assert found.keeps(record) in (True, False)


NAMES = [name for name in names_of().known() if name != "fields"]
VALUES = st.one_of(
    st.integers().map(str),
    st.sampled_from(["true", "::1", "10.0.0.0/8", "20ms", "2024-03-01T12:00:00Z", "ok", "1KiB", "client", "iggy", "'a text'", "''"]),
    st.text(st.characters(exclude_characters='"\\', exclude_categories=["Cs"]), max_size=8).map(lambda text: f'"{text}"'),
)
TERMS = st.one_of(
    st.sampled_from(NAMES),
    st.builds("{} {} {}".format, st.sampled_from(NAMES), st.sampled_from(["==", "!=", "<", ">=", "contains", "matches"]), VALUES),
    st.builds("{} in {{{}, {}}}".format, st.sampled_from(NAMES), VALUES, VALUES),
)
KEYS = st.sampled_from(["stream", "key", "value", "type", "chunk", "x"])
LEAVES = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5), st.binary(max_size=3))
ANYTHING = st.recursive(LEAVES, lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(KEYS, inner)), max_leaves=8)


@given(TERMS, st.sampled_from([protocol.name for protocol in PROTOCOLS]), st.data())
def test_a_filter_stands_whatever_is_in_the_fields(term: str, protocol: str, data: st.DataObject) -> None:
    try:
        found, opposite = compile_filter(term), compile_filter(f"not {term}")
    except FilterError:
        return
    first = parts_of(term.split(" ")[0].removeprefix("fields."))[0]
    fields = data.draw(st.dictionaries(st.sampled_from([first, "stream", "chunk"]), ANYTHING, max_size=3))
    record = message(protocol=protocol, fields=fields, fault=Fault("x", 1, "why"))
    assert found.keeps(record) != opposite.keeps(record)


def test_every_name_that_is_listed_can_be_asked_for() -> None:
    for name, _, _ in names_of().listed():
        compile_filter(name)
    assert len(names_of().listed()) > 300


class Finding(msgspec.Struct, tag_field="record", tag="finding"):
    """One that may belong to no conversation."""

    conversation: int | None
    src: str | None
    dst: str | None
    rule: str
    severity: Literal["error", "warning"]
    messages: list[int]
    time_ns: int = 0


def test_a_new_kind_of_record_is_known_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    records = (Message, Gap, Exchange, Ending, Finding)
    monkeypatch.setattr("streamdump.filter.build.table_of", lambda options, entries: NameTable(options, records))
    ending = Ending(1, 1, "", 5, 0, "192.0.2.1:5552", "192.0.2.2:1", "server", None, "RST", 3_000_000_000, 0, 0)
    finding = Finding(None, None, None, "tcp.silence", "error", [4, 5])
    for expression in (
        "how == RST and quiet >= 3s and quiet_ns < 1min",
        "record == ending and open and server == 192.0.2.1 and not protocol",
    ):
        assert holds(expression, ending), expression
        assert not holds(expression, finding)
        assert not holds(expression)
    for expression in ("severity == error and messages == 5", "rule contains silence and not port == 5552 and not client and not ip"):
        assert holds(expression, finding), expression
        assert not holds(expression, ending)
    assert compile_filter("client == 192.0.2.2").select([ending, EXCHANGE, finding]) == [ending, EXCHANGE]
    with pytest.raises(FilterError, match="how is never RTS; did you mean RST"):
        compile_filter("how == RTS")


ODD = [*map(chr, range(0x180)), *map(chr, (0x61C, 0x200B, 0x200E, 0x202A, 0x202E, 0x2028, 0x2029, 0x2066, 0xFEFF, 0xE000, 0xFFFF, 0xE0041))]
"""Characters that act on a terminal, and all that a filter has its own meaning for."""


@given(st.lists(st.one_of(st.sampled_from([*ODD, "\ud800", "\udcff", "\\u"]), st.characters(codec=None))).map("".join))
def test_text_in_a_filter_is_read_back_and_acts_on_no_terminal(text: str) -> None:
    written = quoted(text)
    assert written.isprintable()
    for expression in (f"a == {written}", f"a contains {written}"):
        assert parse(expression).values[0].text == text  # type: ignore[union-attr]
    assert written == text or parts_of(f"a[{written}]") == ("a", text)
    # What a user wrote stays what it means
    for mark in "\"'":
        raw = f"a == {mark}{text.replace(mark, '')}{mark}"
        try:
            meant = parse(raw).values[0].text  # type: ignore[union-attr]
        except FilterError:
            continue
        assert printable(raw).isprintable()
        assert parse(printable(raw)).values[0].text == meant  # type: ignore[union-attr]


def test_each_character_is_found_by_its_number() -> None:
    for one in ODD:
        record = message(name="Create", kind="request", fields={"stream": f"a{one}b"})
        number = f"\\U{ord(one):08x}"
        expressions = [f'fields.stream == "a{number}b"', f'fields.stream contains "{number}"', f"fields.stream == {quoted(f'a{one}b')}"]
        for expression in [*expressions, f'fields.stream matches "a{number}b"']:
            assert compile_filter(expression).keeps(record), expression
        assert not compile_filter(f'fields.stream == "a\\{number}b"').keeps(record)


def test_a_backslash_before_another_letter_is_itself() -> None:
    for text in (r"\x1b", r"caf\xe9", r"\u12", r"\U00110000", r"\n"):
        assert compile_filter(f'fields.stream == "{text}"').keeps(message(name="Create", kind="request", fields={"stream": text}))
