"""Which partition a key belongs to: the rule of Apache Kafka's default partitioner, which every producer here uses.

Source: `org.apache.kafka.common.utils.Utils.murmur2` and `toPositive`; librdkafka calls it `murmur2_random`.
"""

PARTITIONER = "murmur2_random"

_SEED = 0x9747B28C
_M = 0x5BD1E995
_MASK = 0xFFFFFFFF


def partition_of(key: str, partition_count: int) -> int:
    """The partition of a key on a topic with `partition_count` partitions."""
    return (_murmur2(key.encode()) & 0x7FFFFFFF) % partition_count


def _murmur2(data: bytes) -> int:
    """32-bit MurmurHash2 with Kafka's seed, as an unsigned number."""
    value = _SEED ^ len(data)
    whole = len(data) & ~3
    for start in range(0, whole, 4):
        chunk = int.from_bytes(data[start : start + 4], "little") * _M & _MASK
        value = (value * _M & _MASK) ^ ((chunk ^ chunk >> 24) * _M & _MASK)
    tail = data[whole:]
    if tail:
        value = (value ^ int.from_bytes(tail, "little")) * _M & _MASK
    value = (value ^ value >> 13) * _M & _MASK
    return value ^ value >> 15
