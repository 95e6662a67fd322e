import pytest
from pydantic import BaseModel, ConfigDict, Field, SecretStr, model_validator

from deploy.errors import ConfigError
from deploy.layers import environment_layer, file_layer, option_layer, resolve


class Upstream(BaseModel):
    model_config = ConfigDict(extra="forbid")
    url: str = "http://localhost"
    retries: int = 3


class Proxy(BaseModel):
    model_config = ConfigDict(extra="forbid")
    port: int = Field(default=8700, ge=0, le=65535)
    upstream: Upstream = Upstream()
    engines: list[str] = []


class Kafka(BaseModel):
    model_config = ConfigDict(extra="forbid")
    librdkafka: dict[str, str] = {}

    @model_validator(mode="before")
    @classmethod
    def move(cls, values: dict) -> dict:
        extra = {k.replace("_", "."): v for k, v in values.items() if k != "librdkafka"}
        return {"librdkafka": {**values.get("librdkafka", {}), **extra}}


class Sample(BaseModel):
    model_config = ConfigDict(extra="forbid")
    proxy: Proxy = Proxy()
    kafka: Kafka = Kafka()
    secret: SecretStr = SecretStr("")


@pytest.fixture
def toml(tmp_path):
    path = tmp_path / "forgestream.toml"

    def write(text):
        path.write_text(text)
        return path

    return write


def test_the_command_line_wins_over_the_environment_over_the_file(toml):
    file = file_layer(toml('[proxy]\nport = 1\n[proxy.upstream]\nurl = "file"\nretries = 7\n'))
    env = environment_layer({"FORGESTREAM_PROXY__PORT": "2", "FORGESTREAM_PROXY__UPSTREAM__URL": "env", "HOME": "/"})
    resolved = resolve(Sample, [file, env, option_layer(["proxy.port=3"])])
    assert resolved.settings.proxy.port == 3
    assert resolved.settings.proxy.upstream == Upstream(url="env", retries=7)
    origins = {row["key"]: row["origin"] for row in resolved.rows()}
    assert origins["proxy.port"] == "--set proxy.port"
    assert origins["proxy.upstream.url"] == "FORGESTREAM_PROXY__UPSTREAM__URL"
    assert origins["proxy.upstream.retries"].endswith("forgestream.toml")
    assert origins["proxy.engines"] == "default"


def test_lists_and_librdkafka_settings_come_through_the_environment():
    layer = environment_layer(
        {"FORGESTREAM_PROXY__ENGINES": '["a", "b"]', "FORGESTREAM_KAFKA__SECURITY_PROTOCOL": "SSL"}
    )
    settings = resolve(Sample, [layer]).settings
    assert settings.proxy.engines == ["a", "b"]
    assert settings.kafka.librdkafka == {"security.protocol": "SSL"}


@pytest.mark.parametrize(
    ("layer", "says"),
    [
        (
            environment_layer({"FORGESTREAM_PROXXY__PORT": "1"}),
            "unknown setting proxxy (from FORGESTREAM_PROXXY__PORT); did you mean proxy",
        ),
        (
            environment_layer({"FORGESTREAM_PROXY__PROT": "1"}),
            "unknown setting proxy.prot (from FORGESTREAM_PROXY__PROT); did you mean proxy.port",
        ),
        (option_layer(["proxy.upstream.ulr=x"]), "(from --set proxy.upstream.ulr); did you mean proxy.upstream.url"),
        (
            option_layer(["proxy.port=high"]),
            "setting proxy.port (from --set proxy.port): input should be a valid integer",
        ),
        (option_layer(["proxy.port=70000"]), 'less than or equal to 65535, not "70000"'),
        (option_layer(["proxy=3"]), "setting proxy (from --set proxy): input should be a valid dictionary"),
    ],
)
def test_what_means_nothing_is_named_with_its_origin(layer, says):
    with pytest.raises(ConfigError) as caught:
        resolve(Sample, [layer])
    assert says in str(caught.value)
    assert caught.value.exit_status == 2


def test_every_wrong_key_of_a_file_is_named_with_the_file(toml):
    path = toml("[proxy]\nprot = 1\n[archive]\nx = 1\n")
    with pytest.raises(ConfigError) as caught:
        resolve(Sample, [file_layer(path)])
    assert str(caught.value).count(f"(from {path})") == 2


@pytest.mark.parametrize("text", ["proxy.port", "=3", ""])
def test_an_option_that_is_no_assignment(text):
    with pytest.raises(ConfigError, match="expected KEY=VALUE"):
        option_layer([text])


def test_a_file_that_is_missing_or_no_toml(toml, tmp_path):
    with pytest.raises(ConfigError, match="no such settings file"):
        file_layer(tmp_path / "nothing.toml")
    with pytest.raises(ConfigError, match="unreadable settings"):
        file_layer(toml("proxy = ["))


def test_a_value_below_a_plain_value_is_refused():
    with pytest.raises(ConfigError, match="set to a plain value elsewhere"):
        resolve(Sample, [option_layer(["proxy=3", "proxy.port=1"])])


def test_secrets_are_masked():
    layer = option_layer(["secret=hunter2", "kafka.sasl_password=hunter3"])
    shown = str(resolve(Sample, [layer]).rows())
    assert "hunter" not in shown
    assert "********" in shown
