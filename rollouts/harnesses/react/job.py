"""What the react agent is told, and what it leaves."""

import msgspec

RESULT_FILE = "result.json"
UNREACHABLE_STATUS = 75
"""Exit status when the model could not be reached, EX_TEMPFAIL of sysexits.h."""


class AgentJob(msgspec.Struct, frozen=True, kw_only=True):
    """Standard input of the agent, as JSON. Fields below `out` are the options of the pack."""

    instruction: str
    model: str
    out: str
    """Folder for the result file."""
    tools: tuple[str, ...]
    max_turns: int
    system: str
    stream: bool
    tool_timeout_s: float
    request_timeout_s: float
    max_retries: int


class AgentResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result file."""

    answer: str | None = None
    """The submitted text, or the last reply."""
    finish_reason: str = ""
    """`stop`: the model ended by itself; `length`: a token budget cut its last reply; `max_turns`: out of turns."""
    turns: int = 0
    """Model calls that were answered."""
    error: str = ""
    error_code: str = ""
