"""The message tree of one rollout attempt: which completion continues which, and whether their tokens fit.

A completion holds only what is new since its parent. The tree says which tokens precede it, so that a path from a
root to a leaf is one exact token sequence, as the engine saw it.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from ingest.assembler.errors import BrokenTree
from schemas import CallKind, Completion, CompletionStatus
from schemas.arrays import unpack_floats

ID_BYTES = 4
"""Bytes of one token id, and of one log-probability."""
NEVER_TRAINED = frozenset({CallKind.AUXILIARY, CallKind.COUNT})


@dataclass(eq=False, slots=True)
class Node:
    """One completion in its place."""

    completion: Completion
    order: int
    """Place in the log among the completions of the attempt."""
    prompt: bytes
    """Prompt tokens that are new since `parent`, int32 LE."""
    parent: "Node | None" = None
    children: list["Node"] = field(default_factory=list)
    length: int = 0
    """Tokens from the root's first to this completion's last; set once they were checked."""

    @property
    def trains(self) -> bool:
        """Whether its sampled tokens are for training."""
        c = self.completion
        sampled = bool(c.completion_token_ids or c.rollout_logprobs)
        return sampled and c.status is CompletionStatus.DELIVERED and c.call_kind not in NEVER_TRAINED


def build_tree(completions: Sequence[Completion]) -> list[Node]:
    """The roots of the tree, pruned to the branches that end in a trained completion; all levels in log order.

    Args:
        completions: of one attempt, each id once, in the order of the log.

    Raises:
        BrokenTree: a completion that stays lacks its parent, or ids, counts, logprobs or versions do not fit.
    """
    nodes = {c.completion_id: Node(c, order, c.prompt_token_ids) for order, c in enumerate(completions)}
    for node in nodes.values():
        parent = nodes.get(node.completion.parent_id or "")
        if parent is not None:
            node.parent = parent
            parent.children.append(node)
    _relink([node for node in nodes.values() if node.completion.parent_id is None])
    roots = [node for node in nodes.values() if node.parent is None]
    _refuse_cycles(nodes.values(), roots)
    roots = _prune(roots)
    for node in walk(roots):
        _check_place(node)
        if node.trains:
            _check_sampled(node.completion)
    return roots


def walk(roots: Sequence[Node]) -> Iterator[Node]:
    """All nodes, parents before children, siblings in order."""
    stack = list(reversed(roots))
    while stack:
        node = stack.pop()
        yield node
        stack.extend(reversed(node.children))


def path(leaf: Node) -> list[Node]:
    """From the root down to `leaf`."""
    nodes = [leaf]
    while (parent := nodes[-1].parent) is not None:
        nodes.append(parent)
    return nodes[::-1]


def _relink(roots: Sequence[Node]) -> None:
    """Hang a root below the completion that it continues, when its tokens prove it.

    A proxy that restarted in mid-rollout no longer knows the conversation and records the whole prompt again. A root
    whose prompt starts with all tokens of another completion continues it; the longest such match wins. No cycle can
    come of it: whatever descends from a root has at least the root's prompt and one sampled token.
    """
    for root in roots:
        best, matched = _longest_match(root, roots)
        if best is not None:
            root.parent, root.prompt = best, root.prompt[matched:]
            best.children.append(root)
            best.children.sort(key=lambda node: node.order)


def _longest_match(root: Node, roots: Sequence[Node]) -> tuple[Node | None, int]:
    """The completion whose tokens are the longest prefix of the root's prompt, and that prefix's bytes."""
    prompt, best, longest = root.prompt, None, 0
    stack = [(other, 0) for other in reversed(roots) if other is not root and other.parent is None]
    while stack:
        node, start = stack.pop()
        sampled = node.completion.completion_token_ids
        between = start + len(node.prompt)
        if not prompt.startswith(node.prompt, start) or not prompt.startswith(sampled, between):
            continue
        end = between + len(sampled)
        if sampled and node.completion.status is CompletionStatus.DELIVERED and end >= longest:
            best, longest = node, end
        stack.extend((child, end) for child in reversed(node.children))
    return best, longest


def _refuse_cycles(nodes: Iterable[Node], roots: Sequence[Node]) -> None:
    reached = set(walk(roots))
    if lost := next((node for node in nodes if node not in reached and node.trains), None):
        raise BrokenTree("broken_chain", f"completion {lost.completion.completion_id} descends from itself")


def _prune(roots: Sequence[Node]) -> list[Node]:
    """Drop what leads to no trained completion. Returns the roots that stay."""
    wanted: set[Node] = set()
    for node in reversed(list(walk(roots))):
        node.children = [child for child in node.children if child in wanted]
        if node.trains or node.children:
            wanted.add(node)
    return [root for root in roots if root in wanted]


def _check_place(node: Node) -> None:
    """Set the node's length; its prompt must follow the parent's last token exactly."""
    c = node.completion
    if c.parent_id is not None and node.parent is None:
        raise BrokenTree("broken_chain", f"completion {c.completion_id}: its parent {c.parent_id} is not recorded")
    prompt, prompt_rest = divmod(len(node.prompt), ID_BYTES)
    sampled, sampled_rest = divmod(len(c.completion_token_ids), ID_BYTES)
    before = (node.parent.length if node.parent else 0) + prompt
    if prompt_rest or sampled_rest or before != c.prompt_token_count or before == 0:
        raise BrokenTree(
            "broken_chain",
            f"completion {c.completion_id}: its prompt has {c.prompt_token_count} tokens, {before} are recorded",
        )
    node.length = before + sampled


def _check_sampled(c: Completion) -> None:
    """Every sampled token must have one finite logprob and one policy version."""
    count = len(c.completion_token_ids) // ID_BYTES
    if len(c.rollout_logprobs) != len(c.completion_token_ids):
        raise BrokenTree(
            "logprobs_misaligned",
            f"completion {c.completion_id}: {count} tokens, {len(c.rollout_logprobs) / ID_BYTES:g} logprobs",
        )
    if not math.isfinite(sum(unpack_floats(c.rollout_logprobs))):
        raise BrokenTree("logprobs_not_finite", f"completion {c.completion_id}: a logprob is no number")
    ends = [0, *(run.end for run in c.policy_version_runs)]
    starts = [*(run.start for run in c.policy_version_runs), count]
    if starts != ends or any(run.end <= run.start for run in c.policy_version_runs):
        raise BrokenTree(
            "versions_misaligned",
            f"completion {c.completion_id}: its version runs do not cover its {count} tokens one by one",
        )
