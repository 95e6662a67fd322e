"""veRL's TrainingWorker, driven in this process: log-probabilities, updates, checkpoints, weights.

Importing this module imports torch and veRL, which takes ten seconds and more: services do it on a thread.
All methods belong to one thread at a time.
"""

import json
import math
import os
import random
import shutil
import socket
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from transformers.utils.logging import disable_progress_bar

from learner.batches import advantage_field, rollout_logprobs, token_fields
from learner.losses import Correction, policy_loss
from learner.rows import Batch
from learner.settings import LearnerSettings
from learner.verl_api import (
    CheckpointConfig,
    DatasetPadMode,
    FSDPActorConfig,
    FSDPEngineConfig,
    FSDPOptimizerConfig,
    HFModelConfig,
    PolicyLossConfig,
    TrainingWorker,
    TrainingWorkerConfig,
    quiet,
    response_from_nested,
)
from learner.verl_api import tensordict_utils as tu

WEIGHTS_FILE = "model.safetensors"

# veRL's names of what a step reports, and ours.
_REPORTED = {
    "loss": "loss",
    "grad_norm": "grad_norm",
    "lr": "lr",
    "actor/pg_clipfrac": "clip_fraction",
    "actor/pg_clipfrac_lower": "dual_clip_fraction",
    "actor/ppo_kl": "update_kl",
    "delta_sum": "delta_sum",
    "delta_max": "delta_max",
    "rollout_kl_sum": "rollout_kl_sum",
    "is_weight_sum": "is_weight_sum",
}


class PolicyWorker:
    """The policy in training.

    fp32 weights, computed with in `settings.precision`; FSDP2; scaled-dot-product attention over packed rows.

    Args:
        settings: The learner's settings; the base model is read from `settings.model`.
    """

    def __init__(self, settings: LearnerSettings) -> None:
        self._settings = settings
        self._on_cpu = not torch.cuda.is_available()
        torch.set_num_threads(settings.threads)
        disable_progress_bar()  # transformers draws one over the log while it loads a model
        _join_process_group(self._on_cpu)
        random.seed(settings.seed)
        np.random.seed(settings.seed % 2**32)
        torch.manual_seed(settings.seed)  # draws the adapters' first weights
        with quiet():
            self._model = _model_config(settings)
            self._worker = TrainingWorker(_worker_config(settings, self._model, self._on_cpu))
            self._worker.reset()
        correction = Correction(settings.correction, settings.is_threshold)
        self._worker.set_loss_fn(partial(policy_loss, _loss_config(settings), correction))

    def logprobs(self, batch: Batch) -> torch.Tensor:
        """The policy's log-probability of each token of the responses, jagged; no gradient."""
        fields = token_fields(batch.rows)
        data = self._data(batch, fields, compute_loss=False, global_token_num=[len(r.token_ids) for r in batch.rows])
        with quiet():
            output = self._worker.infer_batch(data)
        return response_from_nested(output["log_probs"], fields["response_mask"])

    def update(self, batch: Batch) -> dict[str, float]:
        """One optimizer step (or `updates_per_batch` of them) on the batch. Returns its metrics, finite ones only.

        `delta_mean` and `delta_max` are |log π_train - log π_rollout| over the trained tokens before the update: what
        staleness, the engine's precision and a wrong temperature add up to.
        """
        fields = token_fields(batch.rows)
        fields["advantages"] = advantage_field(batch)
        fields["rollout_log_probs"] = rollout_logprobs(batch.rows)
        if self._settings.updates_per_batch > 1:
            fields["trainer_log_probs"] = self.logprobs(batch)
        rows = len(batch.rows)
        data = self._data(
            batch,
            fields,
            global_batch_size=rows,
            mini_batch_size=rows,
            epochs=self._settings.updates_per_batch,
            seed=self._settings.seed,
            dataloader_kwargs={"shuffle": False},
            pad_mode=DatasetPadMode.NO_PADDING,
        )
        with quiet():
            output = self._worker.train_mini_batch(data)
        return _step_metrics(tu.get(output, "metrics"), batch.trained_tokens)

    def save(self, folder: Path) -> None:
        """Write the trainable weights, the optimizer and the random states into `folder`."""
        with quiet():
            self._worker.save_checkpoint(str(folder))

    def load(self, folder: Path) -> None:
        """Continue exactly from what `save` wrote."""
        with quiet():
            self._worker.load_checkpoint(str(folder), del_local_after_load=False)

    def export(self, folder: Path) -> None:
        """Write the whole policy into `folder` in Hugging Face format: bf16 weights with adapters merged, and the
        base model's other files."""
        with quiet():
            tensors, _ = self._worker.engine.get_per_tensor_param()
        tied = getattr(self._model.hf_config, "tie_word_embeddings", False)
        weights = {
            name: tensor.detach().to("cpu", torch.bfloat16, copy=True).contiguous()
            for name, tensor in tensors
            if not (tied and name == "lm_head.weight")  # the same matrix as the embeddings
        }
        save_file(weights, folder / WEIGHTS_FILE, metadata={"format": "pt"})
        (folder / WEIGHTS_FILE).chmod(0o644)
        for path in self._settings.model.iterdir():
            if path.suffix in (".json", ".jinja", ".model", ".txt") and path.is_file():
                shutil.copyfile(path, folder / path.name)
        (folder / "model.safetensors.index.json").unlink(missing_ok=True)  # the copy is in one piece
        _say_bf16(folder / "config.json")

    def _data(self, batch: Batch, fields: dict[str, Any], **options: Any) -> Any:
        common = {
            "temperature": self._settings.temperature,
            "calculate_entropy": False,
            # veRL refuses a row that is longer than a micro-batch
            "max_token_len_per_gpu": max(self._settings.micro_batch_tokens, batch.longest),
        }
        return tu.get_tensordict(dict(fields), non_tensor_dict=common | options)


def _join_process_group(on_cpu: bool) -> None:
    """Be a group of one, unless a launcher such as torchrun says otherwise."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    alone = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}
    for name, value in {**alone, "MASTER_PORT": str(port)}.items():
        os.environ.setdefault(name, value)  # veRL's Worker reads them and takes nothing else
    if on_cpu and not torch.distributed.is_initialized():
        # veRL would ask for "cpu:gloo,cpu:gloo", which torch refuses; it leaves a group that is there alone
        if os.environ["WORLD_SIZE"] == "1":
            store = torch.distributed.HashStore()  # pyright: ignore[reportPrivateImportUsage]
            torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
        else:
            torch.distributed.init_process_group("gloo")


def _model_config(settings: LearnerSettings) -> HFModelConfig:
    return HFModelConfig(
        path=str(settings.model),
        use_remove_padding=True,
        enable_gradient_checkpointing=torch.cuda.is_available(),
        override_config={"attn_implementation": "sdpa"},
        lora_rank=settings.lora_rank,
        lora_alpha=2 * settings.lora_rank or 16,
        lora={"merge": True},  # export whole weights, which every engine can load
    )


def _engine_config(settings: LearnerSettings, on_cpu: bool) -> FSDPEngineConfig:
    compute = settings.precision if settings.precision != "auto" else ("fp32" if on_cpu else "bf16")
    return FSDPEngineConfig(
        strategy="fsdp2",
        use_torch_compile=False,
        use_dynamic_bsz=True,
        max_token_len_per_gpu=settings.micro_batch_tokens,
        infer_max_token_len_per_gpu=settings.micro_batch_tokens,
        mixed_precision={"param_dtype": compute, "reduce_dtype": "fp32", "buffer_dtype": "fp32"},
    )


def _optimizer_config(settings: LearnerSettings) -> FSDPOptimizerConfig:
    return FSDPOptimizerConfig(
        lr=settings.lr,
        weight_decay=0.0,
        clip_grad=settings.grad_clip,
        lr_scheduler_type="constant",
        lr_warmup_steps=0,
        total_training_steps=1,  # a constant schedule has no end; veRL wants a number
    )


def _worker_config(settings: LearnerSettings, model: HFModelConfig, on_cpu: bool) -> TrainingWorkerConfig:
    return TrainingWorkerConfig(
        model_type="language_model",
        model_config=model,
        engine_config=_engine_config(settings, on_cpu),
        optimizer_config=_optimizer_config(settings),
        # the frozen base is in its own folder; without adapters veRL saves everything
        checkpoint_config=CheckpointConfig(save_lora_only=True),
    )


def _loss_config(settings: LearnerSettings) -> FSDPActorConfig:
    return FSDPActorConfig(
        strategy="fsdp2",
        rollout_n=1,
        use_dynamic_bsz=True,
        policy_loss=PolicyLossConfig(loss_mode="vanilla"),
        loss_agg_mode="token-mean",
        clip_ratio=settings.clip_low,
        clip_ratio_low=settings.clip_low,
        clip_ratio_high=settings.clip_high,
        clip_ratio_c=settings.dual_clip,
    )


def _step_metrics(verl: dict[str, Any], trained_tokens: int) -> dict[str, float]:
    values = {name: float(np.mean(value)) for name, value in verl.items() if name in _REPORTED}
    metrics = {ours: values[theirs] for theirs, ours in _REPORTED.items() if theirs in values}
    for name in [name for name in metrics if name.endswith("_sum")]:
        metrics[name.removesuffix("_sum") + "_mean"] = metrics.pop(name) / trained_tokens
    # veRL leaves the weights alone when the gradient is not finite; that must not pass unseen.
    metrics["updates_skipped"] = 0.0 if math.isfinite(metrics["grad_norm"]) else 1.0
    return {name: value for name, value in metrics.items() if math.isfinite(value)}


def _say_bf16(config: Path) -> None:
    """The exported weights are bf16, whatever the base model's were."""
    values = json.loads(config.read_text())
    values.pop("torch_dtype", None)
    values["dtype"] = "bfloat16"
    config.write_text(json.dumps(values, indent=2) + "\n")
