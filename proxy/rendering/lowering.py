"""Messages as a chat template takes them. What a template does not render is written as text instead.

Which of the two holds is found out once, when the model is loaded, by rendering small conversations.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from proxy.conversation import Conversation, Message
from proxy.rendering.template import ChatTemplate, TemplateRefused
from proxy.rendering.toolcalls import OPEN, arguments_object, preamble, written_call, written_result

TemplateMessage = dict[str, Any]

_PROBE_TOOL = {
    "type": "function",
    "function": {"name": "fsProbeTool", "description": "d", "parameters": {"type": "object", "properties": {}}},
}


@dataclass(frozen=True)
class Capabilities:
    """What a chat template renders by itself."""

    tools: bool
    """Tools, calls and results, with calls in the form that `toolcalls` reads."""
    late_system: bool
    """System messages after the first user message."""


def probe(template: ChatTemplate) -> Capabilities:
    """Find out by rendering."""
    return Capabilities(tools=_renders_tools(template), late_system=_renders_late_system(template))


def _renders_tools(template: ChatTemplate) -> bool:
    call = {
        "id": "call00001",
        "type": "function",
        "function": {"name": "fsProbeCall", "arguments": {"x": "fsProbeArgument"}},
    }
    messages = [
        {"role": "user", "content": "u"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "fsProbeResult", "tool_call_id": "call00001", "name": "fsProbeCall"},
    ]
    try:
        text = template.render(messages, [_PROBE_TOOL])
    except TemplateRefused:
        return False
    written = text.partition("fsProbeCall")[0].rpartition(OPEN)
    return (
        all(text.count(word) >= 1 for word in ("fsProbeTool", "fsProbeCall", "fsProbeArgument", "fsProbeResult"))
        and written[1] == OPEN
        and written[2].lstrip().startswith("{")
    )


def _renders_late_system(template: ChatTemplate) -> bool:
    messages = [
        {"role": "user", "content": "u"},
        {"role": "assistant", "content": "fsProbeBefore"},
        {"role": "system", "content": "fsProbeSystem"},
        {"role": "user", "content": "fsProbeAfter"},
    ]
    try:
        text = template.render(messages)
    except TemplateRefused:
        return False
    places = [text.find(word) for word in ("fsProbeBefore", "fsProbeSystem", "fsProbeAfter")]
    return -1 not in places and places == sorted(places)


def lowered_tools(conversation: Conversation, can: Capabilities) -> list[dict[str, Any]] | None:
    """The tools for the template; None where it is told of none."""
    return list(conversation.tools) if can.tools and conversation.tools else None


def lowered(conversation: Conversation, can: Capabilities, first: int = 0) -> list[TemplateMessage]:
    """The messages from index `first` on, for the template."""
    messages = conversation.messages
    out: list[TemplateMessage] = []
    if first == 0 and conversation.tools and not can.tools:
        # The system prompt takes the tools in; the messages that it was made of are done with.
        first = conversation.system_count
        parts = [part for part in (conversation.system_prompt, preamble(conversation.tools)) if part]
        out.append({"role": "system", "content": "\n\n".join(parts)})
    index = first
    while index < len(messages):
        end = index + 1
        if messages[index].role == "tool" and not can.tools:
            while end < len(messages) and messages[end].role == "tool":
                end += 1  # results of one turn stand in one message
            out.append({"role": "user", "content": "\n".join(map(written_result, messages[index:end]))})
        else:
            late = index >= conversation.system_count
            out.append(_lowered(messages[index], can, names=_names_before(messages, index), late=late))
        index = end
    return out


def _lowered(message: Message, can: Capabilities, names: dict[str, str], *, late: bool) -> TemplateMessage:
    if message.role == "system" and late and not can.late_system:
        return {"role": "user", "content": message.content}
    if message.role == "tool":
        result = {"role": "tool", "content": message.content, "tool_call_id": message.tool_call_id}
        return result | ({"name": names[message.tool_call_id]} if message.tool_call_id in names else {})
    if not message.tool_calls:
        return {"role": message.role, "content": message.content}
    if can.tools:
        return {"role": message.role, "content": message.content, "tool_calls": template_calls(message)}
    written = "\n".join(map(written_call, message.tool_calls))
    return {"role": message.role, "content": f"{message.content}\n{written}" if message.content else written}


def template_calls(message: Message) -> list[dict[str, Any]]:
    """A message's calls as templates want them."""
    return [
        {
            "id": call.id,
            "type": "function",
            "function": {"name": call.name, "arguments": arguments_object(call.arguments)},
        }
        for call in message.tool_calls
    ]


def _names_before(messages: Sequence[Message], index: int) -> dict[str, str]:
    """For a tool's result: call ids → function names of the assistant message that it answers."""
    if messages[index].role != "tool":
        return {}
    for message in reversed(messages[:index]):
        if message.role == "assistant":
            return {call.id: call.name for call in message.tool_calls}
    return {}
