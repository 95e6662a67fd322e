"""Framing, evolution and bad bytes."""

import io
import json

import fastavro
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas import ALL_TOPICS, EndReason, Policy, SchemaError, Step, Task, Trajectory, codec, decode, encode
from schemas.arrays import pack_floats, pack_ids, pack_mask, unpack_floats, unpack_ids, unpack_mask
from schemas.avro import avro_schema
from schemas.samples import sample
from schemas.topics import POLICIES, TASKS, TRAJECTORIES


@pytest.mark.parametrize("topic", ALL_TOPICS, ids=lambda topic: topic.base_name)
def test_round_trip(topic):
    record = sample(topic.record)
    assert decode(topic.record, encode(record)) == record
    assert decode(topic.record, encode(topic.record())) == topic.record()


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "without the Avro frame"),
        (b'{"task_id": "a"}', "without the Avro frame"),
        (encode(Policy(version=1)), "belongs to another topic"),
        (b"\0\0\0\x01\x09" + b"\0" * 40, "newer than this reader"),
        (encode(Task(task_id="a task"))[:12], "unreadable Task"),
    ],
    ids=["empty", "json", "other topic", "newer", "cut"],
)
def test_bad_bytes_are_refused_with_the_reason(data, says):
    with pytest.raises(SchemaError, match=says):
        decode(Task, data)


def test_wrong_value_is_refused():
    with pytest.raises(SchemaError, match=r"policies\.v1: cannot encode Policy"):
        encode(Policy(version="seven"))  # type: ignore[arg-type]


def test_key_of_refuses_another_record():
    assert TASKS.key_of(Task(task_id="t1")) == "t1"
    with pytest.raises(SchemaError, match="carries Task, not Step"):
        TASKS.key_of(Step())


@pytest.fixture
def history(tmp_path, monkeypatch):
    """A history of our own: `history(topic, schema, …)` writes the released versions down."""
    monkeypatch.setattr(codec, "HISTORY", tmp_path)
    for cached in (codec.latest_version, codec._released, codec._reader_schema):
        monkeypatch.setattr(codec, cached.__name__, cached.__wrapped__)

    def write(topic, *schemas):
        (tmp_path / topic.base_name).mkdir()
        for version, schema in enumerate(schemas, 1):
            (tmp_path / topic.base_name / f"v{version}.avsc").write_text(json.dumps(schema))

    return write


def test_enum_symbol_that_is_gone_reads_as_unknown(history):
    older = avro_schema(Trajectory)
    field = next(f for f in older["fields"] if f["name"] == "end_reason")
    field["type"]["symbols"].append("abducted")
    history(TRAJECTORIES, older, avro_schema(Trajectory))
    data = b"\0\0\0\x05\x01" + avro_body(older, {"end_reason": "abducted"})
    assert decode(Trajectory, data).end_reason is EndReason.UNKNOWN


def test_older_version_reads_with_defaults(history):
    older = avro_schema(Policy)
    older["fields"] = [f for f in older["fields"] if f["name"] in ("policy_id", "version")]
    history(POLICIES, older, avro_schema(Policy))
    data = b"\0\0\0\x08\x01" + avro_body(older, {"policy_id": "p", "version": 3})
    assert decode(Policy, data) == Policy(policy_id="p", version=3)


def avro_body(schema, value):
    body = io.BytesIO()
    fastavro.schemaless_writer(body, fastavro.parse_schema(schema), value)
    return body.getvalue()


@given(st.lists(st.integers(-(2**31), 2**31 - 1)), st.lists(st.integers(0, 1)))
def test_ids_and_masks_round_trip(ids, mask):
    assert unpack_ids(pack_ids(ids)) == ids
    assert unpack_mask(pack_mask(mask)) == mask


@given(st.lists(st.floats(width=32, allow_nan=False)))
def test_floats_round_trip(values):
    assert unpack_floats(pack_floats(values)) == values


def test_wire_form_of_arrays():
    assert pack_ids([1, 258]) == b"\x01\0\0\0\x02\x01\0\0"
    assert pack_floats([-0.5]) == b"\0\0\0\xbf"
    with pytest.raises(SchemaError, match="5 bytes"):
        unpack_ids(b"12345")
