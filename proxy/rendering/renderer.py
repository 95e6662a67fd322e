"""Conversations to prompts: whole ones, and what is new since a recorded completion (the sentinel bridge).

The bridge asks the template for a tiny conversation whose assistant turn is a sentinel, followed by the new messages.
What stands after the token that closes the sentinel's turn is the rendering of what is new, whatever came before.
Nothing that was sampled is ever rendered or tokenised again, and the cost does not grow with the history.
"""

import itertools
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from proxy.conversation import Conversation, Message
from proxy.errors import BridgeRefused, ModelFolderError, Problem, RequestError
from proxy.rendering.folder import ModelFolder
from proxy.rendering.lowering import TemplateMessage, lowered, lowered_tools, probe, template_calls
from proxy.rendering.router import CallRouter, PlainRouter, Router
from proxy.rendering.template import TemplateRefused
from proxy.rendering.vocabulary import Masks, TextDecoder

_PATTERNS = 256
_SHRINK = 4  # normalisation may make text shorter, though hardly by this much
_BASE: TemplateMessage = {"role": "user", "content": "u"}


@dataclass(frozen=True, slots=True)
class _Pattern:
    """What is known of the bridge for one sequence of roles."""

    refusal: str = ""
    needs_tools: bool = False
    """Whether the template writes the tools after the sentinel."""


class Renderer:
    """Prompts of one model."""

    def __init__(self, folder: ModelFolder) -> None:
        """Raises ModelFolderError when the template does not render a plain conversation."""
        self._folder = folder
        self._vocabulary = folder.vocabulary
        self._can = probe(folder.template)
        self._patterns: dict[tuple, _Pattern] = {}
        self.template_digest = folder.template_digest
        self.context_tokens = folder.context_tokens
        self.close_id = self._find_close()
        """The token that ends an assistant's turn in this template."""
        self.stop_ids = folder.stop_ids | {self.close_id}
        """Tokens at which sampling stops."""

    @property
    def renders_tools(self) -> bool:
        """Whether the template renders tools by itself."""
        return self._can.tools

    def whole(self, conversation: Conversation) -> list[int]:
        """Token ids of the whole prompt, the assistant's turn opened at its end.

        Raises:
            RequestError: the template does not take the conversation, or it cannot fit the context.
        """
        self._check_size(conversation)
        masks = Masks(self._vocabulary)
        messages, tools = lowered(conversation, self._can), lowered_tools(conversation, self._can)
        messages, tools = _hidden(messages, masks), tools and _hidden(tools, masks)
        try:
            text = self._folder.template.render(messages, tools)
        except TemplateRefused as refused:
            raise RequestError(
                Problem.INVALID_REQUEST,
                f"the model's chat template refuses this conversation: {refused}",
                param="messages",
            ) from refused
        return self._encode(text, masks)

    def continued(self, conversation: Conversation, first_new: int, sequence: list[int]) -> list[int]:
        """Token ids of the prompt that follows a recorded sequence, which it begins with.

        Args:
            first_new: index of the first message after the recorded completion; the one before it is its echo.
            sequence: the completion's whole prompt and its sampled tokens.

        Raises:
            BridgeRefused: not possible with certainty.
        """
        if any(message.role == "assistant" for message in conversation.messages[first_new:]):
            raise BridgeRefused("an assistant message that was not recorded follows")
        if first_new >= len(conversation.messages):
            raise BridgeRefused("nothing is new")
        suffix = self._suffix(conversation, first_new)
        closing = [] if sequence[-1] in self.stop_ids else [self.close_id]
        prompt = sequence + closing + suffix
        if prompt[: len(sequence)] != sequence:  # cannot be; but the whole design rests on it
            raise BridgeRefused("the prompt would not begin with the recorded tokens")
        return prompt

    def decoder(self) -> TextDecoder:
        """A decoder for sampled ids."""
        return self._vocabulary.decoder()

    def shown(self, ids: Sequence[int]) -> list[int]:
        """Sampled ids without the ones that only end the turn."""
        return [i for i in ids if i not in self.stop_ids]

    def router(self, *, parse_calls: bool) -> Router:
        """A router for sampled text."""
        return CallRouter(_call_id) if parse_calls else PlainRouter()

    def _find_close(self) -> int:
        sentinel = _sentinel()
        try:
            text = self._folder.template.render([_BASE, {"role": "assistant", "content": sentinel}, _BASE])
        except TemplateRefused as refused:
            raise ModelFolderError(
                f"{self._folder.path}: the chat template refuses a plain conversation: {refused}"
            ) from refused
        controls = self._vocabulary.control_strings(text.partition(sentinel)[2])
        if text.count(sentinel) != 1 or not controls:
            raise ModelFolderError(
                f"{self._folder.path}: the chat template ends no assistant turn with a control token of tokenizer.json"
            )
        return self._vocabulary.special[controls[0]]

    def _suffix(self, conversation: Conversation, first_new: int) -> list[int]:
        echo = conversation.messages[first_new - 1]
        new = lowered(conversation, self._can, first_new)
        tools = lowered_tools(conversation, self._can)
        pattern = self._pattern(echo, new, tools)
        if pattern.refusal:
            raise BridgeRefused(pattern.refusal)
        if not pattern.needs_tools:
            tools = None
        masks = Masks(self._vocabulary)
        stand_in, sentinel = self._stand_in(echo)
        text = self._after_close(_hidden([stand_in, *new], masks), sentinel, tools and _hidden(tools, masks))
        return self._encode(text, masks)

    def _pattern(self, echo: Message, new: list[TemplateMessage], tools: list[dict[str, Any]] | None) -> _Pattern:
        key = (len(echo.tool_calls), bool(tools), *(message["role"] for message in new))
        pattern = self._patterns.get(key)
        if pattern is None:
            if len(self._patterns) >= _PATTERNS:
                self._patterns.clear()
            pattern = self._patterns[key] = self._try_pattern(echo, new, tools)
        return pattern

    def _try_pattern(self, echo: Message, new: list[TemplateMessage], tools: list[dict[str, Any]] | None) -> _Pattern:
        """Renders the pattern with marks for contents: each must appear once, in order."""
        masks = Masks(self._vocabulary)
        marks = [_sentinel() for _ in new]
        stand_in, sentinel = self._stand_in(echo)
        marked = [message | {"content": mark} for message, mark in zip(new, marks, strict=True)]
        messages = _hidden([stand_in, *marked], masks)
        try:
            text = self._after_close(messages, sentinel, tools and _hidden(tools, masks))
            bare = self._after_close(messages, sentinel, None) if tools else text
        except BridgeRefused as refused:
            return _Pattern(str(refused))
        places = [text.find(mark) for mark in marks]
        if -1 in places or places != sorted(places) or any(text.count(mark) != 1 for mark in marks):
            return _Pattern("the template drops or reorders new messages")
        return _Pattern(needs_tools=bare != text)

    def _after_close(self, messages: list[TemplateMessage], sentinel: str, tools: list[dict[str, Any]] | None) -> str:
        """What the template writes after the token that closes the turn which ends with the sentinel."""
        try:
            text = self._folder.template.render([_BASE, *messages], tools)
        except TemplateRefused as refused:
            raise BridgeRefused(f"the template refuses: {refused}") from refused
        _, found, tail = text.partition(sentinel)
        if not found or sentinel in tail:
            raise BridgeRefused("the template does not write the assistant's turn exactly once")
        for control in self._vocabulary.control_strings(tail):
            if self._vocabulary.special[control] in self.stop_ids:
                return tail.partition(control)[2]
        raise BridgeRefused("no stop token closes the assistant's turn")

    def _stand_in(self, echo: Message) -> tuple[TemplateMessage, str]:
        """An assistant message of the recorded one's kind, and the sentinel that is its last word."""
        sentinel = _sentinel()
        if not (echo.tool_calls and self._can.tools):
            return {"role": "assistant", "content": sentinel}, sentinel
        calls = template_calls(echo)
        for call in calls:
            call["function"]["arguments"] = {"x": "y"}
        calls[-1]["function"]["arguments"] = {"x": sentinel}
        return {"role": "assistant", "content": "", "tool_calls": calls}, sentinel

    def _encode(self, text: str, masks: Masks) -> list[int]:
        return self._vocabulary.encode_masked(text, masks) if masks else self._vocabulary.encode(text)

    def _check_size(self, conversation: Conversation) -> None:
        """Refuse what cannot fit before any work is spent on it."""
        chars = sum(len(message.content) for message in conversation.messages)
        least = chars // (self._vocabulary.longest_token_chars * _SHRINK)
        if least > self.context_tokens:
            raise context_exceeded(self.context_tokens, least)


def context_exceeded(context_tokens: int, prompt_tokens: int) -> RequestError:
    """The error whose text makes harnesses compact their context."""
    return RequestError(
        Problem.CONTEXT_LENGTH,
        f"This model's maximum context length is {context_tokens} tokens. However, your messages resulted in "
        f"{prompt_tokens} tokens. Please reduce the length of the messages.",
        param="messages",
    )


def _hidden(values: list[dict[str, Any]], masks: Masks) -> list[dict[str, Any]]:
    """Messages or tools, with masks where users or tools wrote control tokens (which is hardly ever)."""
    return [_mapped(value, masks) for value in values]


def _mapped(value: Any, masks: Masks) -> Any:
    if isinstance(value, str):
        return masks.hide(value)
    if isinstance(value, dict):
        return {_mapped(key, masks): _mapped(inner, masks) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_mapped(inner, masks) for inner in value]
    return value


_RUN = uuid.uuid4().hex[:12]  # nobody outside of this process knows it
_numbers = itertools.count()


def _sentinel() -> str:
    return f"fsS{_RUN}x{next(_numbers)}x"


def _call_id() -> str:
    return f"call{uuid.uuid4().hex[:20]}"
