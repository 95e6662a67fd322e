"""The demo's tasks: one name out of one sentence. A small model learns it on two cores in minutes.

"Cade deifies eagles. \\nWho deifies eagles? Reply only with a name." The reward is reasoning-gym's own score of the
reply's first word, and nothing for a reply that did not end by itself within twelve tokens.
"""

import msgspec

from rollouts.tasksets.gym import GymSource
from rollouts.tasksets.template import TaskTemplate
from schemas import Harness, Limits, Sampling

CONFIG = {"min_num_statements": 1, "max_num_statements": 1}


def needle_source(split: str, size: int, *, seed: int = 0, train_size: int = 1000) -> GymSource:
    """Which questions. `split` is `train` or `heldout`."""
    return GymSource(
        dataset="needle_haystack",
        size=size,
        config=CONFIG,
        seed=seed,
        split="heldout" if split == "heldout" else "train",
        train_size=train_size,
        extract="first_word",
        require_stop=True,
    )


def needle_template(harness: str = "react", **changes: object) -> TaskTemplate:
    """How they are attempted: one plain question to any harness. `changes` are fields of the template."""
    options = {"react": {"tools": []}, "pi": {"tools": [], "system": "Answer the question."}}.get(harness, {})
    template = TaskTemplate(
        taskset="needle",
        harness=Harness(name=harness, options=msgspec.json.encode(options).decode()),
        group_size=8,
        sampling=Sampling(temperature=0.7, max_tokens=12),
        limits=Limits(wall_s=300, startup_s=180),
    )
    return msgspec.structs.replace(template, **changes)
