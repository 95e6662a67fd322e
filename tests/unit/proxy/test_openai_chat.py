import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.conversation import Answer, Message, ToolCall, Usage
from proxy.dialects import OpenAIChat
from proxy.errors import Problem, RequestError

CHAT = OpenAIChat()
USER = {"role": "user", "content": "hi"}


def body(**fields: object) -> bytes:
    return json.dumps({"model": "m", "messages": [USER]} | fields).encode()


def test_a_request_of_a_harness_becomes_a_conversation():
    request = CHAT.parse(
        body(
            messages=[
                {"role": "developer", "content": [{"type": "text", "text": "Be"}, {"type": "text", "text": "brief."}]},
                USER | {"name": "somebody", "unknown": {"deep": [1]}},
                {
                    "role": "assistant",
                    "content": None,
                    "reasoning_content": "hm",
                    "tool_calls": [
                        {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
                    ],
                },
                {"role": "tool", "tool_call_id": "c1", "content": "done"},
            ],
            tools=[{"type": "function", "function": {"name": "f", "strict": False}}, {"type": "web_search"}],
            stream=True,
            stream_options={"include_usage": True},
            max_completion_tokens=9,
            max_tokens=99,
            temperature=0.3,
            store=False,
        )
    )
    assert request.conversation.messages == (
        Message("system", "Be\nbrief."),
        Message("user", "hi"),
        Message("assistant", "", (ToolCall("c1", "f", '{"a": 1}'),)),
        Message("tool", "done", (), "c1"),
    )
    assert request.conversation.tools == ({"type": "function", "function": {"name": "f", "strict": False}},)
    assert (request.model, request.stream, request.include_usage, request.max_tokens) == ("m", True, True, 9)
    assert request.parse_calls
    assert json.loads(request.sampling_requested) == {
        "temperature": 0.3,
        "max_tokens": 99,
        "max_completion_tokens": 9,
    }


def test_forbidden_tools_are_not_read_in_the_reply():
    assert not CHAT.parse(body(tools=[{"function": {"name": "f"}}], tool_choice="none")).parse_calls
    assert not CHAT.parse(body()).parse_calls


def test_half_characters_become_the_replacement_character():
    for cut in (b"\\ud83d", b"\\uDE00"):
        raw = b'{"messages":[{"role":"user","content":"a' + cut + b'"}]}'
        assert CHAT.parse(raw).conversation.messages[0].content == "a\ufffd"
    raw = b'{"messages":[{"role":"user","content":"\\ud83d\\ude00 \\\\ud83d \\ud83d"}]}'
    assert CHAT.parse(raw).conversation.messages[0].content == "😀 \\ud83d \ufffd"


@pytest.mark.parametrize(
    ("raw", "says", "param"),
    [
        (b"", "not valid JSON", None),
        (b"hello", "not valid JSON", None),
        (b'{"messages":[{"role":"user","content":"\xff\xfe"}]}', "UTF-8", None),
        (b'{"x":' + b"[" * 200_000, "nested too deeply", None),
        (b"[]", "wrong shape", None),
        (b"{}", "messages", None),
        (body(messages=[]), "'messages' is empty", "messages"),
        (body(messages="hi"), "messages", None),
        (body(messages=[{"role": "robot", "content": "x"}]), "'robot'", "messages[0].role"),
        (body(messages=[{"role": "user", "content": 5}]), r"messages\[0\].content", None),
        (body(messages=[{"role": "user", "content": [{"type": "image_url"}]}]), "image_url", "messages[0].content"),
        (body(n=2), "one choice", "n"),
        (body(max_tokens=0), "at least 1", "max_tokens"),
        (body(max_tokens="many"), "max_tokens", None),
        (body(temperature="hot"), "temperature", None),
        (body(stream="yes"), "stream", None),
        (body(tools=[{"type": "function", "function": {}}]), "no name", "tools[0].function.name"),
        (body(tools=[{"type": "function", "function": {"name": 7}}]), "no name", "tools[0].function.name"),
    ],
)
def test_bad_input_is_one_clear_line(raw, says, param):
    with pytest.raises(RequestError, match=says) as refused:
        CHAT.parse(raw)
    assert (refused.value.problem, refused.value.param) == (Problem.INVALID_REQUEST, param)
    told = json.loads(CHAT.error(refused.value))["error"]
    assert told["type"] == "invalid_request_error"
    assert "\n" not in told["message"]


json_like = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=8,
)
fields = st.sampled_from(
    [
        "model",
        "messages",
        "tools",
        "stream",
        "stream_options",
        "n",
        "max_tokens",
        "temperature",
        "tool_choice",
        "stop",
        "x",
    ]
)
messages = st.lists(
    st.dictionaries(
        st.sampled_from(["role", "content", "tool_calls", "tool_call_id", "name"]), json_like | st.just("user")
    ),
    max_size=3,
)


@settings(max_examples=300, deadline=None)
@given(st.binary() | st.dictionaries(fields, json_like | messages).map(lambda value: json.dumps(value).encode()))
def test_whatever_comes_is_a_request_or_a_bad_request(raw):
    problem = Problem.INVALID_REQUEST
    try:
        CHAT.parse(raw)
    except RequestError as refused:
        problem = refused.problem
    assert problem is Problem.INVALID_REQUEST


ANSWER = Answer(
    completion_id="c",
    created_s=7,
    text='Say "hi" é',
    calls=(ToolCall("call1", "f", '{"a": 1}'), ToolCall("call2", "g", "{}")),
    finish="tool_calls",
    usage=Usage(10, 5, 3),
)
USAGE = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15, "prompt_tokens_details": {"cached_tokens": 3}}


def events(stream: bytes) -> list[object]:
    lines = [line.removeprefix("data: ") for line in stream.decode().split("\n\n") if line]
    return [line if line == "[DONE]" else json.loads(line) for line in lines]


@pytest.mark.parametrize("include_usage", [True, False])
def test_a_stream_has_the_chunks_that_openai_sends(include_usage):
    writer = CHAT.writer(CHAT.parse(body(stream_options={"include_usage": include_usage})), "c", 7)
    told = writer.begin() + writer.piece(ANSWER.text) + b"".join(map(writer.piece, ANSWER.calls)) + writer.end(ANSWER)
    *chunks, done = events(told)
    assert done == "[DONE]"
    usage_chunks = chunks[5:] if include_usage else []
    head = {"id": "chatcmpl-c", "object": "chat.completion.chunk", "created": 7, "model": "m"}
    nothing = {"usage": None} if include_usage else {}

    def chunk(delta: object, finish: str | None = None) -> object:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        return head | {"choices": [choice]} | nothing

    def call(index: int, name: str, arguments: str) -> object:
        function = {"name": name, "arguments": arguments}
        return {"tool_calls": [{"index": index, "id": f"call{index + 1}", "type": "function", "function": function}]}

    assert chunks[:5] == [
        chunk({"role": "assistant", "content": ""}),
        chunk({"content": 'Say "hi" é'}),
        chunk(call(0, "f", '{"a": 1}')),
        chunk(call(1, "g", "{}")),
        chunk({}, "tool_calls"),
    ]
    assert usage_chunks == ([head | {"choices": [], "usage": USAGE}] if include_usage else [])


def test_a_whole_reply_has_the_shape_that_openai_sends():
    told = json.loads(CHAT.whole(CHAT.parse(body()), ANSWER))
    (choice,) = told.pop("choices")
    assert told == {"id": "chatcmpl-c", "object": "chat.completion", "created": 7, "model": "m", "usage": USAGE}
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] == 'Say "hi" é'
    assert [call["function"]["name"] for call in choice["message"]["tool_calls"]] == ["f", "g"]


@pytest.mark.parametrize(
    ("problem", "kind"), [(Problem.CALL_LIMIT, "invalid_request_error"), (Problem.ENGINE_AWAY, "server_error")]
)
def test_errors_have_the_shape_that_openai_sends(problem, kind):
    told = json.loads(CHAT.error(RequestError(problem, "why", param="p")))
    assert told == {"error": {"message": "why", "type": kind, "param": "p", "code": problem.code}}
