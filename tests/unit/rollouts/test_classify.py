import pytest

from rollouts.classify import Signs, classify
from rollouts.harnesses.base import Result
from rollouts.runtimes.base import Stop
from schemas import EndReason

DONE = Result(answer="x", finish_reason="stop")


@pytest.mark.parametrize(
    ("signs", "reason"),
    [
        (Signs(0, None, DONE, 1), EndReason.COMPLETED),
        (Signs(0, None, DONE, None), EndReason.COMPLETED),
        (Signs(0, None, DONE, 0), EndReason.NO_CALLS),
        (Signs(1, None, Result(error="boom"), 0), EndReason.HARNESS_ERROR),
        (Signs(-11, None, Result(), 3), EndReason.HARNESS_ERROR),
        (Signs(0, None, Result(error="boom"), 3), EndReason.HARNESS_ERROR),
        (Signs(-15, Stop.WALL, Result(), 3), EndReason.WALL_LIMIT),
        (Signs(-15, Stop.STARTUP, Result(), 0), EndReason.STARTUP_LIMIT),
        (Signs(-9, Stop.OUTPUT, Result(), 3), EndReason.OUTPUT_LIMIT),
        (Signs(75, None, Result(error="refused", unreachable=True), 0), EndReason.INFRASTRUCTURE),
        (Signs(1, None, Result(error="503"), 3, "engine_unavailable: gone"), EndReason.INFRASTRUCTURE),
        (Signs(1, None, Result(error="400"), 3, "invalid_request: no messages"), EndReason.HARNESS_ERROR),
        (Signs(1, None, Result(error="400", error_code="call_limit"), 3), EndReason.CALL_LIMIT),
        (Signs(0, None, Result(error="400 no"), 3, "call_limit: 3 calls"), EndReason.CALL_LIMIT),
        (Signs(1, None, Result(error="400"), 3, "token_limit: 99"), EndReason.TOKEN_LIMIT),
        (Signs(1, None, Result(error="400"), 3, "context_length_exceeded: 9 > 8"), EndReason.CONTEXT_LENGTH),
        (Signs(0, None, DONE, 3, "call_limit: 3 calls"), EndReason.COMPLETED),
    ],
)
def test_end_reasons(signs: Signs, reason: EndReason) -> None:
    assert classify(signs)[0] is reason


def test_the_message_says_what_happened() -> None:
    assert classify(Signs(-9, None, Result(error="left no result"), 1))[1] == "killed by signal 9: left no result"
    assert classify(Signs(3, None, Result(), 1))[1] == "exit status 3"
    away = Signs(75, None, Result(error="Connection error.", unreachable=True), 0)
    assert classify(away)[1] == "the proxy could not be reached: Connection error."
