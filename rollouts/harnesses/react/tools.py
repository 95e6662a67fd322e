"""Tools of the react agent. They act in the current folder and answer with text; a failure is an answer too."""

import os
import signal
import subprocess
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

OUTPUT_LIMIT = 8000
"""Most characters of a tool's answer: the middle of a longer one is left out."""

_PRIVATE = ("OPENAI_API_KEY", "OPENAI_BASE_URL", "PYTHONPATH", "PYTHONUNBUFFERED")
"""The agent's own variables, which the commands it runs do not need."""


@dataclass(frozen=True)
class Tool:
    """A tool as the model is told of it."""

    name: str
    description: str
    parameters: dict[str, str]
    """Name of each argument → what it is. All are text and required."""

    def declaration(self) -> dict[str, Any]:
        """The tool in the shape of OpenAI's chat API."""
        properties = {name: {"type": "string", "description": text} for name, text in self.parameters.items()}
        schema = {"type": "object", "properties": properties, "required": list(properties)}
        function = {"name": self.name, "description": self.description, "parameters": schema}
        return {"type": "function", "function": function}


TOOLS = {
    tool.name: tool
    for tool in (
        Tool("bash", "Run a shell command in the working folder.", {"command": "The command."}),
        Tool("read_file", "Read a text file.", {"path": "Path of the file."}),
        Tool("write_file", "Write a text file.", {"path": "Path of the file.", "content": "Its whole content."}),
        Tool("submit", "Hand in the final answer. Ends the task.", {"answer": "The answer."}),
    )
}


def run_tool(name: str, arguments: dict[str, Any], *, timeout_s: float) -> str:
    """Run a tool other than `submit`; its answer for the model."""
    try:
        given = {key: str(arguments[key]) for key in TOOLS[name].parameters}
    except KeyError as error:
        return f"Error: {name} needs the argument {error.args[0]!r}."
    try:
        match name:
            case "bash":
                return _bash(given["command"], timeout_s)
            case "read_file":
                return shorten(Path(given["path"]).read_text(errors="replace"))
            case _:
                path = Path(given["path"])
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(given["content"])
                return f"Wrote {len(given['content'])} characters to {path}."
    except (OSError, ValueError) as error:
        return f"Error: {error}"


def shorten(text: str) -> str:
    """The text without its middle, when it is too long."""
    if len(text) <= OUTPUT_LIMIT:
        return text
    half = OUTPUT_LIMIT // 2
    return f"{text[:half]}\n… {len(text) - 2 * half} characters left out …\n{text[-half:]}"


def _bash(command: str, timeout_s: float) -> str:
    env = {name: value for name, value in os.environ.items() if name not in _PRIVATE}
    # into a file: a flood costs no memory, and a program left in the background does not hold the answer up
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            ["/bin/bash", "-c", command],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=env,
            process_group=0,
        )
        try:
            status = process.wait(timeout_s)
            remark = f"\nExit status {status}." if status else ""
        except subprocess.TimeoutExpired:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            remark = f"\nError: ended after {timeout_s:g} s."
        return _ends(output) + remark


def _ends(file: IO[bytes]) -> str:
    """What a file holds; of a large one the beginning and the end."""
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    if size <= 8 * OUTPUT_LIMIT:  # no character has more bytes than four
        return shorten(file.read().decode(errors="replace"))
    first = file.read(OUTPUT_LIMIT // 2).decode(errors="replace")
    file.seek(-(OUTPUT_LIMIT // 2), os.SEEK_END)
    return f"{first}\n… {size - OUTPUT_LIMIT} bytes left out …\n{file.read().decode(errors='replace')}"
