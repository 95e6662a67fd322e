"""`exact`: the answer equals one of the expected texts, after normalisation."""

import re
import unicodedata

from rollouts.verifiers.base import Options, Submission, Verdict, scored
from rollouts.verifiers.extract import Extract, extract


class ExactOptions(Options, frozen=True):
    """Options of `exact`."""

    expected: str | tuple[str, ...]
    """The right answer, or all right answers."""
    extract: Extract = "whole"
    """Which part of the reply is the answer."""
    ignore_case: bool = False
    """Upper and lower case are the same."""
    ignore_punctuation: bool = False
    """Punctuation is dropped on both sides."""
    collapse_space: bool = True
    """Runs of white space count as one blank."""
    require_stop: bool = False
    """A reply that a token budget cut off earns nothing."""

    def __post_init__(self) -> None:
        if self.expected == ():
            raise ValueError("expected needs one text or more")


class ExactVerifier:
    """Compares texts; needs nothing."""

    def expect(self) -> None:
        """Nothing to prepare."""

    async def verify(self, options: ExactOptions, submission: Submission) -> Verdict:
        """1 for an expected answer, else 0."""
        expected = (options.expected,) if isinstance(options.expected, str) else options.expected
        answer = normalise(extract(submission.answer, options.extract), options)
        right = any(answer == normalise(text, options) for text in expected)
        return scored(1.0 if right else 0.0, submission, require_stop=options.require_stop)


def normalise(text: str, options: ExactOptions) -> str:
    """The text as it is compared: Unicode NFC, then what the options ask for."""
    text = unicodedata.normalize("NFC", text)
    if options.ignore_case:
        text = text.casefold()
    if options.ignore_punctuation:
        text = "".join(c for c in text if not unicodedata.category(c).startswith("P"))
    if options.collapse_space:
        text = re.sub(r"\s+", " ", text)
    return text.strip()
