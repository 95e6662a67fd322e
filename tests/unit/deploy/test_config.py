from pathlib import Path

import pytest

from deploy.config import load
from deploy.errors import ConfigError


@pytest.fixture(autouse=True)
def empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_parts_find_each_other_whatever_is_set():
    settings = load(None, ["state=/data", "proxy.port=9000", "engine.port=9001", "engine.model=/m"], {}).settings
    assert settings.launcher.proxy_url == "http://127.0.0.1:9000"
    assert settings.proxy.engines == ("http://127.0.0.1:9001",)
    assert settings.proxy.model == Path("/m")
    assert settings.launcher.state_dir == Path("/data")
    assert settings.learner.runs == Path("/data/runs")
    assert settings.archiver.root == Path("/data/archive")


def test_a_service_on_all_addresses_is_reached_on_this_machine():
    settings = load(None, ["proxy.host=0.0.0.0", "engine.host=::"], {}).settings
    assert settings.launcher.proxy_url == "http://127.0.0.1:8700"
    assert settings.proxy.engines == ("http://127.0.0.1:8701",)


def test_what_is_set_is_not_derived():
    environment = {"FORGESTREAM_LAUNCHER__PROXY_URL": "http://elsewhere:1"}
    configuration = load(None, ["proxy.host=0.0.0.0"], environment)
    assert configuration.settings.launcher.proxy_url == "http://elsewhere:1"
    origins = {row["key"]: row["origin"] for row in configuration.resolved.rows()}
    assert origins["launcher.proxy_url"] == "FORGESTREAM_LAUNCHER__PROXY_URL"
    assert origins["proxy.engines"] == "other settings"
    assert origins["proxy.port"] == "default"


def test_the_options_of_a_configuration_make_it_again(tmp_path):
    file = tmp_path / "other.toml"
    file.write_text("[proxy]\nport = 9000\n")
    configuration = load(file, ["engine.port=9001"], {}).set("learner.port=9004")
    assert configuration.options() == [
        "--config", str(file), "--set", "engine.port=9001", "--set", "learner.port=9004"
    ]  # fmt: skip
    again = load(file, ["engine.port=9001", "learner.port=9004"], {})
    assert again.settings == configuration.settings
    assert configuration.settings.proxy.port == 9000


def test_the_file_of_the_folder_is_read_unless_another_is_named(tmp_path):
    (tmp_path / "forgestream.toml").write_text("[proxy]\nport = 1\n")
    (tmp_path / "named.toml").write_text("[proxy]\nport = 2\n")
    assert load(None, [], {}).settings.proxy.port == 1
    assert load(None, [], {"FORGESTREAM_CONFIG": "named.toml"}).settings.proxy.port == 2


def test_librdkafka_settings_reach_the_client():
    settings = load(None, ["kafka.bootstrap_servers=k:9092"], {"FORGESTREAM_KAFKA__SOCKET_TIMEOUT_MS": "1234"}).settings
    assert settings.kafka.client()["socket.timeout.ms"] == "1234"


def test_a_wrong_librdkafka_setting_is_named_with_its_origin():
    with pytest.raises(ConfigError, match=r"FORGESTREAM_KAFKA__SECURITY_PROTOKOL.*librdkafka refuses"):
        load(None, [], {"FORGESTREAM_KAFKA__SECURITY_PROTOKOL": "ssl"})
