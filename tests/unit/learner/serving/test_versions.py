"""Names of weight versions."""

import pytest

from learner.serving.versions import parse_weight_version, weight_version


def test_a_name_and_back() -> None:
    assert weight_version("policy", 12) == "policy@12"
    assert parse_weight_version("policy@12", "policy") == 12
    assert parse_weight_version("a@b@3", "a@b") == 3


@pytest.mark.parametrize("name", ["default", "policy", "policy@", "policy@x", "policy@-1", "other@3", "policy@٣", ""])
def test_other_names_are_not_ours(name: str) -> None:
    assert parse_weight_version(name, "policy") is None
