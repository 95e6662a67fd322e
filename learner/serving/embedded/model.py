"""The model: one packed step of many sequences, and new weights between two steps."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, GenerationConfig, PreTrainedModel
from transformers.utils.logging import disable_progress_bar

from learner.serving.embedded import attention
from learner.serving.embedded.attention import KeyValueCache, Span
from learner.serving.errors import ModelRefused, WeightsRefused
from learner.weights import WeightsError, weight_files

Weights = dict[str, torch.Tensor]


class PackedModel:
    """A causal language model in float32. Not for two threads at a time.

    Raises:
        ModelRefused: no model folder, or a model with another kind of attention than full attention.
    """

    def __init__(self, folder: Path, device: str = "auto", context_tokens: int = 0) -> None:
        if not (folder / "config.json").is_file():
            raise ModelRefused(f"{folder} is no model folder: `python -m learner.models smollm2 {folder}` makes one")
        self.device = torch.device(("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device)
        attention.register()
        disable_progress_bar()  # a bar has no place in a log
        try:
            model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
                folder, dtype=torch.float32, attn_implementation=attention.NAME, local_files_only=True
            )
        except (OSError, ValueError, SafetensorError) as error:
            raise ModelRefused(f"{folder} cannot be loaded: {error}") from error
        self._model: Any = model.to(self.device).eval()  # pyright: ignore[reportArgumentType]
        config: Any = model.config
        _refuse_other_attention(folder, config)
        self._layers: int = config.num_hidden_layers
        self._kv_heads: int = config.num_key_value_heads
        self._head_dim: int = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        self.vocabulary: int = config.vocab_size
        self.context_tokens = _context(folder, context_tokens, config.max_position_embeddings)
        self.stop_ids = _stop_ids(model)

    def new_cache(self, capacity: int) -> KeyValueCache:
        """An empty cache for one sequence; it grows beyond `capacity` tokens as they come."""
        return KeyValueCache(self._layers, self._kv_heads, capacity, self._head_dim, self.device)

    @torch.inference_mode()
    def step(self, batch: Sequence[tuple[Sequence[int], KeyValueCache]]) -> torch.Tensor:
        """Computes the next tokens of each sequence after what its cache holds, and moves the caches on.

        Returns:
            Logits after each sequence's last token, [sequences, vocabulary], on the CPU.
        """
        ids: list[int] = []
        positions: list[int] = []
        spans: list[Span] = []
        for tokens, cache in batch:
            cache.reserve(cache.length + len(tokens))
            spans.append(Span(len(ids), len(tokens), cache))
            positions.extend(range(cache.length, cache.length + len(tokens)))
            ids.extend(tokens)
        last = torch.tensor([span.start + span.count - 1 for span in spans], device=self.device)
        output = self._model(
            input_ids=torch.tensor([ids], device=self.device),
            position_ids=torch.tensor([positions], device=self.device),
            use_cache=False,
            logits_to_keep=last,
            spans=spans,
        )
        for span in spans:
            span.cache.length += span.count
        return output.logits[0].float().cpu()

    def read_weights(self, folder: Path) -> Weights:
        """The weights of a folder, checked to be exactly this model's. Changes nothing; may run beside `step`.

        Raises:
            WeightsRefused: unreadable, or a tensor missing, unknown or of another shape.
        """
        weights: Weights = {}
        try:
            for path in weight_files(folder):
                weights |= load_file(path)
        except (WeightsError, SafetensorError, OSError) as error:
            raise WeightsRefused(f"weights in {folder} cannot be read: {error}") from error
        wanted = {name: parameter.shape for name, parameter in self._model.named_parameters()}
        tied = self._model.state_dict().keys() - wanted.keys()  # a second name for a tensor may come along or not
        found = {name: tensor.shape for name, tensor in weights.items() if name not in tied}
        if wrong := sorted(name for name in wanted.keys() | found.keys() if wanted.get(name) != found.get(name)):
            raise WeightsRefused(
                f"weights in {folder} are of another model: {len(wrong)} tensors missing, unknown or of another shape, "
                f"first {wrong[0]}"
            )
        return {name: weights[name] for name in wanted}

    @torch.inference_mode()
    def load_weights(self, weights: Weights) -> None:
        """Puts what `read_weights` returned into place. Caches filled before are of the old weights."""
        for name, parameter in self._model.named_parameters():
            parameter.copy_(weights[name])


def _context(folder: Path, wanted: int, limit: int) -> int:
    if wanted > limit:
        raise ModelRefused(f"context_tokens {wanted} is more than the {limit} positions of the model in {folder}")
    return wanted or limit


def _refuse_other_attention(folder: Path, config: Any) -> None:
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    sliding = getattr(config, "sliding_window", None) and getattr(config, "use_sliding_window", True)
    if kinds != {"full_attention"} or sliding or not hasattr(config, "num_key_value_heads"):
        raise ModelRefused(f"{folder}: the embedded engine serves full attention only; use `engine.kind = vllm`")


def _stop_ids(model: PreTrainedModel) -> frozenset[int]:
    """The model's own end tokens: of generation_config.json, where there is one."""
    config: GenerationConfig | None = model.generation_config
    stop: Any = config.eos_token_id if config is not None else None
    return frozenset() if stop is None else frozenset([stop] if isinstance(stop, int) else stop)
