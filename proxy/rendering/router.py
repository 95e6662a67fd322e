"""Sampled text to pieces of a reply, as it comes: text that is certain, and whole tool calls.

One and the same router serves streamed replies and whole ones, so both show the same text for the same tokens.
"""

import re
from collections.abc import Callable

from proxy.conversation import Piece
from proxy.rendering.toolcalls import CLOSE, OPEN, parse_call

_QUOTE = re.compile(r'\\.|"', re.DOTALL)


class CallRouter:
    """Holds text back while it may be the beginning of a tool call.

    White space before a call that begins the reply, between calls and after the last one is the form's, not the
    reply's: it is dropped. A call that does not parse comes out as text, marks included, and is counted.
    """

    def __init__(self, new_call_id: Callable[[], str]) -> None:
        self._new_call_id = new_call_id
        self._text = ""
        """Outside of a call: text that is not certain yet."""
        self._space = ""
        """White space that is dropped when a call follows."""
        self._at_edge = True
        """Nothing but white space was seen since the beginning, or since a call."""
        self._block: list[str] | None = None
        """Inside a call: all that came since the opening mark."""
        self._tail = ""
        """The block's last characters: enough to find a closing mark that comes in pieces."""
        self._read = 0
        """How many parts of the block were looked at for quotes."""
        self._within_string = False
        """Whether a JSON string is open after them."""
        self._called = False
        self.malformed = 0
        """Calls that did not parse."""

    def feed(self, text: str) -> list[Piece]:
        """What has become certain."""
        pieces: list[Piece] = []
        self._feed(text, pieces)
        return pieces

    def end(self) -> list[Piece]:
        """The rest: a call that was not closed counts when it is whole."""
        pieces: list[Piece] = []
        while self._block is not None:
            block, self._block = "".join(self._block), None
            self._finish(block, pieces)
        self._show(self._text, pieces)
        self._text = ""
        if self._space and not self._called:
            pieces.append(self._space)  # a reply of white space alone
        return pieces

    def _feed(self, text: str, pieces: list[Piece]) -> None:
        while text:
            text = self._outside(text, pieces) if self._block is None else self._inside(text, pieces)

    def _outside(self, text: str, pieces: list[Piece]) -> str:
        """Takes text outside of a call; returns what follows an opening mark."""
        self._text += text
        at = self._text.find(OPEN)
        if at >= 0:
            rest = self._text[at + len(OPEN) :]
            self._show(self._text[:at], pieces)
            self._text, self._tail = "", ""
            self._block, self._read, self._within_string = [], 0, False
            return rest
        held = _held_back(self._text)
        certain = self._text[: len(self._text) - held]
        self._text = self._text[len(certain) :]
        self._show(certain, pieces)
        return ""

    def _inside(self, text: str, pieces: list[Piece]) -> str:
        """Takes text inside a call; returns what follows its closing mark."""
        assert self._block is not None
        window = self._tail + text
        at = window.find(CLOSE)
        if at < 0:
            self._block.append(text)
            self._tail = window[-len(CLOSE) :]
            return ""
        end = at + len(CLOSE) - len(self._tail)
        self._block.append(text[:end])
        self._within_string = _ends_within_string(self._unread(), self._within_string)
        if self._within_string:  # the mark stands in an argument: the call goes on
            self._read, self._tail = len(self._block), ""
            return text[end:]
        block, self._block = "".join(self._block), None
        self._finish(block, pieces)
        return text[end:]

    def _unread(self) -> str:
        """What of the block was not looked at for quotes yet."""
        assert self._block is not None
        return "".join(self._block[self._read :])

    def _finish(self, block: str, pieces: list[Piece]) -> None:
        """Shows what a block became. One that does not parse ends at its first mark; the rest is read again."""
        call = parse_call(block.removesuffix(CLOSE), self._new_call_id())
        if call is not None:
            self._space, self._at_edge, self._called = "", True, True
            pieces.append(call)
            return
        self.malformed += 1
        first = block.find(CLOSE) + len(CLOSE) if CLOSE in block else len(block)
        self._show(OPEN + block[:first], pieces)
        self._feed(block[first:], pieces)

    def _show(self, text: str, pieces: list[Piece]) -> None:
        if not text:
            return
        if self._at_edge:
            if not text.strip():
                self._space += text
                return
            text = self._space + text
            self._space, self._at_edge = "", False
        pieces.append(text)


class PlainRouter:
    """For requests without tools: all sampled text is text."""

    malformed = 0

    def feed(self, text: str) -> list[Piece]:
        """The text as it is."""
        return [text] if text else []

    def end(self) -> list[Piece]:
        """Nothing is held back."""
        return []


Router = CallRouter | PlainRouter


def _held_back(text: str) -> int:
    """Length of the longest end of the text that is the beginning of an opening mark."""
    for length in range(min(len(OPEN) - 1, len(text)), 0, -1):
        if text.endswith(OPEN[:length]):
            return length
    return 0


def _ends_within_string(json_text: str, within: bool) -> bool:
    """Whether a piece of JSON ends inside a string, given whether it begins inside one."""
    for match in _QUOTE.finditer(json_text):
        if match.group() == '"':
            within = not within
    return within
