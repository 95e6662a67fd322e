"""How old a group may be when it is trained."""


def staleness(learner_version: int, oldest_version: int) -> int:
    """Versions between the weights that are about to be updated and those that sampled the oldest trained token."""
    return learner_version - oldest_version


def admits(learner_version: int, oldest_version: int, max_staleness: int) -> bool:
    """Whether a group is fresh enough. A version from the future is another lineage and never admitted."""
    return 0 <= staleness(learner_version, oldest_version) <= max_staleness
