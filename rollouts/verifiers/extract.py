"""Takes the answer out of a reply."""

import re
from typing import Literal, assert_never

Extract = Literal["whole", "first_word", "last_word", "last_number", "last_line"]

_WORD = re.compile(r"[^\W\d_](?:[^\W_]|['’-](?=[^\W_]))*")
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")


def extract(reply: str, how: Extract) -> str:
    """The answer within a reply; empty where there is none.

    A word is a run of letters and digits that begins with a letter; apostrophes and hyphens inside belong to it.
    A number may have a sign and a fraction; commas between digits are dropped.
    """
    match how:
        case "whole":
            return reply.strip()
        case "first_word":
            found = _WORD.search(reply)
            return found.group() if found else ""
        case "last_word":
            return (_WORD.findall(reply) or [""])[-1]
        case "last_number":
            return (_NUMBER.findall(re.sub(r"(?<=\d),(?=\d)", "", reply)) or [""])[-1]
        case "last_line":
            return (reply.strip().splitlines() or [""])[-1].strip()
        case _:
            assert_never(how)
