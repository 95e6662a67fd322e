import pytest

from rollouts.errors import VerifierError
from rollouts.runtimes.base import ScriptEnded
from rollouts.verifiers.base import Verdict
from rollouts.verifiers.command import verdict


def ended(exit_code: int, stdout: bytes = b"", stderr: bytes = b"") -> ScriptEnded:
    return ScriptEnded(exit_code, timed_out=False, stdout=stdout, stderr=stderr)


@pytest.mark.parametrize(
    ("end", "expected"),
    [
        (ended(0), Verdict(1.0)),
        (ended(1), Verdict(0.0)),
        (ended(0, b"5 passed\n"), Verdict(1.0)),
        (ended(0, b'log\n{"reward": 0.5, "rewards": {"a": 1}, "message": "half"}\n'), Verdict(0.5, {"a": 1.0}, "half")),
        (ended(1, b'{"reward": 0.25}'), Verdict(0.25)),
        (ended(0, b'{"reward": 0.5}\nlast line\n'), Verdict(1.0)),
        (ended(0, b'{"score": 0.5}\n'), Verdict(1.0)),
    ],
)
def test_a_script_tells_by_status_or_by_its_last_line(end: ScriptEnded, expected: Verdict) -> None:
    assert verdict(end, (1,)) == expected


@pytest.mark.parametrize(
    ("end", "message"),
    [
        (ended(2, stderr=b"first\nboom\n"), "ended with status 2: boom"),
        (ended(-9), "ended with status -9"),
        (ended(0, b'{"reward": "high"}'), "last line is no reward: Expected `float`, got `str`"),
        (ended(0, b'{"reward": null}'), "last line is no reward"),
        (ended(0, b'{"reward": 1e999}'), "no reward"),
        (ended(0, b'{"reward": 1'), "last line is no reward"),
    ],
)
def test_anything_else_is_no_verdict(end: ScriptEnded, message: str) -> None:
    with pytest.raises(VerifierError, match=message):
        verdict(end, (1,))


def test_statuses_that_mean_zero_are_the_tasks_choice() -> None:
    assert verdict(ended(2), (1, 2)) == Verdict(0.0)
