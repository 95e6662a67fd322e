"""What the proxy reads of a model folder (Hugging Face layout): tokenizer, chat template, stop tokens, context."""

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from proxy.errors import ModelFolderError
from proxy.rendering.template import ChatTemplate
from proxy.rendering.vocabulary import Vocabulary

# Where configurations of different model families name the length of their context.
_CONTEXT_KEYS = ("max_position_embeddings", "n_positions", "max_sequence_length", "seq_length")


@dataclass(frozen=True)
class ModelFolder:
    """The parts of a model that the proxy needs."""

    path: Path
    vocabulary: Vocabulary
    template: ChatTemplate
    template_digest: str
    """sha256 of the template's text."""
    stop_ids: frozenset[int]
    """Tokens at which the engine stops."""
    context_tokens: int
    """Prompt and completion together."""


def load_model_folder(path: Path, *, context_tokens: int = 0) -> ModelFolder:
    """Read a folder; `context_tokens` other than 0 takes the place of what config.json says.

    Raises:
        ModelFolderError: a file is missing or of no use; the message names it.
    """
    if not path.is_dir():
        raise ModelFolderError(f"{path} is no folder: set FORGESTREAM_PROXY__MODEL to the policy's model folder")
    tokenizer_config = _json(path / "tokenizer_config.json")
    source = _template_source(path, tokenizer_config)
    vocabulary = Vocabulary(path / "tokenizer.json")
    return ModelFolder(
        path=path,
        vocabulary=vocabulary,
        template=ChatTemplate(source, _special_tokens(tokenizer_config)),
        template_digest=hashlib.sha256(source.encode()).hexdigest(),
        stop_ids=_stop_ids(path, tokenizer_config, vocabulary),
        context_tokens=context_tokens or _context_tokens(path),
    )


def _json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ModelFolderError(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise ModelFolderError(f"{path} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise ModelFolderError(f"{path} holds no JSON object")
    return value


def _template_source(path: Path, tokenizer_config: dict[str, Any]) -> str:
    file = path / "chat_template.jinja"
    if file.is_file():
        return file.read_text(encoding="utf-8")
    source = tokenizer_config.get("chat_template")
    if isinstance(source, list):  # several by name, in older folders
        source = {entry["name"]: entry["template"] for entry in source}.get("default")
    if not isinstance(source, str):
        raise ModelFolderError(f"{path} has no chat template: put chat_template.jinja beside tokenizer.json")
    return source


def _special_tokens(tokenizer_config: dict[str, Any]) -> dict[str, str]:
    """`bos_token`, `eos_token`, … as templates may name them."""
    named = {key: value for key, value in tokenizer_config.items() if key.endswith("_token")}
    texts = {key: _token_text(value) for key, value in named.items()}
    return {key: text for key, text in texts.items() if text is not None}


def _token_text(value: Any) -> str | None:
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else None


def _stop_ids(path: Path, tokenizer_config: dict[str, Any], vocabulary: Vocabulary) -> frozenset[int]:
    file = path / "generation_config.json"
    declared = _json(file).get("eos_token_id") if file.is_file() else None
    ids: set[int] = set(declared) if isinstance(declared, Iterable) else {declared} if declared is not None else set()
    text = _token_text(tokenizer_config.get("eos_token"))
    if text is not None and text in vocabulary.special:
        ids.add(vocabulary.special[text])
    if not ids or any(not isinstance(i, int) or vocabulary.text_of(i) is None for i in ids):
        raise ModelFolderError(
            f"{path}: no stop token is known (eos_token_id in generation_config.json is {declared}, "
            f"eos_token in tokenizer_config.json is {text!r}): set one of them to a token of tokenizer.json"
        )
    return frozenset(ids)


def _context_tokens(path: Path) -> int:
    config = _json(path / "config.json")
    for section in (config, config.get("text_config", {})):
        for key in _CONTEXT_KEYS:
            if isinstance(section.get(key), int):
                return section[key]
    raise ModelFolderError(f"{path}/config.json names no context length: set FORGESTREAM_PROXY__CONTEXT_TOKENS")
