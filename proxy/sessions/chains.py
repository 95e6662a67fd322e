"""The recorded conversations of one rollout attempt, as a tree of completions.

A node is a completion; its key is the digest of the history up to and including the answer, as a harness will send it
back. A request continues the deepest node whose history it begins with; a history that rewrites the past continues an
earlier node beside what is there already (a fork), or none (a new root).
"""

from array import array
from dataclasses import dataclass, field

from proxy.conversation import Conversation
from proxy.sessions.canonical import Digest, History

_NODE_BYTES = 600  # a node's objects beside its tokens, measured roughly


@dataclass(slots=True)
class Node:
    """A recorded completion. Its whole sequence is the parent's, then `prompt`, then `completion`."""

    completion_id: str
    parent: "Node | None"
    prompt: array
    """Token ids (int32) of the prompt that are new since the parent."""
    completion: array
    """Token ids (int32) as sampled."""
    length: int
    """Tokens of the whole sequence."""
    system_blob: str | None = None
    tools_blob: str | None = None
    children: int = 0

    def sequence(self) -> list[int]:
        """The whole sequence: every prompt and completion token from the root to here."""
        path: list[Node] = []
        node: Node | None = self
        while node is not None:
            path.append(node)
            node = node.parent
        ids = array("i")
        for node in reversed(path):
            ids += node.prompt
            ids += node.completion
        return ids.tolist()


@dataclass(frozen=True, slots=True)
class Match:
    """Where a request joins what is recorded."""

    history: History
    """The digest of the request's whole history; `Chains.add` goes on from it."""
    node: Node | None = None
    """The completion that it continues; None: a new root."""
    first_new: int = 0
    """Index of the first message that came after that completion."""


@dataclass(slots=True)
class Chains:
    """All recorded conversations of one attempt."""

    nodes: dict[Digest, Node] = field(default_factory=dict)
    size_bytes: int = 0

    def match(self, conversation: Conversation) -> Match:
        """The deepest recorded completion whose history the conversation begins with. Linear in its length."""
        history, node, first_new = History(conversation), None, 0
        messages = conversation.messages
        for index in range(conversation.system_count, len(messages)):
            history.add(messages[index])
            if messages[index].role == "assistant" and (found := self.nodes.get(history.digest)) is not None:
                node, first_new = found, index + 1
        return Match(history, node, first_new)

    def add(self, digest: Digest, node: Node) -> None:
        """Remember a completion under the history that ends with its answer; the newest of two equal ones stays."""
        if node.parent is not None:
            node.parent.children += 1
        self.nodes[digest] = node
        self.size_bytes += _NODE_BYTES + node.prompt.itemsize * (len(node.prompt) + len(node.completion))

    def clear(self) -> None:
        """Forget all of it: what comes next is rendered whole."""
        self.nodes.clear()
        self.size_bytes = 0
