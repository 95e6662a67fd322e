"""A conversation, free of any vendor's wire format: what dialects parse into and everything else works on."""

from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec

Role = Literal["system", "user", "assistant", "tool"]


class ToolCall(msgspec.Struct, frozen=True):
    """A function that the assistant asked for."""

    id: str
    """Wire-only: harnesses may change it."""
    name: str
    arguments: str
    """JSON text, as it was written."""


class Message(msgspec.Struct, frozen=True, omit_defaults=True):
    """One message. It is also what `request_delta` on completions.v1 holds."""

    role: Role
    content: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str = ""
    """On a tool's result: the call that it answers."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """All messages of a request, oldest first, and the tools that it offers."""

    messages: tuple[Message, ...]
    tools: tuple[dict[str, Any], ...] = ()
    """Function tools as `{"type": "function", "function": {"name": …}}`, in the harness's own key order."""

    @property
    def system_count(self) -> int:
        """How many system messages stand at the very beginning: together they are the system prompt."""
        for index, message in enumerate(self.messages):
            if message.role != "system":
                return index
        return len(self.messages)

    @property
    def system_prompt(self) -> str:
        """The text of the system prompt; empty when there is none."""
        return "\n\n".join(message.content for message in self.messages[: self.system_count])


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """What a harness asks for in one call."""

    model: str
    """The name that it used; any name is served."""
    conversation: Conversation
    stream: bool = False
    include_usage: bool = False
    """Whether a stream ends with the token counts."""
    max_tokens: int | None = None
    parse_calls: bool = False
    """Whether tool calls in the sampled text are read as such: tools are offered and not forbidden."""
    sampling_requested: str = "{}"
    """JSON object: the sampling fields as the harness sent them."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts as told to the harness."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0


Piece = str | ToolCall
"""Something to show: a stretch of text, or a whole tool call."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A finished reply."""

    completion_id: str
    created_s: int
    text: str
    calls: tuple[ToolCall, ...]
    finish: Literal["stop", "length", "tool_calls"]
    usage: Usage
    malformed_calls: int = 0
    """Tool calls that did not parse and went out as text."""
    pieces: list[Piece] = field(default_factory=list, compare=False, repr=False)
    """The reply in the order in which it was streamed."""

    @property
    def message(self) -> Message:
        """The reply as the next request will echo it."""
        return Message(role="assistant", content=self.text, tool_calls=self.calls)
