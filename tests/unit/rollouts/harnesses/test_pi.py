import json

import pytest

from rollouts.harnesses.base import Assignment, Result
from rollouts.harnesses.pi.pack import PiOptions, PiPack
from rollouts.runtimes.base import Ended, Places
from rollouts.tasksets.check import problems
from schemas import Harness, Task, Verifier

ASSIGNMENT = Assignment(
    instruction="--help @file",
    base_url="http://proxy/r/tok/v1",
    token="tok",
    model="policy",
    places=Places("/w", "/h", "/o", "/packs"),
)


def ended(*entries: object, stderr: bytes = b"") -> Ended:
    from pathlib import Path

    session = b"\n".join(json.dumps(entry).encode() if not isinstance(entry, bytes) else entry for entry in entries)
    return Ended(0, None, 0, 0, 0.0, 0, b"", stderr, {"2026_x.jsonl": session} if entries else {}, Path())


def reply(text: str, stop: str = "stop", **more: object) -> dict[str, object]:
    message = {"role": "assistant", "content": [{"type": "text", "text": text}], "stopReason": stop, **more}
    return {"type": "message", "message": message}


def test_it_is_told_all_by_files_and_standard_input() -> None:
    start = PiPack().start(ASSIGNMENT, PiOptions(tools=(), system="Be short.", context_window=9000))
    assert start.stdin == b"--help @file"
    assert "--help" not in start.command
    assert start.command[:2] == ("/packs/pi-0.73.1/node_modules/.bin/pi", "--print")
    assert {"--no-tools", "--system-prompt", "Be short."} < set(start.command)
    provider = json.loads(start.home_files["agent/models.json"])["providers"]["forgestream"]
    assert (provider["baseUrl"], provider["apiKey"], provider["api"]) == (
        "http://proxy/r/tok/v1", "tok", "openai-completions",
    )  # fmt: skip
    assert (provider["models"][0]["id"], provider["models"][0]["contextWindow"]) == ("policy", 9000)
    assert json.loads(start.home_files["agent/settings.json"])["compaction"] == {"enabled": False}
    assert start.env["PI_CODING_AGENT_DIR"] == "/h/agent"


def test_tools_are_listed() -> None:
    command = PiPack().start(ASSIGNMENT, PiOptions(tools=("bash", "read"))).command
    assert command[command.index("--tools") + 1] == "bash,read"


@pytest.mark.parametrize(
    ("end", "result"),
    [
        (ended({"type": "session"}, reply("first", "toolUse"), reply("last\n")), Result("last", "stop")),
        (ended(reply("cut", "length")), Result("cut", "length")),
        (ended(reply("x"), b'{"type": "mess'), Result("x", "stop")),
        (ended(reply("", "error", errorMessage="400 call limit reached")), Result(error="400 call limit reached")),
        (
            ended(reply("", "error", errorMessage="Connection error.")),
            Result(error="Connection error.", unreachable=True),
        ),
        (ended(reply("", "error", errorMessage="503 engine away")), Result(error="503 engine away", unreachable=True)),
        (ended(stderr=b"No such model\n"), Result(error="No such model")),
        (ended(), Result(error="left no reply in its session file")),
    ],
)
def test_its_outcome_is_read_from_the_session_file(end: Ended, result: Result) -> None:
    assert PiPack().read(end) == result


def test_its_options_are_checked() -> None:
    task = Task(
        task_id="a", instruction="b", verifier=Verifier(kind="exact", options='{"expected": ""}'),
        harness=Harness(name="pi", options='{"tools": ["rm"]}'),
    )  # fmt: skip
    assert [str(problem) for problem in problems(task)] == ["harness.options.tools[0]: Invalid enum value 'rm'"]
