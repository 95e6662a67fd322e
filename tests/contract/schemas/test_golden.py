"""Every version that was ever released still reads, by our codec and by Apache's own reader."""

import io
import json

import pytest
from avro.io import BinaryDecoder, DatumReader
from avro.schema import parse

from schemas import ALL_TOPICS, decode, encode
from schemas.codec import latest_version, released_schema, schema_id
from schemas.compatibility import golden_path, incompatibilities, plain, problems
from schemas.samples import sample

VERSIONS = [(topic, version) for topic in ALL_TOPICS for version in range(1, latest_version(topic) + 1)]


def name(value):
    return getattr(value, "base_name", f"v{value}")


@pytest.mark.parametrize(("topic", "version"), VERSIONS, ids=name)
def test_golden_bytes_read_by_both_readers(topic, version):
    golden = json.loads(golden_path(topic, version).read_text())
    data = bytes.fromhex(golden["bytes"])
    assert data[:5] == b"\0" + schema_id(topic, version).to_bytes(4, "big")

    ours = plain(decode(topic.record, data))
    schema = parse(json.dumps(released_schema(topic, version)))
    apache = DatumReader(schema, schema).read(BinaryDecoder(io.BytesIO(data[5:])))

    assert json.loads(json.dumps(apache, default=bytes.hex)) == golden["record"]
    for field, value in golden["record"].items():
        assert ours[field] == value


@pytest.mark.parametrize("topic", ALL_TOPICS, ids=name)
def test_newest_golden_is_what_we_write(topic):
    golden = json.loads(golden_path(topic, latest_version(topic)).read_text())
    assert encode(sample(topic.record)).hex() == golden["bytes"]


@pytest.mark.parametrize("topic", ALL_TOPICS, ids=name)
def test_schemas_agree_with_every_release(topic):
    assert problems(topic) == []


def field(schema, name):
    return next(f for f in schema["fields"] if f["name"] == name)


@pytest.mark.parametrize(
    ("change", "compatible"),
    [
        (lambda s: s["fields"].append({"name": "new", "type": "long", "default": 0, "doc": "d"}), True),
        (lambda s: s["fields"].append({"name": "new", "type": "long", "doc": "d"}), False),
        (lambda s: field(s, "step").update(type="string", default=""), False),
        (lambda s: field(s, "step").update(type="double"), False),
        (lambda s: s["fields"].remove(field(s, "step")), True),
        (lambda s: field(s, "step").update(name="optimizer_step"), True),
    ],
    ids=[
        "field with default",
        "field without default",
        "type changed",
        "type widened",
        "field removed",
        "renamed",
    ],
)
def test_checker_tells_breaking_changes(change, compatible):
    topic = next(t for t in ALL_TOPICS if t.name == "policies")
    schema = released_schema(topic, 1)
    change(schema)
    assert (incompatibilities(topic, schema, range(1, 2)) == []) is compatible
