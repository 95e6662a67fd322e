"""`python -m learner.models tiny|smollm2 DIR`: makes a model folder, or says that it is there."""

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path

from learner.models.folder import is_complete, make_once
from schemas import ForgestreamError


def main(arguments: list[str] | None = None) -> int:
    """Runs the command; returns its exit status."""
    parser = argparse.ArgumentParser(prog="python -m learner.models", description=__doc__)
    parser.add_argument("name", choices=("tiny", "smollm2"), help="which model")
    parser.add_argument("folder", type=Path, metavar="DIR", help="where its folder shall stand")
    given = parser.parse_args(arguments)
    started = time.monotonic()

    def say(text: str) -> None:
        print(f"{given.name}: [{time.monotonic() - started:5.1f} s] {text}", file=sys.stderr, flush=True)

    try:
        # torch costs seconds to import: not before it is needed.
        made = not is_complete(given.folder) and make_once(given.folder, _maker(given.name, say))
    except ForgestreamError as error:
        print(f"{given.name}: {error}", file=sys.stderr)
        return error.exit_status
    say(f"{given.folder} is ready" if made else f"{given.folder} was there already")
    return 0


def _maker(name: str, say: Callable[[str], None]) -> Callable[[Path], None]:
    def make(folder: Path) -> None:
        say("loading torch")
        if name == "tiny":
            from learner.models import tiny

            tiny.make(folder)
        else:
            from learner.models import smollm2

            smollm2.make(folder, say)

    return make


if __name__ == "__main__":
    sys.exit(main())
