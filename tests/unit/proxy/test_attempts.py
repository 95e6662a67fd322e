from array import array

import pytest

from ingest.bearer import Bearer
from proxy.errors import Problem, RequestError
from proxy.sessions.attempts import Attempts
from proxy.sessions.chains import Node
from schemas import Limits


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def bearer(rollout: str, attempt: int = 1) -> Bearer:
    return Bearer(rollout_id=rollout, attempt=attempt, group_id="g")


def grow(attempts: Attempts, rollout: str, name: bytes, tokens: int = 100) -> None:
    attempt = attempts.open(bearer(rollout))
    before = attempt.chains.size_bytes
    attempt.chains.add(name, Node("c", None, array("i", range(tokens)), array("i"), tokens))
    attempts.grown(attempt, attempt.chains.size_bytes - before)


def test_the_longest_unused_chains_go_first_and_counters_stay():
    attempts: Attempts = Attempts(idle_s=60, chain_bytes=2500)
    grow(attempts, "a", b"1")
    attempts.open(bearer("a")).calls = 7
    grow(attempts, "b", b"1")
    attempts.open(bearer("a"))  # used again: b is now the older one
    grow(attempts, "c", b"1")
    assert attempts.size_bytes == 2000
    assert len(attempts.open(bearer("a")).chains.nodes) == 1
    assert len(attempts.open(bearer("b")).chains.nodes) == 0
    assert attempts.open(bearer("a")).calls == 7


def test_ten_thousand_finished_rollouts_leave_nothing():
    attempts: Attempts = Attempts(idle_s=60, chain_bytes=10**9)
    for number in range(10_000):
        grow(attempts, f"r{number}", b"1", tokens=3)
        attempts.seal(f"r{number}", 1)
    assert (len(attempts), attempts.size_bytes) == (0, 0)


def test_an_ended_attempt_takes_no_calls_but_the_next_attempt_does():
    attempts: Attempts = Attempts(idle_s=60, chain_bytes=10**9)
    attempts.open(bearer("a"))
    attempts.seal("a", 1)
    with pytest.raises(RequestError) as refused:
        attempts.open(bearer("a"))
    assert refused.value.problem is Problem.SEALED
    assert attempts.open(bearer("a", attempt=2)).calls == 0


def test_silent_attempts_are_forgotten_unless_a_call_is_in_flight():
    clock = Clock()
    attempts: Attempts = Attempts(idle_s=60, chain_bytes=10**9, clock=clock)
    grow(attempts, "quiet", b"1")
    attempts.open(bearer("busy")).in_flight["x"] = object()
    clock.now += 61
    attempts.open(bearer("new"))
    assert attempts.drop_idle() == 1
    assert (len(attempts), attempts.size_bytes) == (2, 0)


def test_limits_count_calls_and_tokens():
    attempt = Attempts(idle_s=60, chain_bytes=1).open(bearer("a"))
    limits = Limits(calls=2, tokens=100)
    attempt.calls, attempt.tokens = 1, 60
    attempt.check_calls(limits)
    assert attempt.tokens_left(limits, prompt_tokens=30) == 10
    assert attempt.tokens_left(Limits(), prompt_tokens=30) is None
    attempt.calls = 2
    with pytest.raises(RequestError, match="2 model calls") as calls:
        attempt.check_calls(limits)
    with pytest.raises(RequestError, match="100 tokens") as tokens:
        attempt.tokens_left(limits, prompt_tokens=40)
    assert (calls.value.problem, tokens.value.problem) == (Problem.CALL_LIMIT, Problem.TOKEN_LIMIT)
