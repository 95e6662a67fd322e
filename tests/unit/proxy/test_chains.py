import json
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.conversation import Conversation, Message, ToolCall
from proxy.sessions.canonical import canonical_json
from proxy.sessions.chains import Chains, Node

SYSTEM = Message("system", "You are helpful.")
TOOL = {"type": "function", "function": {"name": "read", "parameters": {"type": "object"}}}
QUESTION = Message("user", "What is in the file?")
CALL = Message("assistant", "Let me look.\n", (ToolCall("call1", "read", '{"path": "a.txt", "lines": 2.0}'),))
RESULT = Message("tool", "hello\n", (), "call1")

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**60), 2**60)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


def record(chains: Chains, conversation: Conversation, answer: Message, name: str) -> Node:
    match = chains.match(conversation)
    from array import array

    node = Node(name, match.node, array("i", [1, 2]), array("i", [3]), (match.node.length if match.node else 0) + 3)
    match.history.add(answer)
    chains.add(match.history.digest, node)
    return node


def after(conversation: Conversation, *messages: Message) -> Conversation:
    return Conversation((*conversation.messages, *messages), conversation.tools)


def shuffled(value: object, rng: random.Random) -> object:
    if isinstance(value, dict):
        items = list(value.items())
        rng.shuffle(items)
        return {key: shuffled(inner, rng) for key, inner in items}
    return [shuffled(inner, rng) for inner in value] if isinstance(value, list) else value


@settings(deadline=None)
@given(json_values, st.integers(0, 99), st.booleans())
def test_arguments_are_the_same_however_they_are_written(value, seed, ascii_only):
    again = json.dumps(shuffled(value, random.Random(seed)), ensure_ascii=ascii_only, indent=seed % 3 or None)
    assert canonical_json(json.dumps(value, separators=(",", ":"))) == canonical_json(again)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ('{"n": 1.0}', '{"n":1}'),
        ('{"n": 1e2}', '{"n":100}'),
        ('{"n": 12345678901234567890}', '{"n":12345678901234567000}'),  # what JavaScript writes back
        ('{"s": "caf\\u00e9"}', '{"s":"café"}'),
        ("", "{}"),
    ],
)
def test_javascript_writes_the_same_arguments_differently(one, other):
    assert canonical_json(one) == canonical_json(other)


@pytest.mark.parametrize(
    ("one", "other"), [('{"n": 1}', '{"n":"1"}'), ('{"n":true}', '{"n":1}'), ("[1", "[1,"), ("{", "")]
)
def test_different_arguments_stay_different(one, other):
    assert canonical_json(one) != canonical_json(other)


def test_a_history_that_goes_on_continues_the_deepest_completion():
    chains, first = Chains(), Conversation((SYSTEM, QUESTION), (TOOL,))
    root = record(chains, first, CALL, "c0")
    second = after(first, CALL, RESULT)
    turn = record(chains, second, Message("assistant", "It says hello."), "c1")
    third = after(second, Message("assistant", "It says hello."), Message("user", "Thanks"))

    match = chains.match(third)

    assert match.node is turn
    assert turn.parent is root
    assert third.messages[match.first_new :] == (Message("user", "Thanks"),)
    assert turn.sequence() == [1, 2, 3, 1, 2, 3]


def test_an_echo_with_other_call_ids_and_json_is_the_same():
    chains, first = Chains(), Conversation((SYSTEM, QUESTION), (TOOL,))
    root = record(chains, first, CALL, "c0")
    echo = Message("assistant", "Let me look.\n", (ToolCall("X9", "read", '{"lines":2,"path":"a.txt"}'),))
    match = chains.match(after(first, echo, Message("tool", "hello\n", (), "X9")))
    assert match.node is root
    assert match.first_new == 3


def test_parallel_results_are_told_apart_by_the_call_that_they_answer():
    two = Message("assistant", "", (ToolCall("a", "read", "{}"), ToolCall("b", "read", "{}")))
    first = Conversation((SYSTEM, QUESTION), (TOOL,))
    straight = after(first, two, Message("tool", "1", (), "a"), Message("tool", "2", (), "b"))
    crossed = after(first, two, Message("tool", "1", (), "b"), Message("tool", "2", (), "a"))
    chains = Chains()
    node = record(chains, straight, CALL, "c1")
    assert chains.match(after(straight, CALL)).node is node
    assert chains.match(after(crossed, CALL)).node is None


@pytest.mark.parametrize(
    "changed",
    [
        Conversation((Message("system", "You are helpful!"), QUESTION, CALL, RESULT), (TOOL,)),
        Conversation((SYSTEM, QUESTION, CALL, RESULT), ()),
        Conversation((SYSTEM, Message("user", "What is in the file? "), CALL, RESULT), (TOOL,)),
        Conversation((SYSTEM, QUESTION, Message("assistant", "Let me look.", CALL.tool_calls), RESULT), (TOOL,)),
    ],
    ids=["system prompt", "tools", "white space in the question", "white space in the answer"],
)
def test_any_other_change_begins_a_new_root(changed):
    chains = Chains()
    record(chains, Conversation((SYSTEM, QUESTION), (TOOL,)), CALL, "c0")
    assert chains.match(changed).node is None


def test_a_rewritten_past_forks_from_the_last_common_completion():
    chains, first = Chains(), Conversation((SYSTEM, QUESTION))
    root = record(chains, first, CALL, "c0")
    record(chains, after(first, CALL, RESULT), Message("assistant", "A"), "c1")
    rewritten = after(first, CALL, Message("tool", "something else", (), "call1"))

    match = chains.match(rewritten)
    other = record(chains, rewritten, Message("assistant", "B"), "c2")

    assert match.node is root
    assert other.parent is root
    assert root.children == 2


def test_size_counts_tokens_and_clear_forgets_them():
    chains, first = Chains(), Conversation((SYSTEM, QUESTION))
    record(chains, first, CALL, "c0")
    assert chains.size_bytes == 600 + 3 * 4
    chains.clear()
    assert (chains.size_bytes, chains.match(after(first, CALL)).node) == (0, None)
