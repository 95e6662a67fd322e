"""Rows as veRL's nested tensors: where the response begins, and that nothing moves."""

import math

import torch

from learner.batches import advantage_field, padded, rollout_logprobs, token_fields, unpadded
from learner.rows import Batch
from tests.unit.learner.stories import row

ROWS = [
    row([1, 2, 10, 11, 3, 12], [0, 0, 1, 1, 0, 1], [0, 0, -0.5, -0.25, 0, -2.0], 2),
    row([5, 20], [0, 1], [0, -1.5], 1),
]


def lists(tensor: torch.Tensor) -> list[list[float]]:
    return [one.tolist() for one in tensor.unbind()]


def test_response_begins_at_the_first_trained_token() -> None:
    fields = token_fields(ROWS)
    assert lists(fields["input_ids"]) == [[1, 2, 10, 11, 3, 12], [5, 20]]
    assert lists(fields["position_ids"]) == [[0, 1, 2, 3, 4, 5], [0, 1]]
    assert lists(fields["prompts"]) == [[1, 2], [5]]
    assert lists(fields["responses"]) == [[10, 11, 3, 12], [20]]
    assert lists(fields["response_mask"]) == [[1, 1, 0, 1], [1]]
    assert lists(fields["loss_mask"]) == [[1, 1, 0, 1], [1]]


def test_logprobs_stand_beside_their_tokens() -> None:
    assert lists(rollout_logprobs(ROWS)) == [[-0.5, -0.25, 0.0, -2.0], [-1.5]]


def test_advantages_are_zero_where_nothing_is_trained() -> None:
    assert lists(advantage_field(Batch(ROWS, [0.5, -1.0]))) == [[0.5, 0.5, 0.0, 0.5], [-1.0]]


def test_padding_and_back() -> None:
    jagged = rollout_logprobs(ROWS)
    rectangle = padded(jagged)
    assert rectangle.tolist() == [[-0.5, -0.25, 0.0, -2.0], [-1.5, 0.0, 0.0, 0.0]]
    assert lists(unpadded(rectangle, jagged)) == lists(jagged)


def test_garbage_where_nothing_is_trained_never_reaches_the_loss() -> None:
    """0 times not-a-number would be not-a-number."""
    odd = row([1, 2, 3, 4], [0, 1, 0, 1], [math.nan, -1.0, math.inf, -2.0], 1)
    assert lists(rollout_logprobs([odd])) == [[-1.0, 0.0, -2.0]]
