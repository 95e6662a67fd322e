"""Hermes-style tool calls in text: `<tool_call>{"name": …, "arguments": {…}}</tool_call>`.

The form that Qwen, Hermes and many other models were trained on; any chat model can be told to use it. Source:
https://github.com/NousResearch/Hermes-Function-Calling.
"""

import json
from collections.abc import Sequence
from typing import Any

import msgspec

from proxy.conversation import Message, ToolCall

OPEN, CLOSE = "<tool_call>", "</tool_call>"


class _Call(msgspec.Struct):
    name: str
    arguments: msgspec.Raw = msgspec.Raw(b"{}")


_decode_call = msgspec.json.Decoder(_Call).decode
_decode_object = msgspec.json.Decoder(dict[str, Any]).decode


def parse_call(block: str, call_id: str) -> ToolCall | None:
    """The call between the two marks; None when it is none. Its arguments stay as the model wrote them."""
    try:
        call = _decode_call(block.strip().encode())
        _decode_object(call.arguments)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None
    return ToolCall(call_id, call.name, bytes(call.arguments).decode()) if call.name else None


def arguments_object(text: str) -> dict[str, Any] | str:
    """A call's arguments as templates want them: an object, or the text where it is none."""
    try:
        return _decode_object(text.encode()) if text.strip() else {}
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return text


def written_call(call: ToolCall) -> str:
    """A call as text, for a template that renders none."""
    arguments = arguments_object(call.arguments)
    text = json.dumps({"name": call.name, "arguments": arguments}, ensure_ascii=False)
    return f"{OPEN}\n{text}\n{CLOSE}"


def written_result(message: Message) -> str:
    """A tool's result as text of the user, for a template that renders none."""
    return f"<tool_response>\n{message.content}\n</tool_response>"


def preamble(tools: Sequence[dict[str, Any]]) -> str:
    """What a system prompt says about tools, for a template that renders none."""
    listed = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
    return (
        "# Tools\n\n"
        "You may call one or more functions to help with the user's request. "
        f"Their signatures are within <tools></tools>:\n<tools>\n{listed}\n</tools>\n\n"
        "To call a function, answer with a JSON object that has its name and its arguments, "
        f"within {OPEN}{CLOSE}:\n"
        f'{OPEN}\n{{"name": <function name>, "arguments": <object of arguments>}}\n{CLOSE}'
    )
