"""Settings as they come from the environment or a file."""

import pytest
from pydantic import ValidationError

from ingest.errors import IngestError
from ingest.kafka.producer import RecordProducer
from ingest.kafka.settings import KafkaSettings


def test_unknown_keys_become_librdkafka_settings() -> None:
    settings = KafkaSettings.model_validate(
        {"bootstrap_servers": "b:1", "security_protocol": "PLAINTEXT", "socket_timeout_ms": 9000}
    )
    assert settings.librdkafka == {"security.protocol": "PLAINTEXT", "socket.timeout.ms": "9000"}
    config = settings.client()
    assert config["bootstrap.servers"] == "b:1"
    assert config["security.protocol"] == "PLAINTEXT"


def test_an_explicit_librdkafka_setting_wins_over_everything() -> None:
    settings = KafkaSettings.model_validate(
        {"bootstrap_servers": "b:1", "linger_ms": 7, "librdkafka": {"linger.ms": "9"}}
    )
    assert settings.client(**{"linger.ms": 1})["linger.ms"] == "9"


def test_a_setting_that_librdkafka_does_not_know_is_an_error() -> None:
    with pytest.raises(ValidationError, match=r"bootstrap\.server"):
        KafkaSettings.model_validate({"bootstrap_server": "b:1"})


def test_passwords_do_not_show() -> None:
    settings = KafkaSettings.model_validate({"sasl_password": "geheim"})
    assert "geheim" not in repr(settings)


def test_settings_survive_a_second_validation() -> None:
    settings = KafkaSettings.model_validate({"topic_prefix": "p.", "linger_ms": 7})
    assert KafkaSettings.model_validate(settings.model_dump()) == settings


def test_no_brokers_say_what_to_do() -> None:
    with pytest.raises(IngestError, match="forgestream up"):
        KafkaSettings().client()


async def test_settings_that_do_not_fit_a_client_are_one_clear_line() -> None:
    settings = KafkaSettings.model_validate({"bootstrap_servers": "b:1", "acks": 1})
    with pytest.raises(IngestError, match=r"refuses the settings of test: .*acks"):
        await RecordProducer(settings, "test").start()
