"""The react agent against a made-up server behind the real SDK."""

import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest
from openai import OpenAI

from rollouts.harnesses.base import Assignment, Result
from rollouts.harnesses.react import agent
from rollouts.harnesses.react.agent import Conversation
from rollouts.harnesses.react.job import AgentJob, AgentResult
from rollouts.harnesses.react.pack import ReactOptions, ReactPack
from rollouts.harnesses.react.tools import OUTPUT_LIMIT, run_tool, shorten
from rollouts.runtimes.base import Ended, Places

Server = Callable[[dict[str, Any]], dict[str, Any]]


def job(**changes: Any) -> AgentJob:
    return AgentJob(
        **{
            "instruction": "Do it.", "model": "policy", "out": "/nowhere", "tools": (), "max_turns": 3, "system": "",
            "stream": False, "tool_timeout_s": 5.0, "request_timeout_s": 5.0, "max_retries": 0, **changes,
        }
    )  # fmt: skip


def message(text: str | None = None, *calls: tuple[str, str], finish: str = "stop") -> dict[str, Any]:
    content: dict[str, Any] = {"role": "assistant", "content": text}
    if calls:
        content["tool_calls"] = [
            {"id": f"call{number}", "type": "function", "function": {"name": name, "arguments": arguments}}
            for number, (name, arguments) in enumerate(calls)
        ]
    choice = {"index": 0, "finish_reason": "tool_calls" if calls else finish, "message": content}
    return {"id": "1", "object": "chat.completion", "created": 1, "model": "policy", "choices": [choice]}


def talk(given: AgentJob, *replies: dict[str, Any]) -> tuple[AgentResult, list[dict[str, Any]]]:
    """The agent's result, and the bodies of its requests."""
    asked: list[dict[str, Any]] = []
    left = list(replies)

    def serve(request: httpx2.Request) -> httpx2.Response:
        asked.append(json.loads(request.content))
        return httpx2.Response(200, json=left.pop(0))

    with httpx2.Client(transport=httpx2.MockTransport(serve)) as http:
        client = OpenAI(api_key="k", base_url="http://proxy/v1", http_client=http)
        return Conversation(given, client).run(), asked


def test_without_tools_it_is_one_plain_question() -> None:
    result, asked = talk(job(), message("Corrie", finish="length"))
    assert result == AgentResult(answer="Corrie", finish_reason="length", turns=1)
    assert asked == [{"model": "policy", "messages": [{"role": "user", "content": "Do it."}]}]


def test_it_runs_tools_until_it_submits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    given = job(tools=("bash", "submit"), system="Be good.", max_turns=9)
    result, asked = talk(
        given,
        message("Let me see.", ("bash", '{"command": "echo hi > f; cat f"}'), ("nope", "{}")),
        message(None, ("submit", '{"answer": "hi"}')),
    )
    assert result == AgentResult(answer="hi", finish_reason="stop", turns=2)
    assert [tool["function"]["name"] for tool in asked[0]["tools"]] == ["bash", "submit"]
    first, second = asked[0]["messages"], asked[1]["messages"]
    assert second[: len(first)] == first
    assert [entry["role"] for entry in second] == ["system", "user", "assistant", "tool", "tool"]
    assert second[2]["tool_calls"][0]["function"] == {"name": "bash", "arguments": '{"command": "echo hi > f; cat f"}'}
    assert second[3] == {"role": "tool", "tool_call_id": "call0", "content": "hi\n"}
    assert second[4]["content"] == "Error: there is no tool 'nope'. Tools: bash, submit."


def test_a_reply_without_a_call_is_reminded_until_the_turns_are_used_up() -> None:
    result, asked = talk(job(tools=("submit",), max_turns=2), message("one"), message("two"))
    assert result == AgentResult(answer="two", finish_reason="max_turns", turns=2)
    assert [entry["role"] for entry in asked[1]["messages"]] == ["user", "assistant", "user"]
    assert "submit" in asked[1]["messages"][-1]["content"]


def test_arguments_that_are_no_json_are_told_to_the_model() -> None:
    given = job(tools=("bash", "submit"), max_turns=2)
    _, asked = talk(given, message(None, ("bash", '{"command": '), ("submit", "[]")), message("x"))
    told = [entry["content"] for entry in asked[1]["messages"] if entry["role"] == "tool"]
    assert told == ["Error: the arguments are not a JSON object."] * 2


@pytest.mark.parametrize(
    ("status", "code", "exit_status"), [(400, "call_limit", 1), (503, "engine_unavailable", 75), (None, "", 75)]
)
def test_its_exit_status_tells_whose_fault_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: int | None, code: str, exit_status: int
) -> None:
    def serve(request: httpx2.Request) -> httpx2.Response:
        if status is None:
            raise httpx2.ConnectError("nobody there", request=request)
        return httpx2.Response(status, json={"error": {"message": "no", "code": code}})

    with httpx2.Client(transport=httpx2.MockTransport(serve)) as http:
        monkeypatch.setattr(agent, "_http_client", lambda: http)
        monkeypatch.setenv("OPENAI_API_KEY", "k")
        monkeypatch.setenv("OPENAI_BASE_URL", "http://proxy/v1")
        text = json.dumps({name: getattr(job(out=str(tmp_path)), name) for name in AgentJob.__struct_fields__})
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
        assert agent.main([]) == exit_status
    result = json.loads((tmp_path / "result.json").read_bytes())
    assert result["error_code"] == code
    assert result["error"]
    assert [path.name for path in tmp_path.iterdir()] == ["result.json"]


def ended(exit_code: int, content: bytes | None) -> Ended:
    out = {} if content is None else {"result.json": content}
    return Ended(exit_code, None, 0, 0, 0.0, 0, b"", b"", out, Path())


@pytest.mark.parametrize(
    ("end", "result"),
    [
        (ended(0, b'{"answer": "x", "finish_reason": "stop", "turns": 1}'), Result("x", "stop")),
        (ended(75, b'{"error": "away"}'), Result(error="away", unreachable=True)),
        (ended(1, b'{"error": "no", "error_code": "c"}'), Result(error="no", error_code="c")),
        (ended(-9, None), Result(error="left no result")),
        (ended(0, b"{"), Result(error="left an unreadable result: not JSON: Input data was truncated")),
    ],
)
def test_the_pack_reads_the_result_file(end: Ended, result: Result) -> None:
    assert ReactPack().read(end) == result


def test_the_pack_hands_the_job_over_standard_input() -> None:
    assignment = Assignment("Do it.", "http://p/r/t/v1", "t", "policy", Places("/w", "/h", "/o", "/packs"))
    start = ReactPack().start(assignment, ReactOptions(tools=("bash",), max_turns=5))
    told = json.loads(start.stdin)
    assert (told["instruction"], told["out"], told["tools"], told["max_turns"]) == ("Do it.", "/o", ["bash"], 5)
    assert start.env["OPENAI_BASE_URL"] == "http://p/r/t/v1"
    assert start.env["OPENAI_API_KEY"] == "t"
    assert (start.command[-1], start.preload) == ("rollouts.harnesses.react.agent",) * 2


def test_warming_up_leaves_nothing_behind(capsys: pytest.CaptureFixture[str]) -> None:
    agent.warm_up()
    assert capsys.readouterr() == ("", "")


def test_tools_answer_failures_with_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert (
        run_tool("write_file", {"path": "a/b.txt", "content": "hey"}, timeout_s=5) == "Wrote 3 characters to a/b.txt."
    )
    assert run_tool("read_file", {"path": "a/b.txt"}, timeout_s=5) == "hey"
    assert run_tool("read_file", {"path": "none"}, timeout_s=5).startswith("Error: [Errno 2]")
    assert run_tool("read_file", {}, timeout_s=5) == "Error: read_file needs the argument 'path'."
    assert run_tool("bash", {"command": "echo out; exit 3"}, timeout_s=5) == "out\n\nExit status 3."
    assert run_tool("bash", {"command": "echo out; sleep 9"}, timeout_s=0.3) == "out\n\nError: ended after 0.3 s."


def test_commands_do_not_see_the_agents_own_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    assert "secret" not in run_tool("bash", {"command": "env"}, timeout_s=5)


def test_a_program_left_in_the_background_does_not_hold_the_answer_up() -> None:
    assert run_tool("bash", {"command": "sleep 3 & echo now"}, timeout_s=2) == "now\n"


def test_long_output_keeps_its_ends() -> None:
    flood = run_tool("bash", {"command": "seq 1 200000"}, timeout_s=20)
    assert len(flood) < OUTPUT_LIMIT + 100
    assert flood.startswith("1\n2\n")
    assert flood.endswith("200000\n")
    assert shorten("x" * OUTPUT_LIMIT) == "x" * OUTPUT_LIMIT
