import msgspec

from rollouts.lifecycle import Life, verifier_digest
from rollouts.recovery import Known, fold
from schemas import EndReason, Task, Verifier

TASK = Task(task_id="a/b", taskset="s", group_size=2, epoch=3, evaluation=True, policy_id="p", labels={"k": "v"})


def test_the_last_event_carries_what_the_earlier_ones_told() -> None:
    life = Life(TASK, "g", 1, node="here")
    queued = life.queued()
    scheduled = life.scheduled(1, "0.1")
    started = life.started(5)
    life.harness_exited(9, EndReason.COMPLETED, first_call_at_us=7, exit_code=0, cpu_s=0.5, completion_count=2)
    verified = life.verified(EndReason.COMPLETED, 0.5, {"a": 0.5}, "fine")
    end = life.finished(EndReason.COMPLETED, 42, attempt=1)
    assert [event.kind for event in (queued, scheduled, started, verified, end)] == [
        "queued", "scheduled", "started", "verified", "finished",
    ]  # fmt: skip
    assert (end.rollout_id, end.group_id, end.group_index, end.group_size) == ("g-r1", "g", 1, 2)
    assert (end.task_id, end.taskset, end.epoch, end.evaluation, end.policy_id) == ("a/b", "s", 3, True, "p")
    assert (end.node, end.labels, end.harness_version) == ("here", {"k": "v"}, "0.1")
    assert (end.reward, end.rewards, end.exit_code, end.cpu_s, end.completion_count) == (0.5, {"a": 0.5}, 0, 0.5, 2)
    assert (end.completions_end_offset, end.message, end.end_reason) == (42, "fine", EndReason.COMPLETED)
    timings = end.timings
    assert (timings.started_at_us, timings.first_call_at_us, timings.exited_at_us) == (5, 7, 9)
    assert timings.queued_at_us == queued.at_us
    assert timings.verified_at_us == verified.at_us
    assert end.verifier_digest == verifier_digest(TASK)


def test_a_new_attempt_keeps_nothing_of_the_one_before() -> None:
    life = Life(TASK, "g", 0, node="")
    queued_at = life.queued().at_us
    life.scheduled(1, "1")
    life.started(5)
    life.harness_exited(9, EndReason.INFRASTRUCTURE, exit_code=75, cpu_s=1.0, message="away")
    again = life.scheduled(2, "1")
    assert (again.attempt, again.end_reason, again.exit_code, again.cpu_s, again.message) == (2, None, None, None, "")
    assert (again.timings.queued_at_us, again.timings.started_at_us, again.timings.exited_at_us) == (
        queued_at, None, None,
    )  # fmt: skip


def test_digests_differ_with_kind_and_options() -> None:
    tasks = [
        msgspec.structs.replace(TASK, verifier=Verifier(kind=kind, options=options))
        for kind, options in (("exact", "{}"), ("exact", '{"a": 1}'), ("command", "{}"))
    ]
    assert len({verifier_digest(task) for task in tasks}) == 3


def test_events_fold_into_what_is_known() -> None:
    life, other = Life(TASK, "g", 0, node=""), Life(TASK, "g", 1, node="")
    known: dict[str, Known] = {}
    fold([life.queued(), other.queued()], known)
    assert known == {"g-r0": Known(0, finished=False), "g-r1": Known(0, finished=False)}
    fold([life.scheduled(1, ""), life.scheduled(2, ""), life.finished(EndReason.COMPLETED, 1, attempt=2)], known)
    fold([other.scheduled(1, "")], known)
    assert known == {"g-r0": Known(2, finished=True), "g-r1": Known(1, finished=False)}
