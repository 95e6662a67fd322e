from rollouts.gate import StalenessGate


def gate(**changes: float) -> StalenessGate:
    return StalenessGate(**{"limit": 2, "grace_s": 60.0, "stall_s": 600.0, **changes})


def test_a_limit_of_zero_is_no_gate() -> None:
    assert gate(limit=0, launched=1000).may_launch(0.0, running_groups=0)


def test_groups_start_up_to_the_limit_and_then_one_for_each_consumed() -> None:
    tested = gate()
    tested.learner_says(0, 0.0)
    allowed = []
    for _ in range(4):
        if tested.may_launch(1.0, running_groups=0):
            tested.launched += 1
        allowed.append(tested.launched)
    assert allowed == [1, 2, 2, 2]
    tested.learner_says(1, 2.0)
    assert tested.may_launch(2.0, running_groups=0)
    tested.launched += 1
    assert not tested.may_launch(2.0, running_groups=0)


def test_without_a_learner_a_full_gate_opens_after_the_grace() -> None:
    tested = gate(launched=2)
    assert not tested.may_launch(100.0, running_groups=0)
    assert not tested.may_launch(159.0, running_groups=0)
    assert tested.may_launch(160.0, running_groups=0)
    tested.launched = 50
    assert tested.may_launch(160.0, running_groups=0)
    tested.learner_says(10, 161.0)  # it came late: from now on it counts
    assert not tested.may_launch(161.0, running_groups=0)


def test_a_living_learner_that_consumes_nothing_is_given_up_after_the_stall() -> None:
    tested = gate(launched=2)
    tested.learner_says(0, 0.0)
    assert not tested.may_launch(0.0, running_groups=0)
    for now in range(0, 600, 10):
        tested.learner_says(0, now)
        assert not tested.may_launch(now, running_groups=0)
    tested.learner_says(0, 600.0)
    assert tested.may_launch(600.0, running_groups=0)
    tested.launched = 4  # two more: the limit counts anew
    assert not tested.may_launch(601.0, running_groups=0)


def test_a_stall_is_none_while_groups_run_or_the_learner_is_silent() -> None:
    running = gate(launched=2)
    running.learner_says(0, 0.0)
    assert not running.may_launch(0.0, running_groups=1)
    running.learner_says(0, 1000.0)
    assert not running.may_launch(1000.0, running_groups=1)
    assert not running.may_launch(1001.0, running_groups=0)
    silent = gate(launched=2)
    silent.learner_says(0, 0.0)
    assert not silent.may_launch(0.0, running_groups=0)
    assert not silent.may_launch(100_000.0, running_groups=0)


def test_launchers_share_the_limit_while_they_live() -> None:
    tested = gate(launched=1)
    tested.learner_says(0, 0.0)
    tested.launcher_says("other", 1, 0.0)
    assert not tested.may_launch(5.0, running_groups=0)
    assert tested.may_launch(11.0, running_groups=0)


def test_a_learner_ahead_of_our_count_opens_the_gate() -> None:
    tested = gate(launched=3)
    tested.learner_says(10, 0.0)
    assert tested.in_flight(0.0) == 0
