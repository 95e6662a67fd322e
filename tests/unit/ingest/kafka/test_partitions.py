"""The partitioner against values from elsewhere."""

import pytest

from ingest.kafka.partitions import partition_of


# Hashes from Apache Kafka's own UtilsTest.testMurmur2 (signed 32-bit numbers).
@pytest.mark.parametrize(
    ("key", "murmur2"),
    [
        ("21", -973932308),
        ("foobar", -790332482),
        ("a-little-bit-long-string", -985981536),
        ("a-little-bit-longer-string", -1486304829),
        ("lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        ("abc", 479470107),
    ],
)
@pytest.mark.parametrize("partition_count", [1, 4, 48])
def test_agrees_with_kafkas_own_vectors(key: str, murmur2: int, partition_count: int) -> None:
    positive = murmur2 & 0x7FFFFFFF  # Utils.toPositive
    assert partition_of(key, partition_count) == positive % partition_count
