"""Harness pack of `react`."""

import sys
from pathlib import Path
from typing import Literal

import msgspec

from rollouts.harnesses.base import Assignment, PackOptions, Result, Start
from rollouts.harnesses.react.job import RESULT_FILE, UNREACHABLE_STATUS, AgentJob, AgentResult
from rollouts.options import OptionsError, read_json
from rollouts.runtimes.base import Ended
from rollouts.runtimes.environment import own_python

_MODULE = "rollouts.harnesses.react.agent"


class ReactOptions(PackOptions, frozen=True):
    """Options of `react`."""

    tools: tuple[Literal["bash", "read_file", "write_file", "submit"], ...] = (
        "bash",
        "read_file",
        "write_file",
        "submit",
    )
    """Tools that the model may call. None: the task is one plain question."""
    max_turns: int = 20
    """Most model calls; with tools, a reply without a call is answered with a reminder until then."""
    system: str = ""
    """System prompt; empty: none."""
    stream: bool = False
    """Ask for streamed replies."""
    tool_timeout_s: float = 60.0
    """Longest run of one `bash` command."""
    request_timeout_s: float = 600.0
    """Longest wait for one reply."""
    max_retries: int = 6
    """Repeats of a model call that the SDK makes when the proxy cannot be reached."""

    def __post_init__(self) -> None:
        if self.max_turns < 1:
            raise ValueError(f"max_turns must be 1 or more, not {self.max_turns}")


class ReactPack:
    """A ReAct agent on the openai SDK."""

    name = "react"
    version = "1"
    options = ReactOptions

    async def install(self, harnesses: Path) -> None:
        """It is part of this project: nothing to do."""

    def start(self, assignment: Assignment, options: ReactOptions) -> Start:
        """One process that reads its job from standard input and leaves a result file."""
        job = AgentJob(
            instruction=assignment.instruction,
            model=assignment.model,
            out=assignment.places.out,
            **{field: getattr(options, field) for field in ReactOptions.__struct_fields__},
        )
        return Start(
            command=(sys.executable, "-P", "-m", _MODULE),
            env=own_python() | {"OPENAI_BASE_URL": assignment.base_url, "OPENAI_API_KEY": assignment.token},
            stdin=msgspec.json.encode(job),
            preload=_MODULE,
        )

    def read(self, ended: Ended) -> Result:
        """The agent's own result file."""
        content = ended.out.get(RESULT_FILE)
        if content is None:
            return Result(error="left no result", unreachable=ended.exit_code == UNREACHABLE_STATUS)
        try:
            result = read_json(content, AgentResult)
        except OptionsError as error:
            return Result(error=f"left an unreadable result: {error}")
        return Result(
            answer=result.answer,
            finish_reason=result.finish_reason,
            error=result.error,
            error_code=result.error_code,
            unreachable=ended.exit_code == UNREACHABLE_STATUS,
        )
