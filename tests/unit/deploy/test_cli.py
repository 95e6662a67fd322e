import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from deploy.cli.app import run

ROOT = Path(__file__).parents[3]
COMMANDS = (
    *("demo", "up", "down", "doctor", "install", "tasks", "rollouts", "sql", "topics", "config"),
    *("proxy", "launcher", "assembler", "archiver", "learner", "engine"),
)


@pytest.fixture(autouse=True)
def empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in list(os.environ):
        if name.startswith("FORGESTREAM_"):
            monkeypatch.delenv(name)
    return tmp_path


def test_help_lists_every_command_and_imports_nothing_heavy():
    code = (
        "import sys; from deploy.cli.app import run; status = run(['--help']); "
        "heavy = {'torch', 'confluent_kafka', 'duckdb', 'aiohttp', 'pydantic', 'rich'} & set(sys.modules); "
        "sys.exit(f'imports {heavy}' if heavy else status)"
    )
    began = time.monotonic()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr
    for command in COMMANDS:
        assert f"\n  {command} " in done.stdout
    assert time.monotonic() - began < 5  # far above the real figure: only a forgotten import is caught


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_examples(command, capsys):
    assert run([command, "--help"]) == 0
    shown = capsys.readouterr().out
    if f"forgestream {command}" not in shown:  # a group: its commands have them
        assert "Commands:" in shown


@pytest.mark.parametrize(
    ("arguments", "status", "says"),
    [
        (["config", "--set", "proxy.prot=1"], 2, "did you mean proxy.port"),
        (["config", "--config", "missing.toml"], 2, "missing.toml: no such settings file"),
        (["down"], 3, "no stack runs on .forgestream"),
        (["topics", "list"], 3, "start one with `forgestream up`"),
        (["up", "--without", "prxy"], 2, "--without prxy: no such service"),
        (["up", "--model", "gpt"], 2, "model gpt: no folder with a config.json"),
        (["tasks", "produce"], 2, "give either a JSONL file or --gym NAME"),
        (["tasks", "produce", "nothing.jsonl"], 2, "nothing.jsonl: cannot be read"),
        (["tasks", "produce", "x.jsonl", "--gym-config", "[1]"], 2, "expected a JSON object"),
        (["frobnicate"], 2, "No such command"),
        (["up", "--frobnicate"], 2, "No such option"),
        (["demo", "--steps", "0"], 2, "--steps"),
    ],
)
def test_bad_input_is_one_clear_line_and_its_status(arguments, status, says, capsys):
    assert run(arguments) == status
    error = capsys.readouterr().err
    assert says in error
    assert "Traceback" not in error


def test_an_unknown_variable_is_an_error_everywhere(monkeypatch, capsys):
    monkeypatch.setenv("FORGESTREAM_PROXY__PROT", "1")
    assert run(["config"]) == 2
    assert "FORGESTREAM_PROXY__PROT" in capsys.readouterr().err


def test_config_as_json_masks_secrets(capsys):
    assert run(["config", "--json", "--set", "auth.secret=hunter2-hunter2"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {"key": "auth.secret", "value": "********", "origin": "--set auth.secret"} in rows
    assert {"key": "proxy.port", "value": "8700", "origin": "default"} in rows


def test_task_lines_are_checked_by_line_and_field(tmp_path, capsys):
    good = {"task_id": "a", "instruction": "Say 5.", "verifier": {"kind": "exact", "expected": "5"}}
    lines = [good, {**good, "task_id": "b", "harness": "nobody"}, {"task_id": "c"}]
    (tmp_path / "tasks.jsonl").write_text("\n".join(json.dumps(line) for line in lines))
    assert run(["tasks", "produce", "tasks.jsonl", "--dry-run"]) == 2
    error = capsys.readouterr().err
    assert "tasks.jsonl:2: harness.name: unknown harness 'nobody'" in error
    assert "tasks.jsonl:3: instruction: missing" in error

    (tmp_path / "tasks.jsonl").write_text(json.dumps(good))
    assert run(["tasks", "produce", "tasks.jsonl", "--dry-run", "--group-size", "4", "--taskset", "s"]) == 0
    task = json.loads(capsys.readouterr().out)
    assert (task["group_size"], task["taskset"], task["harness"]["name"]) == (4, "s", "react")


def test_a_bug_is_told_as_one(monkeypatch, capsys):
    def broken(*_):
        raise ZeroDivisionError

    monkeypatch.setattr("deploy.config.load", broken)
    assert run(["config"]) == 70
    assert "this is a bug in forgestream" in capsys.readouterr().err


def test_an_interrupt_is_status_130(monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("deploy.config.load", interrupted)
    assert run(["config"]) == 130
