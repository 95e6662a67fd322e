"""Records become columns that SQL can read."""

from datetime import datetime
from typing import get_type_hints

import pyarrow as pa
import pytest

from ingest.archive.columns import ORIGIN, PACKED, record_schema, to_table
from ingest.archive.letters import Letter
from ingest.archive.letters import to_table as letters_table
from ingest.kafka.consumer import Received
from schemas import (
    ALL_TOPICS,
    Blob,
    Completion,
    CompletionStatus,
    EndReason,
    Record,
    RolloutEvent,
    Sample,
    Step,
    Task,
    TaskFile,
    Topic,
    Trajectory,
    VersionRun,
)
from schemas.arrays import pack_floats, pack_ids, pack_mask
from schemas.topics import COMPLETIONS


def received(*records: Record) -> list[Received]:
    topic = next(topic for topic in ALL_TOPICS if topic.record is type(records[0]))
    return [
        Received(topic, 1, 10 + number, topic.key_of(record), record, {}, 1_700_000_000_000_000)
        for number, record in enumerate(records)
    ]


def column(name: str, *records: Record) -> list:
    return to_table(type(records[0]), received(*records))[name].to_pylist()


@pytest.mark.parametrize("topic", ALL_TOPICS, ids=lambda topic: topic.name)
def test_every_record_has_columns_empty_or_not(topic: Topic) -> None:
    schema = record_schema(topic.record)
    assert [*topic.record.__struct_fields__, *ORIGIN.names] == schema.names
    assert to_table(topic.record, []).schema == schema
    table = to_table(topic.record, received(topic.record(), topic.record()))
    table.validate(full=True)
    assert (table.schema, table.num_rows) == (schema, 2)


def test_bytes_are_either_numbers_or_known_to_be_none() -> None:
    def bytes_fields(record: type[Record]) -> set[str]:
        return {name for name, hint in get_type_hints(record).items() if hint in (bytes, bytes | None)}

    records = [*(topic.record for topic in ALL_TOPICS), Sample, TaskFile]
    assert set().union(*map(bytes_fields, records)) - PACKED.keys() == {"content", "data"}


def test_a_row_says_where_it_came_from() -> None:
    table = to_table(Completion, received(Completion(rollout_id="r1"), Completion(rollout_id="r2")))
    assert table["_key"].to_pylist() == ["r1", "r2"]
    assert table["_partition"].to_pylist() == [1, 1]
    assert table["_offset"].to_pylist() == [10, 11]
    assert table["_timestamp"].to_pylist() == [datetime(2023, 11, 14, 22, 13, 20)] * 2


def test_token_ids_masks_and_logprobs_become_lists() -> None:
    rows = [
        Completion(completion_token_ids=pack_ids([1, -2, 70_000]), rollout_logprobs=pack_floats([-0.5, -1.5, 0])),
        Completion(),
        Completion(completion_token_ids=pack_ids([5])),
    ]
    assert column("completion_token_ids", *rows) == [[1, -2, 70_000], [], [5]]
    assert column("rollout_logprobs", *rows) == [[-0.5, -1.5, 0.0], [], []]


def test_bytes_that_are_no_numbers_are_null_and_harm_no_other_row() -> None:
    rows = [Completion(completion_token_ids=pack_ids([1])), Completion(completion_token_ids=b"12345"), Completion()]
    rows.append(Completion(completion_token_ids=pack_ids([2, 3])))
    assert column("completion_token_ids", *rows) == [[1], None, [], [2, 3]]


def test_nested_records_stay_structs() -> None:
    one = Sample(
        branch=1,
        token_ids=pack_ids([7, 8]),
        loss_mask=pack_mask([0, 1]),
        policy_version_runs=[VersionRun(version=3, start=1, end=2)],
        completion_ids=["a", "b"],
    )
    first, second = column("samples", Trajectory(samples=[one, Sample()]), Trajectory())
    assert second == []
    assert first[0] == {
        "branch": 1,
        "token_ids": [7, 8],
        "loss_mask": [0, 1],
        "rollout_logprobs": [],
        "policy_version_runs": [{"version": 3, "start": 1, "end": 2}],
        "completion_ids": ["a", "b"],
    }
    assert first[1]["policy_version_runs"] == []


def test_enums_maps_texts_and_nulls_keep_their_values() -> None:
    assert column("status", Completion(status=CompletionStatus.ABORTED)) == ["aborted"]
    events = RolloutEvent(end_reason=EndReason.COMPLETED, reward=0.5, rewards={"a": 1.0}), RolloutEvent()
    assert column("end_reason", *events) == ["completed", None]
    assert column("reward", *events) == [0.5, None]
    assert column("rewards", *events) == [[("a", 1.0)], []]
    assert column("request_delta", Completion(request_delta='[{"role": "user"}]')) == ['[{"role": "user"}]']
    assert column("offsets", Step(offsets={"0": 5})) == [[("0", 5)]]
    assert column("data", Blob(data=b"\0\xff")) == [b"\0\xff"]
    (files,) = column("files", Task(files=[TaskFile(path="p", content=b"x"), TaskFile(blob="sha")]))
    assert [(f["content"], f["blob"]) for f in files] == [(b"x", None), (None, "sha")]


def test_dead_letters_have_columns_too() -> None:
    letter = Letter(COMPLETIONS, 0, 4, "key", 1_000_000, 3, 99, "cut", b"\0", {"h": "v"})
    (row,) = letters_table([letter]).to_pylist()
    assert (row["origin_topic"], row["origin_partition"], row["origin_offset"]) == ("completions.v1", 3, 99)
    assert (row["reason"], row["value"], row["headers"], row["_offset"]) == ("cut", b"\0", [("h", "v")], 4)
    assert pa.types.is_timestamp(letters_table([]).schema.field("_timestamp").type)
