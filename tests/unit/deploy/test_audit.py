import pytest

from deploy.audit import Audit, audit, lineage
from schemas import CallKind, Completion, CompletionStatus, RolloutEvent, RolloutEventKind, Sample, Step, Trajectory
from schemas.arrays import pack_ids, pack_mask


def event(rollout, kind=RolloutEventKind.FINISHED):
    return RolloutEvent(rollout_id=rollout, kind=kind, group_id="g", attempt=1)


def completion(name, rollout, **further):
    fields = {"status": CompletionStatus.DELIVERED, "completion_token_ids": pack_ids([5, 6, 7])} | further
    return Completion(completion_id=name, rollout_id=rollout, **fields)


def trajectory(rollout, *names, trained=3, attempt=1):
    sample = Sample(completion_ids=list(names), loss_mask=pack_mask([0, 0] + [1] * trained))
    return Trajectory(trajectory_id=f"{rollout}-t", rollout_id=rollout, attempt=attempt, samples=[sample])


def step(number, *groups, run="run"):
    return Step(run_id=run, step=number, groups=list(groups))


@pytest.fixture
def log():
    return {
        "events": [event("r0", RolloutEventKind.QUEUED), event("r0"), event("r1")],
        "completions": [completion("c0", "r0"), completion("c1", "r1")],
        "trajectories": [trajectory("r0", "c0"), trajectory("r1", "c1")],
        "steps": [step(1, "g1", "g2"), step(2, "g3")],
    }


def test_a_whole_log(log):
    assert audit(**log) == Audit((), ())


@pytest.mark.parametrize(
    ("topic", "change", "lost", "doubled"),
    [
        ("events", lambda r: [*r, event("r9", RolloutEventKind.STARTED)], ["rollout r9 never finished"], []),
        ("events", lambda r: [*r, event("r1")], [], ["rollout r1 finished 2 times"]),
        ("trajectories", lambda r: r[:1], ["rollout r1 has no trajectory"], []),
        ("trajectories", lambda r: [*r, r[0]], [], ["rollout r0 has 2 trajectories"]),
        ("completions", lambda r: [*r, completion("c2", "r0")], ["completion c2 of rollout r0 is in no sample"], []),
        ("completions", lambda r: [*r, r[0]], [], ["completion c0 is on the log 2 times"]),
        (
            "trajectories",
            lambda r: [r[0], trajectory("r1", "c1", trained=4)],
            [],
            ["trajectory r1-t trains 4 tokens, but only 3 were sampled"],
        ),
        ("steps", lambda r: [*r, step(3, "g1")], [], ["group g1 was trained in 2 steps"]),
    ],
)
def test_what_is_lost_or_doubled_is_named(log, topic, change, lost, doubled):
    log[topic] = change(log[topic])
    assert audit(**log) == Audit(tuple(lost), tuple(doubled))


@pytest.mark.parametrize(
    "further",
    [{"status": CompletionStatus.ABORTED}, {"call_kind": CallKind.COUNT}, {"attempt": 2}],
)
def test_only_delivered_model_calls_of_the_finished_attempt_must_be_in_a_sample(log, further):
    log["completions"].append(completion("c9", "r0", **further))
    assert audit(**log) == Audit((), ())


def test_a_step_told_again_after_a_crash_replaces_what_followed_it():
    told = [step(1, "a"), step(2, "b"), step(3, "c"), step(2, "b"), step(1, "x", run="other")]
    assert [(s.run_id, s.step) for s in lineage(told)] == [("run", 1), ("run", 2), ("other", 1)]
