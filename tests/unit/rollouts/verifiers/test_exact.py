from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollouts.errors import VerifierError
from rollouts.verifiers.base import Submission, Verdict, scored
from rollouts.verifiers.exact import ExactOptions, ExactVerifier, normalise
from rollouts.verifiers.extract import Extract, extract

REPLY = " The answer is 1,234.5, I think:\nit's Anne-Marie.  "


def submission(answer: str, finish_reason: str = "stop") -> Submission:
    return Submission("r", 1, answer, finish_reason, Path())


@pytest.mark.parametrize(
    ("how", "found"),
    [
        ("whole", "The answer is 1,234.5, I think:\nit's Anne-Marie."),
        ("first_word", "The"),
        ("last_word", "Anne-Marie"),
        ("last_number", "1234.5"),
        ("last_line", "it's Anne-Marie."),
    ],
)
def test_extract(how: Extract, found: str) -> None:
    assert extract(REPLY, how) == found
    assert extract("", how) == ""


@pytest.mark.parametrize(
    ("reply", "word"), [("Corrie.", "Corrie"), ("**Zoë** is", "Zoë"), ("42 is it", "is"), ("- x", "x"), ("...", "")]
)
def test_first_word(reply: str, word: str) -> None:
    assert extract(reply, "first_word") == word


@pytest.mark.parametrize(
    ("options", "answer", "reward"),
    [
        (ExactOptions(expected="yes"), " yes\n", 1.0),
        (ExactOptions(expected="yes"), "Yes", 0.0),
        (ExactOptions(expected="yes", ignore_case=True), "YES", 1.0),
        (ExactOptions(expected="yes"), "yes.", 0.0),
        (ExactOptions(expected="yes", ignore_punctuation=True), "(yes.)", 1.0),
        (ExactOptions(expected="a  b"), "a\nb", 1.0),
        (ExactOptions(expected="a  b", collapse_space=False), "a b", 0.0),
        (ExactOptions(expected=("one", "two")), "two", 1.0),
        (ExactOptions(expected="5", extract="last_number"), "2 + 3 = 5.", 1.0),
        (ExactOptions(expected="é"), "e\u0301", 1.0),
    ],
)
async def test_exact(options: ExactOptions, answer: str, reward: float) -> None:
    assert await ExactVerifier().verify(options, submission(answer)) == Verdict(reward, {"score": reward})


async def test_a_reply_that_was_cut_off_earns_nothing_when_it_must_stop() -> None:
    options = ExactOptions(expected="yes", require_stop=True)
    cut = await ExactVerifier().verify(options, submission("yes", "length"))
    ended = await ExactVerifier().verify(options, submission("yes", "stop"))
    assert cut == Verdict(0.0, {"score": 1.0, "stopped": 0.0})
    assert ended == Verdict(1.0, {"score": 1.0, "stopped": 1.0})


@pytest.mark.parametrize("score", [float("nan"), float("inf")])
def test_a_score_that_is_no_number_is_no_reward(score: float) -> None:
    with pytest.raises(VerifierError, match="no finite number"):
        scored(score, submission("x"), require_stop=False)


@given(st.text(), st.booleans(), st.booleans(), st.booleans())
def test_normalising_twice_changes_nothing(text: str, case: bool, punctuation: bool, space: bool) -> None:
    options = ExactOptions(expected="", ignore_case=case, ignore_punctuation=punctuation, collapse_space=space)
    once = normalise(text, options)
    assert normalise(once, options) == once
