"""A model's Jinja chat template, in the same sandbox in which the transformers library renders it.

Source of the environment: transformers 5.10, utils/chat_template_utils.py, `_cached_compile_jinja_template`.
"""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from proxy.errors import ModelFolderError


class TemplateRefused(Exception):
    """The template does not render this conversation: `raise_exception`, or a value it did not expect."""


class _GenerationBlock(Extension):
    """`{% generation %}`: marks the assistant's tokens for training on text; here its body is just rendered."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """The block's body in its place."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class ChatTemplate:
    """Renders conversations to text."""

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        """`special_tokens`: `bos_token` and the like, which templates may name.

        Raises:
            ModelFolderError: not a template.
        """
        try:
            self._template = _environment().from_string(source)
        except jinja2.TemplateError as error:
            raise ModelFolderError(f"the chat template cannot be read: {error}") from error
        self._special_tokens = dict(special_tokens)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        *,
        add_generation_prompt: bool = True,
    ) -> str:
        """The conversation as text, control tokens written out.

        Raises:
            TemplateRefused: the template does not take it.
        """
        try:
            return self._template.render(
                messages=messages,
                tools=tools or None,
                documents=None,
                add_generation_prompt=add_generation_prompt,
                **self._special_tokens,
            )
        except (jinja2.TemplateError, TypeError, ValueError, KeyError, AttributeError, ArithmeticError) as error:
            raise TemplateRefused(str(error) or type(error).__name__) from error


def _environment() -> jinja2.Environment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlock, "jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Jinja's own filter escapes HTML characters, which no model was trained on."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _strftime_now(template: str) -> str:
    return datetime.now().strftime(template)
