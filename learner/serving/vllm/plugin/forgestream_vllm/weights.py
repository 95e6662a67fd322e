"""The weight transfer backend `safetensors_folder`: a new version is read from a model folder.

Protocol of a backend: `vllm.distributed.weight_transfer.base.WeightTransferEngine`, vLLM 0.32.
"""
# pyright: reportMissingImports=false

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import safe_open
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
from vllm.model_executor.model_loader.reload.inplace import reload_weights

BACKEND = "safetensors_folder"


def register() -> None:
    """Called by vLLM in each of its processes, sometimes twice."""
    if BACKEND not in WeightTransferEngineFactory._registry:
        WeightTransferEngineFactory.register_engine(BACKEND, FolderWeightTransfer)


@dataclass
class InitInfo(WeightTransferInitInfo):
    """Nothing to agree on beforehand."""


@dataclass
class UpdateInfo(WeightTransferUpdateInfo):
    """Where the new weights lie."""

    path: str


class FolderWeightTransfer(WeightTransferEngine):
    """Reloads the model in place from `update_info.path`, once names and shapes are known to fit."""

    init_info_cls = InitInfo
    update_info_cls = UpdateInfo
    supports_draft_weight_update = False

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._shapes = shapes(Path(self.model_config.model))

    def init_transfer_engine(self, init_info: InitInfo) -> None:
        """Nothing to connect."""

    def start_weight_update(self) -> None:
        """Reloading does its own preparation."""

    def finish_weight_update(self) -> None:
        """Reloading does its own completion."""

    def update_weights(self, update_info: dict[str, Any]) -> None:
        """As the base class, without its synchronisation of an accelerator, which a CPU build does not have."""
        self.receive_weights(self.parse_update_info(update_info))

    def receive_weights(self, update_info: UpdateInfo) -> None:
        """Loads the folder.

        Raises:
            ValueError: it does not hold exactly this model's tensors; nothing was changed.
        """
        folder = Path(update_info.path)
        found = shapes(folder)
        if wrong := sorted(n for n in found.keys() | self._shapes.keys() if found.get(n) != self._shapes.get(n)):
            raise ValueError(f"{folder}: {len(wrong)} tensors missing, unknown or of another shape, first {wrong[0]}")
        reload_weights(
            self.vllm_config, self.model, weights_iterator=None, weights_path=str(folder), is_checkpoint_format=True
        )

    def shutdown(self) -> None:
        """Nothing to release."""


def shapes(folder: Path) -> dict[str, tuple[int, ...]]:
    """Name and shape of every tensor in the folder's safetensors files.

    Raises:
        ValueError: no such file, or one that is cut or foreign.
    """
    found: dict[str, tuple[int, ...]] = {}
    for path in sorted(folder.glob("*.safetensors")):
        try:
            with safe_open(path, framework="pt") as file:
                found |= {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
        except Exception as error:  # the library raises a direct child of Exception
            raise ValueError(f"{path}: {error}") from error
    if not found:
        raise ValueError(f"{folder} holds no safetensors file")
    return found
