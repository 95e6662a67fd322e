"""The reasoning-gym process: `python -m rollouts.verifiers.gym_worker`.

Importing reasoning-gym takes seconds and 120 MB, so one process does it for all. It reads one JSON request a line on
standard input and writes one JSON answer a line on standard output; the first line says that it is ready.

    {"op": "questions", "dataset": …, "config": {}, "seed": 1, "start": 0, "count": 8} → {"value": [[question, answer]]}
    {"op": "score", "dataset": …, "config": {…}, "seed": 1, "index": 3, "answer": "42"} → {"value": 1.0}
    anything that cannot be done → {"error": "…", "input": true if the request is to blame}
"""

import json
import os
import sys
import warnings
from collections.abc import Callable
from functools import lru_cache
from typing import Any, TextIO

DATASET_SIZE = 100_000
"""Every data set is made with this size; item i depends on its seed and i alone."""


def main() -> int:
    """Serve until standard input ends."""
    answers = _take_stdout()
    warnings.filterwarnings("ignore")
    try:
        import reasoning_gym
        from reasoning_gym.factory import DATASETS
    except ImportError as error:
        _write(answers, {"error": f"reasoning-gym cannot be imported ({error}): install the project's `gym` extra"})
        return 1
    gym = Gym(reasoning_gym.create_dataset)
    _write(answers, {"value": sorted(DATASETS)})
    for line in sys.stdin:
        _write(answers, gym.answer(line))
    return 0


class Gym:
    """Answers requests with reasoning-gym's data sets, which it keeps once made."""

    def __init__(self, create: Callable[..., Any]) -> None:
        self._create = create
        self._dataset = lru_cache(maxsize=64)(self._make)
        self._entry = lru_cache(maxsize=4096)(self._read)

    def answer(self, line: str) -> dict[str, Any]:
        """The answer to one request line."""
        try:
            request = json.loads(line)
            key = (request["dataset"], json.dumps(request["config"], sort_keys=True), request["seed"])
            self._dataset(*key)
        except Exception as error:  # each data set checks its configuration in its own way
            return {"error": _sentence(error), "input": True}
        try:
            return {"value": self._do(request, key)}
        except Exception as error:  # a scorer may raise anything; the process must go on
            return {"error": _sentence(error), "input": False}

    def _do(self, request: dict[str, Any], key: tuple[str, str, int]) -> Any:
        if request["op"] == "questions":
            first = request["start"]
            entries = [self._entry(*key, index) for index in range(first, first + request["count"])]
            return [[entry["question"], str(entry["answer"])] for entry in entries]
        entry = self._entry(*key, request["index"])
        return float(self._dataset(*key).score_answer(request["answer"], entry))

    def _make(self, name: str, config: str, seed: int) -> Any:
        return self._create(name, seed=seed, size=DATASET_SIZE, **json.loads(config))

    def _read(self, name: str, config: str, seed: int, index: int) -> dict[str, Any]:
        return self._dataset(name, config, seed)[index]


def _take_stdout() -> TextIO:
    """Keep the real standard output for answers: libraries that print must not break the protocol."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    return answers


def _write(answers: TextIO, answer: dict[str, Any]) -> None:
    answers.write(json.dumps(answer) + "\n")
    answers.flush()


def _sentence(error: Exception) -> str:
    text = str(error) or type(error).__name__
    return f"{text.splitlines()[0]} ({type(error).__name__})"


if __name__ == "__main__":
    raise SystemExit(main())
