"""`python -m deploy.demo.learning_runs`: does it learn, and only from its rewards? Three seeds and one control.

Runs demos one after the other, each in a process of its own; prints one JSON line a run and one summary line.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from typing import Any


def main(arguments: Sequence[str] | None = None) -> int:
    """Run them all; 0 when every run of true rewards learned and no control did."""
    parser = argparse.ArgumentParser(prog="python -m deploy.demo.learning_runs", description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], help="seeds with true rewards")
    parser.add_argument("--controls", type=int, nargs="*", default=[0], help="seeds with shuffled rewards")
    parser.add_argument("further", nargs="*", help="further flags for `forgestream demo`, after --")
    given = parser.parse_args(arguments)
    runs = [run(seed, shuffled=False, further=given.further) for seed in given.seeds]
    runs += [run(seed, shuffled=True, further=given.further) for seed in given.controls]
    print(json.dumps(summary(runs)), flush=True)
    return 0 if all(result.get("succeeded") for result in runs) else 1


def run(seed: int, *, shuffled: bool, further: Sequence[str]) -> dict[str, Any]:
    """One demo; its object, or what it failed with. Prints it as a line."""
    command = [sys.executable, "-m", "deploy.cli", "demo", "--json", "--seed", str(seed), *further]
    command += ["--shuffle-rewards"] if shuffled else []
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    lines = done.stdout.strip().splitlines()
    result = json.loads(lines[-1]) if lines else {"seed": seed, "shuffle_rewards": shuffled, "succeeded": False}
    result["exit_status"] = done.returncode
    print(json.dumps(result), flush=True)
    return result


def summary(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Held-out reward before and after of each run, and what was lost or doubled in all of them."""
    return {
        "runs": [
            {
                "seed": result["seed"],
                "shuffled": result["shuffle_rewards"],
                **result.get("held_out", {}),
                "steps": result.get("steps"),
                "wall_s": result.get("wall_s", {}).get("total"),
                "succeeded": result["succeeded"],
            }
            for result in runs
        ],
        "lost": sum(result.get("lost", 0) for result in runs),
        "doubled": sum(result.get("doubled", 0) for result in runs),
        "succeeded": all(result["succeeded"] for result in runs),
    }


if __name__ == "__main__":
    sys.exit(main())
