"""How vLLM is started."""

from itertools import pairwise
from pathlib import Path

from learner.serving.settings import EngineSettings, VllmSettings
from learner.serving.vllm.command import PLUGIN, arguments, environment


def test_settings_reach_the_command_line() -> None:
    settings = EngineSettings(
        kind="vllm",
        model=Path("/models/tiny"),
        host="127.0.0.1",
        port=1234,
        policy_id="apprentice",
        context_tokens=2048,
        max_running=4,
        vllm=VllmSettings(python=Path("/env/bin/python"), dtype="auto", arguments=("--tensor-parallel-size", "2")),
    )
    command = arguments(settings)
    assert command[:3] == ["/env/bin/python", "-m", "vllm.entrypoints.openai.api_server"]
    pairs = dict(pairwise(command))
    assert pairs["--model"] == "/models/tiny"
    assert pairs["--served-model-name"] == "apprentice"
    assert (pairs["--host"], pairs["--port"]) == ("127.0.0.1", "1234")
    assert (pairs["--max-model-len"], pairs["--max-num-seqs"], pairs["--dtype"]) == ("2048", "4", "auto")
    assert pairs["--logprobs-mode"] == "processed_logprobs"
    assert command[-2:] == ["--tensor-parallel-size", "2"]
    assert "--max-model-len" not in arguments(settings.model_copy(update={"context_tokens": 0}))


def test_the_environment_is_vllms_own() -> None:
    base = {"PATH": "/bin", "PYTHONPATH": "/ours", "PYTHONHOME": "/ours", "VIRTUAL_ENV": "/ours", "HOME": "/root"}
    made = environment(EngineSettings(threads=3), base)
    assert made["PYTHONPATH"] == str(PLUGIN)
    assert (made["PATH"], made["HOME"], made["OMP_NUM_THREADS"]) == ("/bin", "/root", "3")
    assert not {"PYTHONHOME", "VIRTUAL_ENV"} & made.keys()


def test_the_plugin_folder_is_found_by_its_entry_points() -> None:
    import importlib.metadata

    (distribution,) = importlib.metadata.distributions(path=[str(PLUGIN)])
    found = {(entry.group, entry.name, entry.value) for entry in distribution.entry_points}
    assert found == {
        ("vllm.general_plugins", "forgestream", "forgestream_vllm.weights:register"),
        ("vllm.endpoint_plugins", "forgestream", "forgestream_vllm.health:HealthRoutes"),
    }
    for _, _, value in found:
        assert (PLUGIN / value.split(":")[0].replace(".", "/")).with_suffix(".py").is_file()
