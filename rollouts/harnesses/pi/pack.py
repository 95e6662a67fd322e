"""Harness pack of `pi` 0.73.1 (npm @mariozechner/pi-coding-agent).

It runs headless in print mode. Its outcome is read from the session file, which has every message once as JSON: its
exit status is 0 after some failures, and its JSON mode repeats the whole reply so far at every token.
"""

from pathlib import Path
from typing import Any, Literal

import msgspec

from rollouts.harnesses.base import Assignment, PackOptions, Result, Start
from rollouts.harnesses.npm import npm_install
from rollouts.runtimes.base import Ended

_PROVIDER = "forgestream"
_FINISH = {"stop": "stop", "length": "length", "toolUse": "tool_calls", "aborted": "aborted"}
_OUTAGES = ("connection", "timed out", "timeout", "fetch failed", "socket", "terminated", "500", "502", "503", "504")


class PiOptions(PackOptions, frozen=True):
    """Options of `pi`."""

    tools: tuple[Literal["read", "bash", "edit", "write", "grep", "find", "ls"], ...] = (
        "read",
        "bash",
        "edit",
        "write",
    )
    """Tools that the model may call. None: the task is one plain question."""
    system: str = ""
    """Replaces pi's own system prompt; empty: pi's own."""
    context_window: int = 32768
    """Tokens that the model can take, as pi is told."""
    max_tokens: int = 4096
    """Tokens of one reply that pi asks for; the task's sampling goes before it."""
    compaction: bool = False
    """Let pi summarise its history when the context window fills up."""


class PiPack:
    """The pi coding agent."""

    name = "pi"
    version = "0.73.1"
    options = PiOptions

    async def install(self, harnesses: Path) -> None:
        """By npm, from the lock file beside this module; 204 MB, some ten seconds once."""
        await npm_install(Path(__file__).parent, harnesses / self._folder)

    def start(self, assignment: Assignment, options: PiOptions) -> Start:
        """One process that reads the instruction from standard input, where nothing of it is taken for an option."""
        places = assignment.places
        command = [f"{places.harnesses}/{self._folder}/node_modules/.bin/pi", "--print"]
        command += ["--provider", _PROVIDER, "--model", assignment.model, "--session-dir", places.out]
        command += ["--no-extensions", "--no-skills", "--no-prompt-templates", "--no-themes"]
        command += ["--tools", ",".join(options.tools)] if options.tools else ["--no-tools"]
        command += ["--system-prompt", options.system] if options.system else []
        settings = {"compaction": {"enabled": options.compaction}, "retry": {"maxRetries": 5, "baseDelayMs": 500}}
        return Start(
            command=tuple(command),
            env={"PI_CODING_AGENT_DIR": f"{places.home}/agent", "PI_OFFLINE": "1", "PI_TELEMETRY": "0"},
            stdin=assignment.instruction.encode(),
            home_files={
                "agent/models.json": msgspec.json.encode(_models(assignment, options)),
                "agent/settings.json": msgspec.json.encode(settings),
            },
        )

    def read(self, ended: Ended) -> Result:
        """The last assistant message of the session file."""
        sessions = [content for name, content in ended.out.items() if name.endswith(".jsonl")]
        replies = [message for content in sessions for message in _replies(content)]
        if not replies:
            return Result(error=_first_line(ended.stderr) or "left no reply in its session file")
        last = replies[-1]
        answer = "".join(part.get("text", "") for part in last.get("content", []) if part.get("type") == "text")
        if last.get("stopReason") == "error":
            error = str(last.get("errorMessage") or "pi reported an error")
            return Result(error=error, unreachable=_is_outage(error))
        return Result(answer=answer.strip(), finish_reason=_FINISH.get(last.get("stopReason", ""), ""))

    @property
    def _folder(self) -> str:
        return f"{self.name}-{self.version}"


def _models(assignment: Assignment, options: PiOptions) -> dict[str, Any]:
    free = {"input": 0, "output": 0, "cacheRead": 0, "cacheWrite": 0}
    model = {
        "id": assignment.model,
        "name": assignment.model,
        "reasoning": False,
        "input": ["text"],
        "contextWindow": options.context_window,
        "maxTokens": options.max_tokens,
        "cost": free,
    }
    provider = {"baseUrl": assignment.base_url, "api": "openai-completions", "apiKey": assignment.token}
    return {"providers": {_PROVIDER: {**provider, "models": [model]}}}


def _replies(session: bytes) -> list[dict[str, Any]]:
    """Assistant messages of a session file; a line that was cut off by a kill is passed over."""
    found = []
    for line in session.splitlines():
        try:
            entry = msgspec.json.decode(line)
        except msgspec.DecodeError:
            continue
        message = entry.get("message") if isinstance(entry, dict) else None
        if isinstance(message, dict) and message.get("role") == "assistant":
            found.append(message)
    return found


def _is_outage(error: str) -> bool:
    """Whether pi's message tells of a proxy that was away: it gives no status apart from its text."""
    return any(word in error.lower() for word in _OUTAGES)


def _first_line(stderr: bytes) -> str:
    return (stderr.decode(errors="replace").strip().splitlines() or [""])[0][:300]
