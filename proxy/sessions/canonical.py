"""When are two histories the same? Digests that ignore what harnesses change on the way back.

Equal: re-serialised tool arguments (key order, white space, escapes, `1.0` and `1`), changed call ids, a missing
content and an empty one. Different: anything else, white space in content above all, for it is part of the tokens.
"""

import hashlib
from typing import Any

import msgspec

from proxy.conversation import Conversation, Message

Digest = bytes
_EXACT_FLOAT = 2**53  # above it JavaScript has no integers of its own any more

_decode = msgspec.json.Decoder().decode
_encode_sorted = msgspec.json.Encoder(order="deterministic").encode
_pack = msgspec.msgpack.Encoder().encode


def canonical_json(text: str) -> bytes:
    """JSON text in a form that does not depend on who wrote it; text that is no JSON as it stands."""
    if not text.strip():
        return b"{}"  # a call without arguments: some write nothing, some an empty object
    try:
        return _encode_sorted(_normal(_decode(text)))
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return b"\0" + text.encode("utf-8", "surrogatepass")


def _normal(value: Any) -> Any:
    """Numbers as JavaScript would write them back; everything else unchanged."""
    if isinstance(value, dict):
        return {key: _normal(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_normal(inner) for inner in value]
    if isinstance(value, float) and value.is_integer() and abs(value) <= _EXACT_FLOAT:
        return int(value)
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) > _EXACT_FLOAT:
        return float(value) if abs(value) < 2**1023 else str(value)
    return value


class History:
    """The running digest of a conversation: `add` messages, ask for `digest` after any of them."""

    def __init__(self, conversation: Conversation) -> None:
        """Begins with the system prompt and the tools: a change of either is another conversation."""
        self._hash = hashlib.blake2b(digest_size=16)
        self._ordinals: dict[str, int] = {}
        self._hash.update(_pack(_encode_sorted(conversation.tools)))
        for message in conversation.messages[: conversation.system_count]:
            self._hash.update(_pack(("system", message.content)))

    def add(self, message: Message) -> None:
        """One more message."""
        calls = [(call.name, canonical_json(call.arguments)) for call in message.tool_calls]
        for call in message.tool_calls:
            self._ordinals[call.id] = len(self._ordinals)
        # Results of parallel calls may come in any order: which call they answer is kept, its id is not.
        answers = self._ordinals.get(message.tool_call_id, -1) if message.tool_call_id else None
        self._hash.update(_pack((message.role, message.content, calls, answers)))

    @property
    def digest(self) -> Digest:
        """The digest of all that was added."""
        return self._hash.copy().digest()
