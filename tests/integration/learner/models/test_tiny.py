"""The tiny model's folder."""

import os
import subprocess
import sys
from pathlib import Path

import jinja2
import pytest
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer

from learner.models import tiny
from learner.models.errors import ModelError
from learner.models.folder import MODEL_FILES, make_once
from learner.weights import weights_digest

TEXTS = ("Cade deifies eagles. \nWho deifies eagles?", "a  12 x\t34.5\n\n 7", "héllo 你好 🎉", '{"path": "/workspace"}')


def test_it_is_the_same_every_time(tiny_folder: Path, tmp_path: Path) -> None:
    make_once(tmp_path / "again", tiny.make)
    for name in MODEL_FILES:
        assert (tiny_folder / name).read_bytes() == (tmp_path / "again" / name).read_bytes(), name
    assert sorted(path.name for path in tiny_folder.iterdir()) == sorted(MODEL_FILES)


def test_size_context_and_end_tokens(tiny_folder: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(tiny_folder)
    assert 130_000 < sum(parameter.numel() for parameter in model.parameters()) < 150_000
    assert model.config.max_position_embeddings == 16_384
    tokenizer = AutoTokenizer.from_pretrained(tiny_folder)
    assert (tokenizer.eos_token, tokenizer.pad_token) == ("<|im_end|>", "<|endoftext|>")
    assert model.generation_config.eos_token_id == tokenizer.eos_token_id == 2
    assert model.generation_config.pad_token_id == tokenizer.pad_token_id == 0
    assert model.config.vocab_size == len(tokenizer)  # every id that can be sampled can be decoded


def test_the_file_alone_tokenises_as_transformers_does(tiny_folder: Path) -> None:
    alone = Tokenizer.from_file(str(tiny_folder / "tokenizer.json"))
    tokenizer = AutoTokenizer.from_pretrained(tiny_folder)
    for text in TEXTS:
        ids = alone.encode(text, add_special_tokens=False).ids
        assert tokenizer.encode(text, add_special_tokens=False) == ids
        assert alone.decode(ids, skip_special_tokens=False) == text


def test_the_template_renders_tools_and_their_calls(tiny_folder: Path) -> None:
    template = jinja2.Template((tiny_folder / "chat_template.jinja").read_text())
    call = {"type": "function", "function": {"name": "read", "arguments": {"path": "a"}}}
    conversation = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "text"},
    ]
    assert template.render(messages=conversation[:1], add_generation_prompt=True) == (
        "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    )
    rendered = template.render(messages=conversation, tools=[{"name": "read"}])
    assert '<tools>\n{"name": "read"}\n</tools>' in rendered
    assert '<tool_call>\n{"name": "read", "arguments": {"path": "a"}}\n</tool_call><|im_end|>' in rendered
    assert rendered.endswith("<|im_start|>tool\ntext<|im_end|>\n")


def command(*arguments: str) -> subprocess.CompletedProcess:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    program = [sys.executable, "-m", "learner.models", *arguments]
    return subprocess.run(program, capture_output=True, text=True, check=False, env=environment)


def test_the_command_makes_it_once(tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "tiny"
    first = command("tiny", str(folder))
    assert (first.returncode, first.stdout) == (0, "")
    assert first.stderr.splitlines()[-1].endswith(f"{folder} is ready")
    digest = weights_digest(folder)
    second = command("tiny", str(folder))
    assert (second.returncode, second.stderr.count("\n")) == (0, 1)
    assert f"{folder} was there already" in second.stderr
    assert weights_digest(folder) == digest
    assert [path.name for path in folder.parent.iterdir()] == ["tiny"]


def test_what_is_in_the_way_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("keep")
    done = command("tiny", str(tmp_path / "mine"))
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].endswith("exists and is no model folder: remove it or name another one")
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["notes.txt"]


def test_a_failure_leaves_nothing_behind(tmp_path: Path) -> None:
    def make(folder: Path) -> None:
        (folder / "model.safetensors").write_bytes(b"half")
        raise ModelError("the wheel is gone")

    with pytest.raises(ModelError, match="the wheel is gone"):
        make_once(tmp_path / "model", make)
    assert list(tmp_path.iterdir()) == []
