"""How long a stack takes from `forgestream up` to all services ready, to its first completion, and what it holds idle.

python tests/bench/bench_up.py
"""

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from tests.bench.figures import machine, show  # noqa: E402
from tests.support.stack import RunningStack, running_stack  # noqa: E402

HEAVY = ("engine", "learner")
IDLE_S = 10.0
QUESTION = {
    "task_id": "first",
    "instruction": "Say yes.",
    "harness": {"name": "react", "options": {"tools": []}},
    "verifier": {"kind": "exact", "expected": "yes"},
    "group_size": 1,
    "sampling": {"max_tokens": 8},
}


def main() -> None:
    """Print the figures."""
    model = ROOT / ".forgestream" / "models" / "smollm2"  # made before the clock runs
    subprocess.run([sys.executable, "-m", "learner.models", "smollm2", str(model)], cwd=ROOT, check=True)
    with tempfile.TemporaryDirectory() as folder:
        conditions = f"SmolLM2-135M, embedded engine; {machine()}"
        with running_stack(Path(folder) / "state", "--model", "smollm2") as stack:
            _show_ready(stack, conditions)
            _show_idle(stack, conditions)
            _show_first_completion(stack, conditions)


def _show_ready(stack: RunningStack, conditions: str) -> None:
    lines = (json.loads(line) for line in (stack.state / "up.log").read_text().splitlines() if line.startswith("{"))
    ready_s = next(line["ready_s"] for line in lines if line["event"] == "up")
    light_s = max(seconds for name, seconds in ready_s.items() if name not in HEAVY)
    split = " ".join(f"{name} {seconds:.1f}" for name, seconds in ready_s.items())
    show("up: all services ready", max(ready_s.values()), "s", f"{split}; {conditions}", goal=45)
    show("up: all but engine and learner ready", light_s, "s", conditions, goal=15)


def _show_idle(stack: RunningStack, conditions: str) -> None:
    time.sleep(IDLE_S)
    broker = json.loads((stack.state / "broker" / "broker.json").read_text())["pid"]
    services = {name: service["pid"] for name, service in stack.description["services"].items()}
    light = {"up": stack.process.pid, "broker": broker, **{n: p for n, p in services.items() if n not in HEAVY}}
    sizes = {name: _size_mb(pid) for name, pid in light.items()}
    split = " ".join(f"{name} {size:.0f}" for name, size in sizes.items())
    show("idle memory without engine and learner", sum(sizes.values()), "MB", f"PSS; {split}; {conditions}", goal=1000)


def _size_mb(pid: int) -> float:
    """Proportional set size of a process and of what it started, other services left out: they count for themselves."""
    process = psutil.Process(pid)
    own = [
        child for child in process.children(recursive=True) if not {"deploy.cli", "kafka.Kafka"} & set(child.cmdline())
    ]
    return sum(one.memory_full_info().pss for one in (process, *own)) / 1e6


def _show_first_completion(stack: RunningStack, conditions: str) -> None:
    began = time.monotonic()
    stack.produce([QUESTION])
    stack.wait("the first completion", lambda log: bool(log.rows["completions"]), timeout_s=60)
    conditions = f"from the start of `tasks produce`; {conditions}"
    show("first completion in the log", time.monotonic() - began, "s", conditions, goal=10)


if __name__ == "__main__":
    main()
