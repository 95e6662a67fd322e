"""Checks the schemas against everything that was ever released: `python -m schemas.compatibility [--release]`.

FULL_TRANSITIVE: the newest reader reads every released version, and every released reader reads the newest.
The judge is Apache's own `avro` package, which shares no code with the codec.
"""

import json
import sys
from pathlib import Path
from typing import Any

import msgspec

from schemas.avro import avro_schema
from schemas.codec import encode, history_folder, latest_version, released_schema
from schemas.record import Record
from schemas.samples import sample
from schemas.topics import ALL_TOPICS, Topic


def problems(topic: Topic) -> list[str]:
    """What is wrong with a topic's schema, one line each; empty when all is well."""
    newest, current = latest_version(topic), avro_schema(topic.record)
    if newest == 0 or released_schema(topic, newest) != current:
        return [
            f"{topic.base_name}: {topic.record.__name__} differs from its released schema v{newest}: "
            f"run `python -m schemas.compatibility --release` to write v{newest + 1} and its golden bytes"
        ]
    return incompatibilities(topic, current, range(1, newest + 1))


def incompatibilities(topic: Topic, schema: dict[str, Any], versions: range) -> list[str]:
    """Where `schema` and a released version cannot read each other, in either direction."""
    from avro.compatibility import ReaderWriterCompatibilityChecker, SchemaCompatibilityType
    from avro.schema import parse

    found = []
    candidate = parse(json.dumps(schema))
    for version in versions:
        released = parse(json.dumps(released_schema(topic, version)))
        for direction, reader, writer in (("read", candidate, released), ("be read by", released, candidate)):
            result = ReaderWriterCompatibilityChecker().get_compatibility(reader, writer)
            if result.compatibility is not SchemaCompatibilityType.compatible:
                found.append(f"{topic.base_name}: cannot {direction} v{version}: {'; '.join(result.messages)}")
    return found


def golden_path(topic: Topic, version: int) -> Path:
    """A record in that version: `bytes` in hex, and `record` as plain values. Written once, never again."""
    return history_folder(topic) / f"v{version}.golden.json"


def release(topic: Topic) -> str | None:
    """Write the current schema and a golden record down as the next version, if it changed. Returns the new name."""
    newest, current = latest_version(topic), avro_schema(topic.record)
    if newest and released_schema(topic, newest) == current:
        return None
    if found := incompatibilities(topic, current, range(1, newest + 1)):
        raise SystemExit("\n".join([*found, "an incompatible change is a new topic major"]))
    path = history_folder(topic) / f"v{newest + 1}.avsc"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(current, indent=2, ensure_ascii=False) + "\n")
    latest_version.cache_clear()
    golden = {"bytes": encode(sample(topic.record)).hex(), "record": plain(sample(topic.record))}
    golden_path(topic, newest + 1).write_text(json.dumps(golden, indent=2) + "\n")
    return f"{topic.base_name}/{path.name}"


def plain(record: Record) -> Any:
    """The record as JSON values; bytes in hex."""
    return json.loads(msgspec.json.encode(_hexed(msgspec.to_builtins(record, builtin_types=(bytes,)))))


def _hexed(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, dict):
        return {key: _hexed(inner) for key, inner in value.items()}
    return [_hexed(inner) for inner in value] if isinstance(value, list) else value


def main() -> int:
    """Check, or release, every topic."""
    if sys.argv[1:] == ["--release"]:
        written = [name for topic in ALL_TOPICS if (name := release(topic))]
        print("\n".join(written) or "nothing changed")
        return 0
    found = [line for topic in ALL_TOPICS for line in problems(topic)]
    print("\n".join(found) or f"{len(ALL_TOPICS)} topics: schemas agree with every released version")
    return 1 if found else 0


if __name__ == "__main__":
    raise SystemExit(main())
