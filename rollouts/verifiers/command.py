"""`command`: a script judges the workspace that the harness left.

It runs after the harness has ended, on a copy of the workspace, with files of its own that the harness never saw, in
an environment built from nothing. Its verdict is its exit status (0: reward 1; a status of `zero_statuses`: reward 0;
any other: the verifier failed), or, where the last line of its standard output is a JSON object with `reward`, that:

    {"reward": 0.5, "rewards": {"tests": 0.5, "style": 1.0}}
"""

import msgspec

from rollouts.errors import RuntimeFault, VerifierError, VerifierTimeout
from rollouts.runtimes.base import Runtime, Script, ScriptEnded
from rollouts.verifiers.base import Options, Submission, Verdict
from schemas import TaskFile

_SHOWN = 300


class CommandOptions(Options, frozen=True):
    """Options of `command`."""

    command: str | tuple[str, ...]
    """A line for `/bin/sh`, or a program and its arguments. The reply is in the file named by `ANSWER_FILE`."""
    files: dict[str, str] = {}
    """The verifier's own files, path → text, laid over the copy."""
    env: dict[str, str] = {}
    """Variables for the script."""
    zero_statuses: tuple[int, ...] = (1,)
    """Exit statuses that mean a reward of 0."""
    timeout_s: float | None = None
    """Longest run; the launcher's default where absent."""

    def __post_init__(self) -> None:
        if not self.command:
            raise ValueError("command must not be empty")


class _Reward(msgspec.Struct, frozen=True):
    reward: float
    rewards: dict[str, float] = {}
    message: str = ""


class CommandVerifier:
    """Runs scripts with the runtime that ran the harness."""

    def __init__(self, runtime: Runtime, timeout_s: float) -> None:
        self._runtime = runtime
        self._timeout_s = timeout_s

    def expect(self) -> None:
        """Nothing to prepare."""

    async def verify(self, options: CommandOptions, submission: Submission) -> Verdict:
        """The script's verdict.

        Raises:
            VerifierTimeout: it ran too long.
            VerifierError: another exit status, a signal, too much output, or a reward that is no number.
        """
        command = ("/bin/sh", "-c", options.command) if isinstance(options.command, str) else options.command
        script = Script(
            rollout_id=submission.rollout_id,
            attempt=submission.attempt,
            command=command,
            files=tuple(TaskFile(path=path, content=text.encode()) for path, text in options.files.items()),
            env=options.env,
            answer=submission.answer,
            timeout_s=options.timeout_s or self._timeout_s,
        )
        try:
            ended = await self._runtime.run_script(script)
        except RuntimeFault as error:
            raise VerifierError(str(error)) from error
        if ended.timed_out:
            raise VerifierTimeout(f"the verifier script did not end within {script.timeout_s:g} s")
        return verdict(ended, options.zero_statuses)


def verdict(ended: ScriptEnded, zero_statuses: tuple[int, ...]) -> Verdict:
    """What a script's end means.

    Raises:
        VerifierError: it is no verdict.
    """
    if ended.exit_code != 0 and ended.exit_code not in zero_statuses:
        raise VerifierError(f"the verifier script ended with status {ended.exit_code}: {_last_line(ended.stderr)}")
    told = _told(_last_line(ended.stdout, shown=None))
    if told is None:
        return Verdict(1.0 if ended.exit_code == 0 else 0.0)
    return Verdict(told.reward, told.rewards, told.message)


def _told(line: str) -> _Reward | None:
    """The reward on a line of output; None where the line is none.

    Raises:
        VerifierError: it has a `reward`, but in a wrong shape.
    """
    if not line.startswith("{") or '"reward"' not in line:
        return None
    try:
        return msgspec.json.decode(line, type=_Reward)
    except msgspec.DecodeError as error:
        raise VerifierError(f"the verifier script's last line is no reward: {error}: {line[:_SHOWN]}") from error


def _last_line(output: bytes, shown: int | None = _SHOWN) -> str:
    lines = output.decode(errors="replace").strip().splitlines()
    return lines[-1].strip()[:shown] if lines else ""
