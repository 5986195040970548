"""The columns of tables: typed members say what the JSON says, whatever the values are."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Iterable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet
import pytest
from pyspark.sql.pandas.types import from_arrow_schema

from streamdump.capture.files import open_capture
from streamdump.capture.link import LinkParser
from streamdump.conversation.run_state import EVERY
from streamdump.diagnose.engine import SPEAKS
from streamdump.inspector import Inspector
from streamdump.layout import (
    Array,
    Bits,
    Choice,
    Field,
    Group,
    Layout,
    Style,
    Text,
    boolean,
    f64,
    i8,
    i16,
    i64,
    read,
    u8,
    u16,
    u64,
    u128,
)
from streamdump.model import Message, Options, Segment
from streamdump.protocols import PROTOCOLS
from streamdump.protocols.dissector import Dissector
from streamdump.protocols.field_registry import declared
from streamdump.protocols.protocol import LoadedProtocol, Protocol
from streamdump.spark import flows, tables, typed, write
from streamdump.spark.flows import CaptureFacts, Dissection, Linked, TaskResults
from streamdump.spark.storage import folder as place
from streamdump.spark.tables import TABLES, TYPED, PendingRows, schema, tables_with
from streamdump.spark.typed import STRUCTS, Member, Struct
from streamdump.spark.views import views
from streamdump.spark.write import PartWriter, Target, rows_of
from tests.bench.hostile import MANY, bombs, many
from tests.spark.captures import generated
from tests.spark.comparing import columns as batch
from tests.support.columns import PAGE, columns, text
from tests.support.encoder import encode

GOLDEN = Path(__file__).parents[2] / "captures" / "golden"


def messages(path: Path, **options: Any) -> list[Linked]:
    inspector = Inspector([open_capture(path)], Options(**options))
    return [(one, None, None) for one in inspector.records() if isinstance(one, Message)]


def fed(straight: Dissection, segments: Iterable[Segment]) -> Iterator[TaskResults]:
    """Yield what segments in the order of a plain run result in."""
    return straight.feed(0, list(segments), {})


def digits(member: Member) -> bool:
    """Whether some messages have an integer of up to 64 bits there, and others text."""
    return any(one.startswith(("uint", "int")) and "128" not in one for one in member.info.split(";")[0].split(" or "))


def expected(member: Member, value: Any) -> Any:
    """What a member holds of a value as the JSON has it, by the rules that the module states."""
    kind = member.type
    if isinstance(member, Struct):
        return {name: expected(one, value.get(name)) for name, one in member.members.items()} if isinstance(value, dict) else None
    if pa.types.is_list(kind):
        return [expected(Member(kind.value_type, "", lambda _: None), one) for one in value] if isinstance(value, list) else None
    if kind == pa.bool_():
        return value if isinstance(value, bool) else None
    if kind == typed.TEXT:
        return str(value) if type(value) is int and digits(member) else value if isinstance(value, str) else None
    if kind == pa.float64():
        return value if isinstance(value, float) else typed.NOT_FINITE.get(value) if isinstance(value, str) else None
    if type(value) is not int:
        return None
    if kind == typed.WIDE:
        return Decimal(value) if abs(value) < 10**20 else None
    low, high = -1 << kind.bit_width - 1, (1 << kind.bit_width - 1) - 1
    return value if low <= value <= high else None


def typed_rows(protocol: str, rows: list[Linked]) -> list[Linked]:
    return dict(rows_of(TaskResults(rows), {TYPED[protocol]})).get(TYPED[protocol], [])


def check(rows: list[Linked]) -> int:
    """Every typed column is what the JSON of its message says; how many values are not null."""
    held = 0
    for protocol, struct in STRUCTS.items():
        mine = typed_rows(protocol, rows)
        texts = {row["message_id"]: row["fields"] for row in batch("messages", mine).to_pylist()}
        made = batch(TYPED[protocol], mine)
        made.validate(full=True)
        assert made.schema.equals(schema(TYPED[protocol]))
        assert made.num_rows == len(mine)
        for row in made.to_pylist():
            found = {name: row[name] for name in struct.members}
            fields = json.loads(texts[row["message_id"]])
            assert repr(found) == repr(expected(struct, fields)), "by what is printed, since NaN is not itself"
            held += sum(value is not None for value in found.values())
    return held


@pytest.mark.parametrize("folder", sorted(path.name for path in GOLDEN.iterdir() if path.is_dir()))
def test_typed_members_say_what_the_json_says(folder: str) -> None:
    held = rows = 0
    everything: list[Linked] = []
    for path in sorted(GOLDEN.joinpath(folder).glob("*.pcap*")):
        found = messages(path)
        held += check(found)
        rows += len(found)
        everything += found
    assert held > 2 * rows > 0
    # All of them together, in an order in which no two neighbours are alike, are the same columns.
    for at, one in enumerate(everything):
        one[0].conversation = at
    mixed = sorted(everything, key=lambda one: hash((one[0].position * 7919, one[0].size)))
    assert check(mixed) == held


def test_the_page_of_columns_is_made_from_them() -> None:
    assert PAGE.read_text() == text()


def test_all_columns_are_documented() -> None:
    for table in TABLES:
        found = list(columns(table))
        assert [name for name, _, _ in found if "." not in name] == schema(table).names
        assert all(info for _, _, info in found)
        names = [name.lower() for name, _, _ in found]
        assert len(set(names)) == len(names), "Spark does not tell names apart by case, and no field has the name of a key"
    assert {TYPED[one.name] for one in PROTOCOLS} == {*tables_with("typed")} - {*tables_with("json")}
    said = {f"{table.removeprefix('messages_')}.{name}": (kind, info) for table in TYPED.values() for name, kind, info in columns(table)}
    assert said["rabbitmq_stream.correlation_id"][0] == "bigint"
    assert said["rabbitmq_stream.offset"][0] == "decimal(20,0)"
    assert said["rabbitmq_stream.publishing_ids"][0] == "array<decimal(20,0)>"
    assert said["rabbitmq_stream.chunk.num_records"][0] == "bigint"
    assert said["rabbitmq_stream.response_code_label"] == ("string", "what response_code means")
    assert said["iggy.stream_id.value"][0] == "string"
    assert said["iggy.checksum"][0] == "string"
    assert said["seastar_rpc.msg_id"] == ("bigint", "int64le; rises, with gaps; the request's; its opposite for an exception")
    assert said["mewbase.frame.pos"][0] == "bigint"
    assert "rabbitmq_stream.properties" not in said, "maps are left to the JSON"


U8_LABELS = {1: "one"}
INVENTED = Layout(
    "Invented",
    Field("small", i8),
    Field("kind", u8, labels=U8_LABELS),
    Field("flag", boolean),
    Field("ratio", f64),
    Field("huge", u128),
    Field("flags", Bits(u8, ("level", 4), ("mode", 4, U8_LABELS))),
    Field("many", Array(i16, u8)),
    Field("either", Choice("kind", {1: Text(u8)}, u64)),
    Field("inner", Group(Field("least", i64), Field("most", u64))),
    Field("pairs", Array((Field("key", u8),), u8)),
)
OTHER = Layout("Other", Field("small", u16), Field("inner", u8), Field("many", u8))


def invented() -> Protocol:
    return Protocol("made-up", "Made Up", (), lambda: LoadedProtocol(Dissector, lambda _: None, lambda _: "", (INVENTED, OTHER)))


def test_a_new_protocol_has_its_struct_without_a_line_here() -> None:
    struct = Struct("", declared(invented()))
    assert {field.name: str(field.type) for field in struct.type} == {
        "small": "int32",
        "kind": "int16",
        "kind_label": "string",
        "flag": "bool",
        "ratio": "double",
        "huge": "string",
        "flags": "struct<level: int8, mode: int8, mode_label: string>",
        "either": "string",
        "inner": "struct<least: int64, most: decimal128(20, 0)>",
    }
    most, least = (1 << 64) - 1, -1 << 63
    more = {"huge": "7", "flags": {"level": 3, "mode": 1}, "many": [1], "pairs": []}
    values = [
        (INVENTED, {"small": -5, "kind": 1, "flag": True, "ratio": 1.5, "either": "text", "inner": {"least": least, "most": most}, **more}),
        (OTHER, {"small": 65535, "inner": 3, "many": 1}),
        (INVENTED, {"small": 5, "kind": 2, "flag": False, "ratio": math.nan, "either": most, "inner": {"least": 0, "most": 1}, **more}),
    ]
    objects = []
    for layout, one in values:
        data = encode(layout, one)
        objects.append(read(layout, data, 0, len(data), Style())[0])
    first, second, third = struct.array(objects).to_pylist()
    assert first["flags"] == {"level": 3, "mode": 1, "mode_label": "one"}
    assert [first[name] for name in ("small", "kind", "kind_label", "flag", "ratio", "huge")] == [-5, 1, "one", True, 1.5, "7"]
    assert [first["either"], third["either"]] == ["text", str(most)]
    assert first["inner"] == {"least": least, "most": Decimal(most)}
    assert second == {**dict.fromkeys(first), "small": 65535}
    assert math.isnan(third["ratio"])
    assert [third["kind_label"], third["flag"]] == [None, False]


ODD: list[Any] = [None, True, False, 0, 1, -1, 200, 40_000, 1 << 31, 1 << 62, (1 << 64) - 1, 1 << 64, -1 << 63, -1 << 70, 1.5, 2.0]
ODD += ["", "text", "NaN", "-Infinity", [], [1, None, "a", True, 1 << 64, [2]], ["a", "b"], {}, {"kind": 1}, {"kind": "x", "value": 5}]


def test_values_that_do_not_fit_are_null_and_stop_nothing() -> None:
    some = messages(next(iter(sorted(GOLDEN.glob("rabbitmq-stream/*.pcap")))))[0][0]
    rows: list[Linked] = []
    inside = STRUCTS["mewbase"].members["frame"]
    assert isinstance(inside, Struct)
    for protocol, struct in STRUCTS.items():
        for number, value in enumerate(ODD):
            fields = dict.fromkeys(struct.members, value)
            inner = dict.fromkeys(inside.members, value)
            if number % 2 and protocol == "mewbase":
                fields["frame"] = inner
            fields["not_declared"] = value
            rows.append((msgspec.structs.replace(some, protocol=protocol, fields=fields), None, None))
            rows.append((msgspec.structs.replace(some, protocol=protocol, fields={"size": value}), None, None))
    for at, row in enumerate(rows):
        row[0].conversation = at
        check([row])
    check(rows)


def test_secrets_are_hidden_as_in_the_json() -> None:
    path = sorted(GOLDEN.glob("rabbitmq-stream/*.pcap"))[0]
    check(messages(path, show_secrets=True))
    hidden, shown = (batch(TYPED["rabbitmq-stream"], messages(path, show_secrets=show)) for show in (False, True))
    secrets = [one for one in shown["sasl_opaque_data"].to_pylist() if one]
    texts = [one for one in hidden["sasl_opaque_data"].to_pylist() if one]
    assert len(texts) == len(secrets) > 0
    assert all(one.startswith("<redacted ") for one in texts)
    assert all(one in str(shown.to_pylist()) and one not in str(hidden.to_pylist()) for one in secrets)


def test_keys_that_peers_choose_and_orders_of_others_cost_nothing() -> None:
    (row, *_) = [one for one in messages(GOLDEN / "mewbase" / "bad-element.pcap") if len(one[0].fields) > 2]
    waiting = PendingRows("messages_mewbase", "typed")
    for at in range(1_000):
        fields = {"size": 9, "type": "x", f"k{at}": 1}
        waiting.add([(msgspec.structs.replace(row[0], fields=fields), None, None)])
    assert tables.Rows(waiting.rows, True).fields.keys() == STRUCTS["mewbase"].members.keys()
    table = waiting.batch([])
    assert table.num_rows == 1_000
    assert table["size"].to_pylist() == [9] * 1_000
    assert table.column_names == schema("messages_mewbase").names
    assert not waiting.rows


def written(folder: Path, rows: list[Linked]) -> Path:
    writer = PartWriter(Target(str(folder), "parquet", fields="both"))
    for at, one in enumerate(rows):
        one[0].conversation = at
        writer.add(TaskResults([one], files={at: 0}))
    for table in TABLES:
        writer.empty(table)
    writer.close()
    return folder / "files"


def test_few_rows_are_held_and_many_written_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = messages(GOLDEN / "iggy" / "py060-basic.pcap")
    held: list[int] = []
    monkeypatch.setattr(write, "GROUP_BYTES", 1000)
    monkeypatch.setattr(write, "ROW_GROUP_BYTES", 30_000)
    made = PendingRows.batch
    monkeypatch.setattr(
        PendingRows, "batch", lambda self, *more: (self._name == "messages" and held.append(len(self.rows))) or made(self, *more)
    )
    (path,) = written(tmp_path, rows).joinpath("messages").iterdir()
    assert sum(held) == len(rows)
    assert len(held) > 3
    file = pa.parquet.ParquetFile(path)
    assert 1 < file.num_row_groups < len(held)
    assert file.read().combine_chunks().equals(batch("messages", rows).combine_chunks())


def test_a_session_reads_what_became_certain_together() -> None:
    rows = messages(GOLDEN / "iggy" / "py060-basic.pcap")
    found = list(write.batches("messages", [TaskResults([one]) for one in rows], {}))
    assert len(found) == len(rows)
    assert pa.Table.from_batches(found).combine_chunks().equals(batch("messages", rows).combine_chunks())


def test_few_unpacked_bytes_are_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parser = LinkParser()
    file = bombs(5_000, "LZ4 of Seastar", 30_000, 1_000).file
    segments = [parser.segment(packet, 0) for packets in open_capture(io.BytesIO(file)).batches() for packet in packets]
    given = [one for one in segments if one is not None]
    held: list[int] = []
    made = PendingRows.batch
    monkeypatch.setattr(
        PendingRows, "batch", lambda self, *more: (self._name == "messages" and held.append(len(self.rows))) or made(self, *more)
    )
    for limit in (1 << 40, 90_000):
        held.clear()
        monkeypatch.setattr(flows, "HELD_UNPACKED", limit)
        monkeypatch.setattr(write, "GROUP_BYTES", limit)
        with PartWriter(Target(str(tmp_path / str(limit)), "parquet")) as writer:
            straight = Dissection(Options(), CaptureFacts())
            for results in (*fed(straight, given), *straight.end()):
                writer.add(results)
        assert sum(held) > 20
        assert (max(held) < 10) == (limit == 90_000)


def test_of_what_a_server_speaks_the_first_step_says_it() -> None:
    parser = LinkParser()
    file = many(52 * 100, MANY["a greeting of Seastar"]).file
    segments = [parser.segment(packet, 0) for packets in open_capture(io.BytesIO(file)).batches() for packet in packets]
    given = [one for one in segments if one is not None]
    straight = Dissection(Options(findings=True), CaptureFacts(ends_ns={EVERY: given[-1].time_ns}))
    steps = [step for results in (*fed(straight, given), *straight.end()) for step in results.steps]
    assert {step[0] for *_, step in steps} == {SPEAKS}
    # Conversations end together, in no order of time: each step left is before all others
    places = [place[:3] for place, *_ in steps]
    assert places == sorted(set(places), reverse=True)
    assert 1 <= len(places) < 20
    assert places[-1][1] == given[0].time_ns


def test_records_are_let_go_some_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parser = LinkParser()
    segments = [parser.segment(packet, 0) for packets in open_capture(generated(tmp_path)).batches() for packet in packets]
    assert len(segments) == 4000
    straight = Dissection(Options(), CaptureFacts())
    monkeypatch.setattr(write, "GROUP", 300)
    held, most, waited = 0, 0, 0
    with PartWriter(Target(str(tmp_path / "out"), "parquet")) as writer:
        for results in fed(straight, [one for one in segments if one is not None]):
            most = max(most, len(results.records))
            held += sum(type(one[0]) is Message for one in results.records)
            writer.add(results)
            waited = max(waited, *(len(one.rows) for one in writer._waiting.values()))
    assert sum(one.rows for one in writer.receipt.files["messages"]) == held > 2000
    assert most < 1000
    assert waited < 300


def test_parquet_is_read_rightly_by_others(session: Any, tmp_path: Path) -> None:
    rows = [one for family in sorted(GOLDEN.iterdir()) for path in sorted(family.glob("*.pcap"))[1::3] for one in messages(path)]
    out = written(tmp_path, rows)
    assert check(rows) > 0
    spark = session.spark
    for protocol, name in TYPED.items():
        table = pa.parquet.read_table(out / name)
        assert table.schema.equals(schema(name))
        assert table.num_rows == len(typed_rows(protocol, rows)) > 0
        found = spark.read.parquet(str(out / name))
        assert found.schema.simpleString() == from_arrow_schema(schema(name)).simpleString()
        members = list(STRUCTS[protocol].members)
        said = [row.asDict(recursive=True) for row in found.select(members).collect()]
        assert sorted(map(repr, said)) == sorted(map(repr, table.select(members).to_pylist()))
    assert schema("messages_iggy").field("stream_id").metadata[b"comment"].startswith(b"object or uint32le")

    views(spark, place(out))
    lines = [one[0] for one in rows]
    streams = [one for one in lines if one.protocol == "rabbitmq-stream" and one.fields.get("stream") and one.kind == "request"]
    stream = streams[0].fields["stream"]
    same = [one for one in streams if one.fields["stream"] == stream]
    chunks = [
        one.fields["chunk"]["num_records"]
        for one in lines
        if isinstance(one.fields.get("chunk"), dict) and "num_records" in one.fields["chunk"]
    ]
    # All at once, as planning a query costs more than all these rows
    ((count, most, total, half, largest, by_path),) = spark.sql(
        f"""select count(*) filter (where r.stream = '{stream}' and kind = 'request'),
        max(r.correlation_id) filter (where r.stream = '{stream}' and kind = 'request'),
        sum(r.chunk.num_records) + coalesce(sum(d.chunk.num_records), 0), percentile(i.offset, 0.5),
        collect_set(max_topic_size) filter (where max_topic_size > 9223372036854775807),
        count(*) filter (where variant_get(variant, '$.stream', 'string') = '{stream}')
        from messages as m left join messages_rabbitmq_stream as r on m.message_id = r.message_id
        left join messages_rabbitmq_stream_draft as d on m.message_id = d.message_id
        left join messages_iggy as i on m.message_id = i.message_id"""
    ).collect()
    assert (count, most) == (len(same), max(one.fields.get("correlation_id", 0) for one in same))
    assert total == sum(chunks)
    assert half is not None
    assert largest == [Decimal((1 << 64) - 1)]
    assert by_path >= count
