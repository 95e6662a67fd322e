"""`reasoning_gym`: the data set's own scorer judges the answer to one of its items."""

from typing import Any

from rollouts.errors import VerifierError
from rollouts.options import OptionsError
from rollouts.verifiers.base import Options, Submission, Verdict, scored
from rollouts.verifiers.extract import Extract, extract
from rollouts.verifiers.gym_client import GymWorker


class GymOptions(Options, frozen=True):
    """Options of `reasoning_gym`. Data set, configuration, seed and index name one item for good."""

    dataset: str
    """Name of the data set, for example `needle_haystack`."""
    index: int
    """Which of its items."""
    seed: int
    """The data set's seed; items of nearby seeds coincide."""
    config: dict[str, Any] = {}
    """The data set's own configuration, without seed and size."""
    extract: Extract = "whole"
    """Which part of the reply is handed to the scorer."""
    require_stop: bool = False
    """A reply that a token budget cut off earns nothing."""
    timeout_s: float | None = None
    """Longest scoring; the launcher's default where absent."""


class GymVerifier:
    """Scores with the shared reasoning-gym process."""

    def __init__(self, worker: GymWorker, timeout_s: float) -> None:
        self._worker = worker
        self._timeout_s = timeout_s

    def expect(self) -> None:
        """Start the process meanwhile: it takes seconds to import reasoning-gym."""
        self._worker.warm_up()

    async def verify(self, options: GymOptions, submission: Submission) -> Verdict:
        """The data set's score, 0 to 1.

        Raises:
            VerifierTimeout: no score in time.
            VerifierError: the scorer failed, or the item does not exist.
        """
        answer = extract(submission.answer, options.extract)
        timeout_s = options.timeout_s or self._timeout_s
        try:
            score = await self._worker.score(
                options.dataset, options.config, options.seed, options.index, answer, timeout_s=timeout_s
            )
        except OptionsError as error:
            raise VerifierError(str(error)) from error
        return scored(score, submission, require_stop=options.require_stop)
