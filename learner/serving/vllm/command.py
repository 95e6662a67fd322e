"""How vLLM's server is started. Pure."""

from collections.abc import Mapping
from pathlib import Path

from learner.serving.settings import EngineSettings

PLUGIN = Path(__file__).parent / "plugin"
BACKEND = "safetensors_folder"
"""Name of the weight transfer backend in `plugin/`."""


def arguments(settings: EngineSettings) -> list[str]:
    """Program and arguments of vLLM's server for this engine."""
    command = [str(settings.vllm.python), "-m", "vllm.entrypoints.openai.api_server"]
    command += ["--model", str(settings.model.absolute()), "--served-model-name", settings.policy_id]
    command += ["--host", settings.host, "--port", str(settings.port), "--disable-uvicorn-access-log"]
    command += ["--dtype", settings.vllm.dtype, "--max-num-seqs", str(settings.max_running)]
    if settings.context_tokens:
        command += ["--max-model-len", str(settings.context_tokens)]
    # Eager: compiling pays off after minutes on a GPU and costs them at every start.
    command += ["--enforce-eager", "--enable-scale-out", "--enable-prompt-tokens-details"]
    command += ["--logprobs-mode", "processed_logprobs"]
    command += ["--weight-transfer-config", f'{{"backend":"{BACKEND}"}}']
    return command + list(settings.vllm.arguments)


def environment(settings: EngineSettings, base: Mapping[str, str]) -> dict[str, str]:
    """Environment of vLLM's server: the given one and what vLLM reads from it."""
    return {
        # A Python of another environment: paths and options of ours would mislead it.
        **{name: value for name, value in base.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))},
        "PYTHONPATH": str(PLUGIN),
        "VLLM_PLUGINS": "forgestream",
        "VLLM_SERVER_DEV_MODE": "1",  # pause, resume and weight update belong to it
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # one process less, and half a minute
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "HF_HUB_OFFLINE": "1",
        "VLLM_CPU_KVCACHE_SPACE": str(settings.vllm.cpu_cache_gib),
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": str(settings.threads),
    }
