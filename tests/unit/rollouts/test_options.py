import pytest

from rollouts.harnesses.react.pack import ReactOptions
from rollouts.options import OptionsError, Problem, read_json
from rollouts.verifiers.exact import ExactOptions


@pytest.mark.parametrize(
    ("text", "kind", "message"),
    [
        ("{", ExactOptions, "not JSON: Input data was truncated"),
        ("[]", ExactOptions, "must be object, not array"),
        ("{}", ExactOptions, "expected: missing"),
        ('{"expected": "a", "exact": 1}', ExactOptions, "exact: unknown field"),
        ('{"expected": 5}', ExactOptions, "expected: must be str | array, not int"),
        ('{"expected": []}', ExactOptions, "expected needs one text or more"),
        ('{"tools": ["bash", "rm"]}', ReactOptions, "tools[1]: Invalid enum value 'rm'"),
        ('{"max_turns": 0}', ReactOptions, "max_turns must be 1 or more, not 0"),
    ],
)
def test_options_that_do_not_fit_name_field_and_reason(text: str, kind: type, message: str) -> None:
    with pytest.raises(OptionsError) as caught:
        read_json(text, kind)
    assert str(caught.value) == message


def test_a_problem_seen_from_above() -> None:
    assert str(Problem("tools[1]", "wrong").below("harness.options")) == "harness.options.tools[1]: wrong"
    assert str(Problem("", "not JSON").below("verifier")) == "verifier: not JSON"
