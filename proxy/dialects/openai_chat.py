"""OpenAI's chat completions.

Source: https://platform.openai.com/docs/api-reference/chat, and what the openai SDK's helpers insist on: every chunk
has `object` and `choice.index`, tool calls count their `index` from 0, an id and a name come once.
"""

from typing import Any, cast

import msgspec

from proxy.conversation import Answer, Conversation, Message, ModelRequest, Piece, Role, ToolCall, Usage
from proxy.dialects.json_body import decode_body
from proxy.errors import Problem, RequestError

_ROLES: dict[str, Role] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
    "function": "tool",
}
# Content that a text model cannot take: leaving it out would change the prompt in silence.
_NOT_TEXT = frozenset({"image_url", "input_audio", "file", "video_url"})
_SERVER_ERROR = 500
_encode = msgspec.json.Encoder().encode


class _Part(msgspec.Struct):
    type: str = "text"
    text: str | None = None
    refusal: str | None = None


class _Called(msgspec.Struct):
    name: str = ""
    arguments: str | dict[str, Any] | None = None


class _Call(msgspec.Struct):
    id: str = ""
    function: _Called | None = None


class _Message(msgspec.Struct):
    role: str
    content: str | list[_Part] | None = None
    tool_calls: list[_Call] | None = None
    tool_call_id: str | None = None


class _Tool(msgspec.Struct):
    type: str = "function"
    function: dict[str, Any] | None = None


class _StreamOptions(msgspec.Struct):
    include_usage: bool | None = None


class _Body(msgspec.Struct):
    messages: list[_Message]
    model: str = ""
    tools: list[_Tool] | None = None
    tool_choice: Any = None
    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    n: int | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None
    stop: Any = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    response_format: Any = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: str | None = None


_REQUESTED = (
    "temperature",
    "top_p",
    "max_tokens",
    "max_completion_tokens",
    "seed",
    "stop",
    "presence_penalty",
    "frequency_penalty",
    "logit_bias",
    "response_format",
    "tool_choice",
    "parallel_tool_calls",
    "reasoning_effort",
)
_body_decoder = msgspec.json.Decoder(_Body)


class OpenAIChat:
    """The dialect `openai_chat`."""

    name = "openai_chat"
    keep_alive = b": keep-alive\n\n"

    def parse(self, body: bytes) -> ModelRequest:
        """See `Dialect.parse`."""
        asked = decode_body(_body_decoder, body)
        if asked.n not in (None, 1):
            raise RequestError(
                Problem.INVALID_REQUEST,
                f"'n' is {asked.n}: one choice a request is served; send {asked.n} requests",
                param="n",
            )
        if not asked.messages:
            raise RequestError(Problem.INVALID_REQUEST, "'messages' is empty", param="messages")
        messages = tuple(_message(message, index) for index, message in enumerate(asked.messages))
        tools = tuple(_tool(tool, index) for index, tool in enumerate(asked.tools or ()) if tool.type == "function")
        return ModelRequest(
            model=asked.model,
            conversation=Conversation(messages, tools),
            stream=bool(asked.stream),
            include_usage=bool(asked.stream_options and asked.stream_options.include_usage),
            max_tokens=_max_tokens(asked),
            parse_calls=bool(tools) and asked.tool_choice != "none",
            sampling_requested=_encode(
                {name: value for name in _REQUESTED if (value := getattr(asked, name)) is not None}
            ).decode(),
        )

    def writer(self, request: ModelRequest, completion_id: str, created_s: int) -> "ChatWriter":
        """See `Dialect.writer`."""
        return ChatWriter(request, completion_id, created_s)

    def whole(self, request: ModelRequest, answer: Answer) -> bytes:
        """See `Dialect.whole`."""
        message: dict[str, Any] = {"role": "assistant", "content": answer.text or None, "refusal": None}
        if answer.calls:
            message["tool_calls"] = [_wire_call(call) for call in answer.calls]
        elif message["content"] is None:
            message["content"] = ""
        return _encode(
            {
                "id": _wire_id(answer.completion_id),
                "object": "chat.completion",
                "created": answer.created_s,
                "model": request.model,
                "choices": [{"index": 0, "message": message, "logprobs": None, "finish_reason": answer.finish}],
                "usage": _wire_usage(answer.usage),
            }
        )

    def error(self, error: RequestError) -> bytes:
        """See `Dialect.error`."""
        kind = "server_error" if error.problem.status >= _SERVER_ERROR else "invalid_request_error"
        told = {"message": error.message, "type": kind, "param": error.param, "code": error.problem.code}
        return _encode({"error": told})

    def stream_error(self, error: RequestError) -> bytes:
        """See `Dialect.stream_error`."""
        return b"data: " + self.error(error) + b"\n\n"

    def models(self, names: list[str]) -> bytes:
        """See `Dialect.models`."""
        listed = [{"id": name, "object": "model", "created": 0, "owned_by": "forgestream"} for name in names]
        return _encode({"object": "list", "data": listed})


class ChatWriter:
    """Chunks of one streamed reply. What is the same in all of them is encoded once."""

    def __init__(self, request: ModelRequest, completion_id: str, created_s: int) -> None:
        head = {
            "id": _wire_id(completion_id),
            "object": "chat.completion.chunk",
            "created": created_s,
            "model": request.model,
        }
        self._head = b"data: " + _encode(head)[:-1]
        self._include_usage = request.include_usage
        self._tail = b"}]" + (b',"usage":null' if request.include_usage else b"") + b"}\n\n"
        self._calls = 0

    def begin(self) -> bytes:
        """The role, before anything is said."""
        return self._chunk(b'{"role":"assistant","content":""}')

    def piece(self, piece: Piece) -> bytes:
        """A chunk of text, or a chunk with a whole call."""
        if isinstance(piece, str):
            return self._chunk(b'{"content":' + _encode(piece) + b"}")
        call = {"index": self._calls} | _wire_call(piece)
        self._calls += 1
        return self._chunk(b'{"tool_calls":[' + _encode(call) + b"]}")

    def end(self, answer: Answer) -> bytes:
        """Finish reason, token counts where they are wanted, end mark."""
        usage = b""
        if self._include_usage:
            usage = self._head + b',"choices":[],"usage":' + _encode(_wire_usage(answer.usage)) + b"}\n\n"
        return self._chunk(b"{}", _encode(answer.finish)) + usage + b"data: [DONE]\n\n"

    def _chunk(self, delta: bytes, finish: bytes = b"null") -> bytes:
        return (
            self._head
            + b',"choices":[{"index":0,"delta":'
            + delta
            + b',"logprobs":null,"finish_reason":'
            + finish
            + self._tail
        )


def _message(message: _Message, index: int) -> Message:
    role = _ROLES.get(message.role)
    where = f"messages[{index}]"
    if role is None:
        raise RequestError(Problem.INVALID_REQUEST, f"'{where}.role' is {message.role!r}", param=f"{where}.role")
    calls = message.tool_calls or () if role == "assistant" else ()
    return Message(
        role=role,
        content=_text(message.content, where),
        tool_calls=tuple(_tool_call(call.id, call.function) for call in calls if call.function is not None),
        tool_call_id=message.tool_call_id or "" if role == "tool" else "",
    )


def _text(content: str | list[_Part] | None, where: str) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    for part in content:
        if part.type in _NOT_TEXT:
            said = f"'{where}.content' has a part of type {part.type!r}: this model reads text only"
            raise RequestError(Problem.INVALID_REQUEST, said, param=f"{where}.content")
    return "\n".join(part.text or part.refusal or "" for part in content)


def _tool_call(call_id: str, called: _Called) -> ToolCall:
    arguments = called.arguments if isinstance(called.arguments, str) else _encode(called.arguments or {}).decode()
    return ToolCall(call_id, called.name, arguments)


def _tool(tool: _Tool, index: int) -> dict[str, Any]:
    function = tool.function
    if not function or not isinstance(function.get("name"), str) or not function["name"]:
        raise RequestError(
            Problem.INVALID_REQUEST, f"'tools[{index}].function' has no name", param=f"tools[{index}].function.name"
        )
    return {"type": "function", "function": function}


def _max_tokens(asked: _Body) -> int | None:
    for name in ("max_completion_tokens", "max_tokens"):
        value = cast("int | None", getattr(asked, name))
        if value is not None:
            if value < 1:
                raise RequestError(Problem.INVALID_REQUEST, f"'{name}' is {value}: it must be at least 1", param=name)
            return value
    return None


def _wire_id(completion_id: str) -> str:
    return f"chatcmpl-{completion_id}"


def _wire_call(call: ToolCall) -> dict[str, Any]:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def _wire_usage(usage: Usage) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    }
