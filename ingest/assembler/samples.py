"""A rollout's tree → training sequences: one sample a branch, every sampled token trained in exactly one of them."""

from collections.abc import Sequence

from ingest.assembler.errors import BrokenTree
from ingest.assembler.tree import ID_BYTES, Node, path, walk
from schemas import Sample, VersionRun

TOKEN_BYTES = 9
"""Bytes of one token in a sample: id 4, mask 1, logprob 4."""
COMPLETION_BYTES = 64
"""About what one completion adds to a sample beside its tokens: its id and its version runs."""


def samples_of(roots: Sequence[Node], max_bytes: int) -> list[Sample]:
    """One sample a leaf, numbered in the order in which the leaves are walked.

    A sampled stretch that several branches share is trained in the first one; in the others it is context: mask 0,
    logprob 0.

    Raises:
        BrokenTree: `too_large`, the samples would take more than `max_bytes`.
    """
    branches = [path(node) for node in walk(roots) if not node.children]
    size = sum(TOKEN_BYTES * branch[-1].length + COMPLETION_BYTES * len(branch) for branch in branches)
    if size > max_bytes:
        raise BrokenTree("too_large", f"{len(branches)} branches take {size} bytes, {max_bytes} are allowed")
    trained: set[Node] = set()
    return [_sample(number, branch, trained) for number, branch in enumerate(branches)]


def _sample(branch: int, nodes: Sequence[Node], trained: set[Node]) -> Sample:
    """The sequence of one path; adds to `trained` what it trains."""
    ids: list[bytes] = []
    mask: list[bytes] = []
    logprobs: list[bytes] = []
    runs: list[VersionRun] = []
    for node in nodes:
        c = node.completion
        new, sampled = len(node.prompt) // ID_BYTES, len(c.completion_token_ids) // ID_BYTES
        trains = node.trains and node not in trained
        ids += (node.prompt, c.completion_token_ids)
        mask += (bytes(new), b"\x01" * sampled if trains else bytes(sampled))
        logprobs += (bytes(len(node.prompt)), c.rollout_logprobs if trains else bytes(len(c.completion_token_ids)))
        if node.trains:
            runs += _shifted(c.policy_version_runs, node.length - sampled)
        if trains:
            trained.add(node)
    return Sample(
        branch=branch,
        token_ids=b"".join(ids),
        loss_mask=b"".join(mask),
        rollout_logprobs=b"".join(logprobs),
        policy_version_runs=runs,
        completion_ids=[node.completion.completion_id for node in nodes],
    )


def _shifted(runs: Sequence[VersionRun], by: int) -> list[VersionRun]:
    return [VersionRun(version=run.version, start=run.start + by, end=run.end + by) for run in runs]
