"""From a body to a sequence, or a refusal that names the field."""

import msgspec
import pytest

from learner.serving.embedded.requests import parse, to_sequence
from learner.serving.embedded.scheduler import Sequence
from learner.serving.errors import RequestRefused
from learner.serving.protocol import GenerateRequest, SamplingParams


def read(request: GenerateRequest, header_id: str | None = None) -> Sequence:
    return to_sequence(
        request, model="policy", context_tokens=10, vocabulary=512, stop_ids=frozenset({2}), header_id=header_id
    )


def asked(token_ids: list[int] | None = None, **sampling: object) -> GenerateRequest:
    return GenerateRequest(token_ids=token_ids or [5, 6, 7], sampling_params=msgspec.convert(sampling, SamplingParams))


def test_limits_are_worked_out() -> None:
    assert read(asked()).max_tokens == 7
    assert read(asked(max_tokens=4)).max_tokens == 4
    assert read(asked(max_tokens=40)).max_tokens == 7
    assert read(asked([5] * 9)).max_tokens == 1


def test_stop_ids_are_the_models_and_the_requests() -> None:
    assert read(asked()).stop_ids == {2}
    assert read(asked(stop_token_ids=[8, 9])).stop_ids == {2, 8, 9}
    assert read(asked(stop_token_ids=[8], ignore_eos=True)).stop_ids == {8}


def test_the_header_names_the_request_before_the_body() -> None:
    named = GenerateRequest(token_ids=[5], sampling_params=SamplingParams(), request_id="body")
    assert read(named).request_id == "generate-tokens-body"
    assert read(named, header_id="header").request_id == "generate-tokens-header"
    assert read(asked()).request_id != read(asked()).request_id


@pytest.mark.parametrize(
    ("sampling", "parameter"),
    [
        ({"temperature": -0.1}, "temperature"),
        ({"top_p": 1.1}, "top_p"),
        ({"top_k": -2}, "top_k"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"logprobs": 21}, "logprobs"),
        ({"n": 2}, "n"),
        ({"min_p": 0.1}, "min_p"),
        ({"repetition_penalty": 1.2}, "repetition_penalty"),
        ({"stop": ["\n"]}, "stop"),
    ],
)
def test_what_it_does_not_do_is_refused_by_name(sampling: dict, parameter: str) -> None:
    with pytest.raises(RequestRefused, match=parameter) as refusal:
        read(asked(**sampling))
    assert (refusal.value.status, refusal.value.parameter) == (400, parameter)


def test_neutral_values_pass() -> None:
    read(asked(n=1, min_p=0.0, presence_penalty=0.0, repetition_penalty=1.0, stop=None, top_k=-1))


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"{", "truncated"),
        (b'{"token_ids": [1]}', "sampling_params"),
        (b'{"token_ids": ["a"], "sampling_params": {}}', r"token_ids\[0\]"),
        (b'{"token_ids": [1], "sampling_params": {"typical_p": 0.5}}', "typical_p"),
        (b'{"token_ids": [1], "sampling_params": {}, "lora": "x"}', "lora"),
    ],
)
def test_bodies_that_mean_nothing(body: bytes, message: str) -> None:
    with pytest.raises(RequestRefused, match=message):
        parse(body)


def test_other_models_and_foreign_tokens() -> None:
    with pytest.raises(RequestRefused) as refusal:
        read(msgspec.structs.replace(asked(), model="gpt"))
    assert refusal.value.status == 404
    for wrong in ([512], [-1]):
        with pytest.raises(RequestRefused, match=f"Token id {wrong[0]} is out of vocabulary"):
            read(asked([5, *wrong]))
