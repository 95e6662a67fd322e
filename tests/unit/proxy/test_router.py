import itertools
import json

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from proxy.conversation import Piece, ToolCall
from proxy.rendering.router import CallRouter

GOOD = '<tool_call>\n{"name": "read", "arguments": {"path": "a"}}\n</tool_call>'
FRAGMENTS = [
    *(
        "a < b ",
        "<tool",
        "_call>",
        "<tool_call",
        "<<",
        "é🙂",
        "x\n",
        " ",
        '"',
        "\\",
        "</tool_call>",
        "<tool_call>",
        "{",
    ),
    GOOD,
    '<tool_call>{"name": 1}</tool_call>',
    '<tool_call>{"name": "w", "arguments": {"t": "</tool_call>"}}</tool_call>',
]
ARGUMENTS_AS_TEXT = '<tool_call>{"name": "x", "arguments": "{}"}</tool_call>'


def router() -> CallRouter:
    count = itertools.count()
    return CallRouter(lambda: f"call{next(count)}")


def route(*parts: str) -> list[Piece]:
    """All pieces, neighbouring text joined."""
    it = router()
    pieces = [piece for part in parts for piece in it.feed(part)] + it.end()
    joined: list[Piece] = []
    for piece in pieces:
        if isinstance(piece, str) and joined and isinstance(joined[-1], str):
            joined[-1] += piece
        else:
            joined.append(piece)
    return joined


def named(pieces: list[Piece]) -> list[object]:
    return [(p.name, json.loads(p.arguments)) if isinstance(p, ToolCall) else p for p in pieces]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("just text", ["just text"]),
        (f"Let me see.\n{GOOD}", ["Let me see.\n", ("read", {"path": "a"})]),
        (f"\n\n{GOOD}\n{GOOD}\n", [("read", {"path": "a"}), ("read", {"path": "a"})]),
        (f"{GOOD}\n done", [("read", {"path": "a"}), "\n done"]),
        ('<tool_call>{"name": "stop"}</tool_call>', [("stop", {})]),
        (GOOD.removesuffix("\n</tool_call>"), [("read", {"path": "a"})]),
        (
            '<tool_call>{"name": "w", "arguments": {"t": "</tool_call>"}}</tool_call> ok',
            [("w", {"t": "</tool_call>"}), " ok"],
        ),
        ("<tool_call>no json</tool_call>rest", ["<tool_call>no json</tool_call>rest"]),
        (f'<tool_call>{{"a</tool_call>{GOOD}', ['<tool_call>{"a</tool_call>', ("read", {"path": "a"})]),
        (ARGUMENTS_AS_TEXT, [ARGUMENTS_AS_TEXT]),
        ("<tool_call>", ["<tool_call>"]),
        ("  \n ", ["  \n "]),
        ("", []),
    ],
)  # fmt: skip
def test_text_and_calls_are_told_apart(text, expected):
    assert named(route(text)) == expected
    assert named(route(*text)) == expected  # character by character


@settings(max_examples=400, deadline=None)
@given(st.lists(st.sampled_from(FRAGMENTS), max_size=12), st.lists(st.integers(0, 200), max_size=20))
@example(["<tool_call>", '"', "</tool_call>", GOOD, '"', "</tool_call>"], [])
def test_how_text_is_cut_makes_no_difference(fragments, cuts):
    text = "".join(fragments)
    places = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    parts = [text[a:b] for a, b in itertools.pairwise(places)]
    assert named(route(*parts)) == named(route(text))


@settings(deadline=None)
@given(st.lists(st.sampled_from(FRAGMENTS), max_size=12))
def test_without_a_call_that_parses_no_character_is_lost(fragments):
    text = "".join(fragments)
    pieces = route(text)
    if not any(isinstance(piece, ToolCall) for piece in pieces):
        assert "".join(piece for piece in pieces if isinstance(piece, str)) == text


def test_text_comes_out_as_soon_as_it_is_certain():
    it = router()
    assert it.feed("Hello <tool") == ["Hello "]
    assert it.feed("s are fine") == ["<tools are fine"]


def test_arguments_stay_as_they_were_written():
    (call,) = route('<tool_call>{"name":"f", "arguments": { "b" :1.50, "a":"\\u00e9"}}</tool_call>')
    assert isinstance(call, ToolCall)
    assert call.arguments == '{ "b" :1.50, "a":"\\u00e9"}'


def test_malformed_calls_are_counted():
    it = router()
    it.feed(f"<tool_call>x</tool_call>{GOOD}<tool_call>y")
    it.end()
    assert it.malformed == 2


def test_a_runaway_block_costs_linear_time():
    it = router()
    it.feed('<tool_call>"')
    for _ in range(50_000):
        assert it.feed("</tool_call> a") == []  # all of it stands within a string that is never closed
    assert len(it.end()) >= 1
