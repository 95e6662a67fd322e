"""A small tool-using agent on the openai SDK: `python -P -m rollouts.harnesses.react.agent < job.json`.

It thinks, calls tools and reads what they answer (ReAct, https://arxiv.org/abs/2210.03629) until it submits an answer,
or answers one plain question when it has no tools. It leaves `result.json` and tells its outcome by exit status:
0 done, 1 failed, 75 the model could not be reached.
"""

import json
import os
import sys
from functools import cache
from pathlib import Path
from typing import Any

import httpx2
import msgspec
from openai import APIConnectionError, APIStatusError, DefaultHttpxClient, OpenAI, OpenAIError
from openai.types.chat import ChatCompletion, ChatCompletionMessage

from rollouts.harnesses.react.job import RESULT_FILE, UNREACHABLE_STATUS, AgentJob, AgentResult
from rollouts.harnesses.react.tools import TOOLS, run_tool

_REMINDER = "Go on by calling one of your tools; call submit with your answer when you are done."
_SERVER_ERROR = 500


def main(argv: list[str]) -> int:
    """Read the job, do it, leave the result. The exit status."""
    job = msgspec.json.decode(sys.stdin.buffer.read(), type=AgentJob)
    status, result = attempt(job)
    path = Path(job.out) / RESULT_FILE
    partial = path.with_suffix(".partial")
    partial.write_bytes(msgspec.json.encode(result))
    partial.rename(path)
    if result.error:
        print(result.error, file=sys.stderr)
    return status


def attempt(job: AgentJob) -> tuple[int, AgentResult]:
    """The exit status and what to leave."""
    client = OpenAI(max_retries=job.max_retries, timeout=job.request_timeout_s, http_client=_http_client())
    try:
        return 0, Conversation(job, client).run()
    except APIStatusError as error:
        status = UNREACHABLE_STATUS if error.status_code >= _SERVER_ERROR else 1
        return status, AgentResult(error=_line(error), error_code=str(error.code or ""))
    except APIConnectionError as error:
        return UNREACHABLE_STATUS, AgentResult(error=f"{_line(error)} ({_line(error.__cause__ or error)})")
    except OpenAIError as error:
        return 1, AgentResult(error=_line(error))


class Conversation:
    """The messages of one job, and how they go on."""

    def __init__(self, job: AgentJob, client: OpenAI) -> None:
        self._job = job
        self._client = client
        self._messages: list[Any] = [{"role": "system", "content": job.system}] if job.system else []
        self._messages.append({"role": "user", "content": job.instruction})

    def run(self) -> AgentResult:
        """Talk until an answer is submitted, a plain question is answered, or the turns are used up."""
        text, cut = "", False
        for turn in range(1, self._job.max_turns + 1):
            choice = self._ask().choices[0]
            text, cut = choice.message.content or "", choice.finish_reason == "length"
            if not self._job.tools:
                return AgentResult(answer=text, finish_reason=choice.finish_reason, turns=turn)
            submitted = self._act(choice.message)
            if submitted is not None:
                return AgentResult(answer=submitted, finish_reason="stop", turns=turn)
        return AgentResult(answer=text, finish_reason="length" if cut else "max_turns", turns=self._job.max_turns)

    def _ask(self) -> ChatCompletion:
        request: dict[str, Any] = {"model": self._job.model, "messages": self._messages}
        if self._job.tools:
            request["tools"] = [TOOLS[name].declaration() for name in self._job.tools]
        if not self._job.stream:
            return self._client.chat.completions.create(**request)
        with self._client.chat.completions.stream(**request) as stream:
            return stream.get_final_completion()

    def _act(self, message: ChatCompletionMessage) -> str | None:
        """Add the reply and what the environment answers to it. The submitted text, if one was."""
        self._messages.append(_as_sent(message))
        calls = [call for call in message.tool_calls or () if call.type == "function"]
        if not calls:
            self._messages.append({"role": "user", "content": _REMINDER})
        for call in calls:
            arguments = _arguments(call.function.arguments)
            if call.function.name == "submit" and "submit" in self._job.tools and arguments is not None:
                return str(arguments.get("answer", ""))
            answer = self._run(call.function.name, arguments)
            self._messages.append({"role": "tool", "tool_call_id": call.id, "content": answer})
        return None

    def _run(self, name: str, arguments: dict[str, Any] | None) -> str:
        if name not in self._job.tools:
            return f"Error: there is no tool {name!r}. Tools: {', '.join(self._job.tools)}."
        if arguments is None:
            return "Error: the arguments are not a JSON object."
        return run_tool(name, arguments, timeout_s=self._job.tool_timeout_s)


def warm_up() -> None:
    """Do once what every run needs: a whole exchange with a made-up server, so that all is imported and compiled.

    Called in the process that rollouts are forked from; see `rollouts.runtimes.template`.
    """
    _http_client()
    message = {"role": "assistant", "content": "", "tool_calls": [_call("bash", "{}"), _call("submit", "{}")]}
    body = {"id": "", "object": "chat.completion", "created": 0, "model": "", "usage": None}
    answer = {**body, "choices": [{"index": 0, "finish_reason": "tool_calls", "message": message}]}
    transport = httpx2.MockTransport(lambda _request: httpx2.Response(200, json=answer))
    client = OpenAI(api_key="-", base_url="http://localhost/v1", http_client=httpx2.Client(transport=transport))
    Conversation(_SAMPLE_JOB, client).run()


@cache
def _http_client() -> httpx2.Client:
    """Holds the TLS context, which takes most of the time that a client's making takes."""
    return DefaultHttpxClient()


def _as_sent(message: ChatCompletionMessage) -> dict[str, Any]:
    """The reply as the next request repeats it: word for word, with its tool calls."""
    sent: dict[str, Any] = {"role": "assistant", "content": message.content}
    if message.tool_calls:
        sent["tool_calls"] = [call.model_dump(exclude_unset=True) for call in message.tool_calls]
    return sent


def _arguments(text: str) -> dict[str, Any] | None:
    try:
        arguments = json.loads(text or "{}")
    except ValueError:
        return None
    return arguments if isinstance(arguments, dict) else None


def _call(name: str, arguments: str) -> dict[str, Any]:
    return {"id": name, "type": "function", "function": {"name": name, "arguments": arguments}}


def _line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__


_SAMPLE_JOB = AgentJob(
    instruction="", model="", out=os.devnull, tools=("submit",), max_turns=1, system="", stream=False,
    tool_timeout_s=1.0, request_timeout_s=1.0, max_retries=0,
)  # fmt: skip


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
