"""How to reach Kafka. Any librdkafka setting may stand beside ours: `FORGESTREAM_KAFKA__SECURITY_PROTOCOL=SASL_SSL`."""

import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import structlog
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient
from pydantic import BaseModel, ConfigDict, Field, model_validator

from ingest.errors import IngestError

C = TypeVar("C")

MAX_RECORD_BYTES = 10_485_760
"""Largest record, compressed; brokers, topics and producers agree on it. Larger payloads go to blobs.v1."""

_log = structlog.get_logger(__name__)
_REPEAT_AFTER_S = 30.0


class KafkaSettings(BaseModel):
    """The section `kafka`. Other keys are librdkafka settings, with `_` for `.`; those it does not know are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    bootstrap_servers: str = ""
    """`host:port` of one or more brokers, with commas; empty: the embedded broker, which is started on demand."""
    topic_prefix: str = ""
    """Put before every topic, group and transactional id: several runs on one cluster do not meet."""
    librdkafka: dict[str, str] = Field(default={}, repr=False)
    """Further settings of the client library; they win over ours. Not shown in logs: it may hold passwords."""

    @model_validator(mode="before")
    @classmethod
    def _gather(cls, values: Any) -> Any:
        if not isinstance(values, Mapping):
            return values
        own = {key: value for key, value in values.items() if key in cls.model_fields}
        further = {key.replace("_", "."): str(value) for key, value in values.items() if key not in cls.model_fields}
        if further:
            own["librdkafka"] = {**further, **(own.get("librdkafka") or {})}
        return own

    @model_validator(mode="after")
    def _check(self) -> "KafkaSettings":
        if self.librdkafka:
            try:
                AdminClient({"bootstrap.servers": "127.0.0.1:1", "log_level": 0, **self.librdkafka})
            except KafkaException as error:
                raise ValueError(f"librdkafka refuses these settings: {error.args[0].str()}") from error
        return self

    def client(self, **overrides: Any) -> dict[str, Any]:
        """Configuration of a librdkafka client. `overrides` are librdkafka names, given as `**{"group.id": "x"}`.

        Raises:
            IngestError: no brokers are configured.
        """
        if not self.bootstrap_servers:
            raise IngestError("no Kafka brokers: run `forgestream up`, or set FORGESTREAM_KAFKA__BOOTSTRAP_SERVERS")
        return {
            "bootstrap.servers": self.bootstrap_servers,
            # The library would print a line to stderr at every attempt to reach a broker that is away.
            "log_level": 0,
            "error_cb": _error_log(str(overrides.get("client.id", "kafka"))),
            # Back within half a second of the broker's return.
            "reconnect.backoff.ms": 50,
            "reconnect.backoff.max.ms": 500,
            **overrides,
            **self.librdkafka,
        }


def opened(make: Callable[[dict[str, Any]], C], config: dict[str, Any]) -> C:
    """A librdkafka client of this configuration.

    Raises:
        IngestError: librdkafka refuses the configuration.
    """
    try:
        return make(config)
    except KafkaException as error:
        raise IngestError(f"librdkafka refuses the settings of {config['client.id']}: {error.args[0].str()}") from error


def _error_log(client: str) -> Callable[[KafkaError], None]:
    """Logs a client's troubles, the same one at most every half minute."""
    seen: dict[int, float] = {}

    def log(error: KafkaError) -> None:
        now = time.monotonic()
        if now - seen.get(error.code(), -_REPEAT_AFTER_S) >= _REPEAT_AFTER_S:
            seen[error.code()] = now
            _log.warning("kafka client", client=client, error=error.name(), message=error.str())

    return log
