"""A random Qwen2 with a byte-level tokenizer: every path of the platform in a second, and no knowledge at all."""

from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import Qwen2Config, Qwen2ForCausalLM

from learner.models.folder import write_json

PAD, START, END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
VOCABULARY = 512
CONTEXT_TOKENS = 16_384

# Qwen2's own: transformers puts it into every tokenizer that stands beside a Qwen2 config, so the file must agree.
_PRETOKENS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

# Words that tests, tool calls and chat markup use, so that prompts stay short in tokens.
_CORPUS = """\
You are a helpful assistant. Answer the question with one word. Reply only with a name. What is the capital of France?
The quick brown fox jumps over the lazy dog while the user asks the system for another tool call and its result.
{"name": "read", "arguments": {"path": "/workspace/notes.txt", "command": "ls -la", "content": "hello world"}}
{"type": "function", "function": {"description": "Reads a file", "parameters": {"type": "object", "properties": {}}}}
Yes, no, true, false, none. Write the answer to a file and then stop. Numbers: 0 1 2 3 4 5 6 7 8 9 10 20 30 100 1000.
In this task the agent should use the available tools, check what they return, and finish when there is nothing left.
"""

# ChatML with Hermes tool calls, as Qwen2.5 renders them. No system message is added that nobody wrote.
CHAT_TEMPLATE = """\
{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}{{- messages[0].content + '\\n\\n' }}{% endif %}
    {{- '# Tools\\n<tools>' }}
    {%- for tool in tools %}{{- '\\n' + (tool | tojson) }}{% endfor %}
    {{- '\\n</tools>\\nCall a tool as <tool_call>\\n{"name": NAME, "arguments": OBJECT}\\n</tool_call><|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if not (tools and loop.first and message.role == 'system') %}
        {{- '<|im_start|>' + message.role + '\\n' }}
        {%- if message.content %}{{- message.content }}{% endif %}
        {%- for call in message.tool_calls or [] %}
            {%- set function = call.function or call %}
            {{- '\\n<tool_call>\\n{"name": "' + function.name + '", "arguments": ' }}
            {{- function.arguments if function.arguments is string else function.arguments | tojson }}
            {{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{% endif %}
"""


def make(folder: Path) -> None:
    """Writes the model folder; the same bytes every time."""
    tokenizer = _tokenizer()
    tokenizer.save(str(folder / "tokenizer.json"))
    write_json(folder / "tokenizer_config.json", _tokenizer_config())
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE, encoding="utf-8")
    stop, pad = tokenizer.token_to_id(END), tokenizer.token_to_id(PAD)
    config = _config(stop, pad)
    config.save_pretrained(folder)
    write_json(folder / "generation_config.json", {"eos_token_id": stop, "pad_token_id": pad})
    save_file(_weights(config), folder / "model.safetensors", metadata={"format": "pt"})


def _tokenizer() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_PRETOKENS), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[PAD, START, END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([_CORPUS], trainer)
    # A model that can sample an id without a token would make replies that nobody can decode.
    if tokenizer.get_vocab_size() != VOCABULARY:
        raise AssertionError(f"the corpus yields {tokenizer.get_vocab_size()} tokens, not {VOCABULARY}")
    return tokenizer


def _tokenizer_config() -> dict[str, object]:
    return {
        "tokenizer_class": "Qwen2Tokenizer",
        "eos_token": END,
        "pad_token": PAD,
        "bos_token": None,
        "unk_token": None,
        "additional_special_tokens": [START],
        "clean_up_tokenization_spaces": False,
        "model_max_length": CONTEXT_TOKENS,
    }


def _config(stop: int, pad: int) -> Qwen2Config:
    return Qwen2Config(
        architectures=["Qwen2ForCausalLM"],
        dtype="bfloat16",
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=CONTEXT_TOKENS,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=stop,
        pad_token_id=pad,
    )


def _weights(config: Qwen2Config) -> dict[str, torch.Tensor]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = Qwen2ForCausalLM(config)
    return {name: value.to(torch.bfloat16) for name, value in model.state_dict().items()}
