"""Where the weights of a policy version lie."""

from pathlib import Path

import pytest

from learner.serving.follower import weights_folder
from learner.weights import WeightsError
from schemas import Policy


@pytest.mark.parametrize(
    ("uri", "folder"),
    [
        ("file:///runs/a/policies/3", "/runs/a/policies/3"),
        ("file://localhost/runs/a", "/runs/a"),
        ("file:///runs/with%20space", "/runs/with space"),
    ],
)
def test_file_uris(uri: str, folder: str) -> None:
    assert weights_folder(Policy(weights_uri=uri)) == Path(folder)


@pytest.mark.parametrize("uri", ["", "/runs/a", "s3://bucket/a", "file://otherhost/runs/a", "file://"])
def test_what_is_no_local_folder_is_refused(uri: str) -> None:
    with pytest.raises(WeightsError, match="weights URI"):
        weights_folder(Policy(weights_uri=uri))


def test_adapters_are_refused() -> None:
    with pytest.raises(WeightsError, match="lora"):
        weights_folder(Policy(weights_uri="file:///runs/a", format="lora"))
