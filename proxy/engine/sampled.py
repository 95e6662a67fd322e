"""Tokens as they were sampled, over as many attempts as it took: ids, log-probabilities, policy versions."""

from dataclasses import dataclass, field

from proxy.engine.wire import Choice, VersionSpan
from schemas import VersionRun

_MISSING_LOGPROB = -9999.0  # what vLLM writes where it has none
_ROUNDING = 1e-3  # a log-probability may come out a little above 0


@dataclass(slots=True)
class Sampled:
    """What came from the engines for one completion.

    A cut stream leaves its tokens here; the next attempt samples on from them (`begin_segment`).
    """

    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    """Why the completion must not be trained; empty when all is aligned."""
    finish: str | None = None
    """The engine's finish reason; None while it goes on."""
    engine: str = ""
    cached_tokens: int = 0
    cuts: int = 0
    """How often the stream was cut and taken up again."""
    dispatched_at_us: int | None = None
    first_token_at_us: int | None = None
    last_token_at_us: int | None = None
    _runs: list[tuple[int | None, int, int]] = field(default_factory=list)
    _segment_start: int = 0
    _spans: list[VersionSpan] = field(default_factory=list)

    def begin_segment(self) -> None:
        """Another request is sent to an engine, for what comes after the tokens so far."""
        self._segment_start = len(self.ids)
        self._spans = []

    def add(self, choice: Choice) -> list[int]:
        """Takes a chunk's tokens in. Returns their ids."""
        ids = choice.token_ids or []
        entries = choice.logprobs.content or [] if choice.logprobs else []
        if len(entries) != len(ids):
            self._fault(f"{len(entries)} logprobs for {len(ids)} tokens")
        named = [entry.token_id for entry in entries]
        if named != ids and any(name is not None and name != i for name, i in zip(named, ids, strict=False)):
            self._fault("a logprob of another token")
        logprobs = [entry.logprob for entry in entries]
        if logprobs and not (min(logprobs) > _MISSING_LOGPROB and max(logprobs) <= 0.0):
            logprobs = self._checked(logprobs)
        self.logprobs += logprobs
        self.ids += ids
        if choice.weight_versions is not None:
            self._spans = choice.weight_versions
        if choice.finish_reason is not None:
            self.finish = choice.finish_reason
        return ids

    def _checked(self, logprobs: list[float]) -> list[float]:
        """Log-probabilities that are not all plain: rounding is put right, anything else is a fault."""
        for value in logprobs:
            if not _MISSING_LOGPROB < value <= _ROUNDING:
                self._fault(f"a token with the logprob {value}")
        return [min(value, 0.0) for value in logprobs]

    def end_segment(self, policy_id: str, known_version: int | None) -> int | None:
        """The request is over, in whatever way.

        vLLM tells versions at the end of a stream only. Tokens of a cut stream without one carry `known_version`, the
        last that this engine told before: versions only grow, so it is the oldest that can have sampled them.

        Returns:
            The newest version that the engine told now; None when it told none.
        """
        at, told = self._segment_start, None
        for span in self._spans:
            version = policy_version(span.version, policy_id)
            start, end = self._segment_start + span.start, self._segment_start + span.end
            if start != at or end < start or end > len(self.ids):
                self._fault("version spans that do not cover the tokens")
                break
            if version is None:
                self._fault(f"weights with the label {span.version!r}, not {policy_id}@N")
            if end > start:
                self._runs.append((version, start, end))
            at, told = end, version if version is not None else told
        if at < len(self.ids):
            self._runs.append((known_version if told is None else told, at, len(self.ids)))
        return told

    def version_runs(self) -> list[VersionRun]:
        """Which policy version sampled which tokens; faulty where that is not known.

        Tokens of a cut stream of unknown version take that of the tokens after them.
        """
        runs: list[VersionRun] = []
        following: int | None = None
        for version, start, end in reversed(self._runs):
            following = version if version is not None else following
            if following is None:
                self._fault("the engine told no policy version")
                continue
            if runs and runs[-1].version == following and runs[-1].start == end:
                runs[-1] = VersionRun(version=following, start=start, end=runs[-1].end)
            else:
                runs.append(VersionRun(version=following, start=start, end=end))
        return runs[::-1]

    def _fault(self, what: str) -> None:
        if what not in self.faults:
            self.faults.append(what)


def policy_version(label: str, policy_id: str) -> int | None:
    """`policy@12` → 12; None when it is no label of this policy."""
    name, _, number = label.rpartition("@")
    return int(number) if name == policy_id and number.isascii() and number.isdigit() else None
