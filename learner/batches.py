"""Rows → the nested tensors that veRL's worker reads (its NO_PADDING contract)."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from learner.rows import Batch, Row


def nested(rows: Iterable[npt.NDArray[Any]], dtype: torch.dtype) -> torch.Tensor:
    """Rows of different lengths as one jagged tensor, shape (rows, length of each)."""
    return torch.nested.as_nested_tensor([torch.tensor(row, dtype=dtype) for row in rows], layout=torch.jagged)


def padded(tensor: torch.Tensor) -> torch.Tensor:
    """A jagged tensor as a rectangle, shape (rows, longest), 0 where a row has ended."""
    return torch.nested.to_padded_tensor(tensor, 0.0)


def unpadded(rectangle: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """The inverse of `padded`: cut each row to its length in the jagged tensor `like`."""
    lengths = [len(row) for row in like.unbind()]
    rows = [row[:length] for row, length in zip(rectangle, lengths, strict=True)]
    return torch.nested.as_nested_tensor(rows, layout=torch.jagged)


def token_fields(rows: Sequence[Row]) -> dict[str, Any]:
    """Ids and masks of a batch. The response of a row begins at its first trained token.

    veRL reads `response_mask` and `loss_mask` over the response only; the second divides the loss.
    """
    response_mask = nested((_response(row, row.loss_mask) for row in rows), torch.long)
    return {
        "input_ids": nested((row.token_ids for row in rows), torch.long),
        "position_ids": nested((np.arange(len(row.token_ids)) for row in rows), torch.long),
        "prompts": nested((row.token_ids[: row.prompt_length] for row in rows), torch.long),
        "responses": nested((_response(row, row.token_ids) for row in rows), torch.long),
        "response_mask": response_mask,
        "loss_mask": response_mask,
    }


def rollout_logprobs(rows: Sequence[Row]) -> torch.Tensor:
    """Log-probabilities as sampled, over the responses, jagged; 0 where nothing is trained."""
    known = (np.where(row.loss_mask, row.logprobs, 0.0) for row in rows)
    return nested((_response(row, values) for row, values in zip(rows, known, strict=True)), torch.float32)


def advantage_field(batch: Batch) -> torch.Tensor:
    """Advantages over the responses, jagged; 0 where nothing is trained."""
    pairs = zip(batch.rows, batch.advantages, strict=True)
    return nested((_response(row, row.loss_mask) * advantage for row, advantage in pairs), torch.float32)


def _response(row: Row, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return values[row.prompt_length :]
