"""Lets veRL train on a plain CPU, through veRL's own plug-in registries. Nothing of veRL is changed.

veRL ships platforms for accelerators only. This module registers one for CPUs, and veRL's own FSDP engine for it.
veRL finds it by the entry point `forgestream_cpu` in the group `verl.plugins`, by
`VERL_USE_EXTERNAL_MODULES=learner.verl_cpu`, or because somebody imported it. Where CUDA is there it registers nothing.

Checked against veRL 0.9.1: `verl/plugin/platform/platform_base.py`, `verl/workers/engine/base.py`.
"""

import types
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from verl.plugin.platform.platform_base import PlatformBase
from verl.plugin.platform.platform_manager import PlatformRegistry


class _CpuModule(types.ModuleType):
    """`torch.cpu` with the calls that veRL makes on `torch.cuda`: a CPU has no memory pool of its own to ask."""

    def __getattr__(self, name: str) -> Any:
        return getattr(torch.cpu, name)

    def __eq__(self, other: object) -> bool:
        return other is torch.cpu or other is self  # veRL asks `get_torch_device() == torch.cpu`

    __hash__ = types.ModuleType.__hash__

    @staticmethod
    def is_available() -> bool:
        """False: there is no accelerator, so veRL skips emptying its cache."""
        return False

    @staticmethod
    def get_device_name(*_args: object) -> str:
        """The device's name in metrics."""
        return "CPU"

    @staticmethod
    def get_rng_state(*_args: object) -> torch.Tensor:
        """The only random state there is."""
        return torch.get_rng_state()

    @staticmethod
    def set_rng_state(state: torch.Tensor, *_args: object) -> None:
        """Restore the only random state there is."""
        torch.set_rng_state(state)

    @staticmethod
    def mem_get_info(*_args: object) -> tuple[int, int]:
        """Free and total device memory: there is none."""
        return 0, 0

    @staticmethod
    def _zero(*_args: object, **_kwargs: object) -> int:
        return 0

    @staticmethod
    def _nothing(*_args: object, **_kwargs: object) -> None:
        return None

    max_memory_allocated = max_memory_reserved = memory_allocated = memory_reserved = _zero
    empty_cache = reset_peak_memory_stats = ipc_collect = set_device = _nothing


_CPU_MODULE = _CpuModule("torch_cpu_as_device")


class PlatformCPU(PlatformBase):
    """A machine without an accelerator: one device, gloo between processes."""

    @property
    def device_name(self) -> str:
        """torch's name of the device type."""
        return "cpu"

    @property
    def vendor_name(self) -> str:
        """No vendor needs an engine of its own."""
        return "generic"

    @property
    def device_module(self) -> types.ModuleType:
        """What stands in for `torch.cuda`."""
        return _CPU_MODULE

    def is_available(self) -> bool:
        """A CPU always is. veRL probes in the order of registration, so accelerators come first."""
        return True

    def current_device(self) -> Any:
        """veRL passes it to `Tensor.to` only, where an index would mean CUDA."""
        return torch.device("cpu")

    def device_count(self) -> int:
        """One."""
        return 1

    def set_device(self, device_index: int) -> None:
        """There is nothing to choose."""

    def synchronize(self, device_index: int | None = None) -> None:
        """CPU work is done when the call returns."""

    def manual_seed(self, seed: int) -> None:
        """Seed torch's generator."""
        torch.manual_seed(seed)

    def manual_seed_all(self, seed: int) -> None:
        """Seed torch's generator."""
        torch.manual_seed(seed)

    def set_allocator_settings(self, settings: str) -> None:
        """The system's allocator takes none."""

    def empty_cache(self) -> None:
        """There is no cache."""

    def get_device_capability(self, device_index: int = 0) -> tuple[int | None, int | None]:
        """No compute capability."""
        return None, None

    def communication_backend_name(self) -> str:
        """The backend of torch.distributed."""
        return "gloo"

    def visible_devices_envvar(self) -> str:
        """Read by nobody; veRL wants a name."""
        return "CPU_VISIBLE_DEVICES"

    @contextmanager
    def nvtx_range(self, msg: str) -> Iterator[None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """No profiler ranges. veRL's base class annotates what the undecorated function returns."""
        yield

    def profiler_start(self) -> None:
        """No device profiler."""

    def profiler_stop(self) -> None:
        """No device profiler."""

    def ray_resource_name(self) -> str:
        """Ray's own resource."""
        return "CPU"

    def ray_resource_options(self, num_gpus: float) -> dict[str, Any]:
        """A worker takes CPUs instead of GPUs."""
        return {"num_cpus": num_gpus}

    def ray_noset_envvars(self) -> list[str]:
        """Ray sets no variable for CPUs."""
        return []

    def is_ipc_supported(self) -> bool:
        """No CUDA IPC."""
        return False

    def cudart(self) -> Any:
        """No CUDA runtime."""
        return None


def _register() -> None:
    PlatformRegistry.register(platform="cpu")(PlatformCPU)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # veRL warns once for every engine that is not installed
        from verl.workers.engine import EngineRegistry
        from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead

    EngineRegistry.register(model_type="language_model", backend=["fsdp2"], device="cpu")(
        type("CpuFSDPEngineWithLMHead", (FSDPEngineWithLMHead,), {})
    )


if not torch.cuda.is_available():
    _register()
