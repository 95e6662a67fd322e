from deploy.local.loop import LoopState
from schemas import (
    Completion,
    CompletionStatus,
    EndReason,
    Policy,
    RolloutEvent,
    RolloutEventKind,
    Step,
    Task,
    Telemetry,
    Trajectory,
)
from schemas.arrays import pack_ids


def finished(rollout, group, reward, evaluation=False, size=2):
    return RolloutEvent(
        rollout_id=rollout,
        kind=RolloutEventKind.FINISHED,
        group_id=group,
        group_size=size,
        reward=reward,
        evaluation=evaluation,
        end_reason=EndReason.COMPLETED,
    )


def test_the_snapshot_counts_what_the_log_says():
    state = LoopState()
    records = [
        Task(task_id="t"),
        RolloutEvent(rollout_id="a", kind=RolloutEventKind.QUEUED, group_id="g"),
        RolloutEvent(rollout_id="b", kind=RolloutEventKind.STARTED, group_id="g"),
        Completion(status=CompletionStatus.DELIVERED, completion_token_ids=pack_ids(range(30))),
        Completion(status=CompletionStatus.ABORTED, completion_token_ids=pack_ids(range(30))),
        finished("a", "g", 1.0),
        finished("e", "held-out", 0.0, evaluation=True),
        Trajectory(trainable=True),
        Step(step=3, metrics={"delta_mean": 0.01234}),
        Policy(version=3),
        Telemetry(source="assembler", gauges={"completions_lag": 4.0, "rollouts_lag": 1.0, "rss_bytes": 9.0}),
    ]
    for record in records:
        state.observe(record, at_s=100.0)
    assert state.snapshot(now_s=101.0) == {
        "tasks": 1,
        "rollouts_open": 1,
        "rollouts_finished": 2,
        "completions": 1,
        "completions_per_s": 0.1,
        "tokens_per_s": 3.0,
        "trajectories": 1,
        "step": 3,
        "policy_version": 3,
        "reward_recent": 1.0,
        "delta_mean": 0.0123,
        "lag": {"assembler": 5.0},
    }
    assert state.rates(now_s=111.0) == (0.0, 0.0)


def test_a_group_is_finished_with_its_last_rollout():
    state = LoopState()
    state.observe(finished("a", "g", 1.0), 0.0)
    assert state.groups_finished == {}
    state.observe(finished("b", "g", None), 0.0)
    assert state.groups_finished == {"training": 1}
    state.observe(finished("e", "h", 1.0, evaluation=True, size=1), 0.0)
    assert state.groups_finished == {"training": 1, "evaluation": 1}
    assert list(state.rewards) == [1.0]


def test_a_step_told_again_replaces_itself():
    state = LoopState()
    for number in (1, 2, 3, 2):
        state.observe(Step(step=number), 0.0)
    assert [step.step for step in state.steps] == [1, 2]
    assert state.gauge("learner", "step") is None
