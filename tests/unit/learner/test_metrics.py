"""The share of time that was waiting."""

from prometheus_client import CollectorRegistry

from learner.metrics import WaitMeter, expose


def test_wait_share_is_of_the_time_since_the_last_call() -> None:
    now = [100.0]
    meter = WaitMeter(lambda: now[0])
    now[0] = 104.0
    with meter.waiting():
        now[0] = 105.0
    assert meter.share() == 0.2
    assert meter.waited_s == 1.0
    with meter.waiting():
        now[0] = 107.0
        assert meter.share() == 1.0, "also while it waits"
        now[0] = 109.0
    now[0] = 111.0
    assert meter.share() == 0.5
    assert meter.share() == 0.0
    assert meter.waited_s == 5.0


def test_gauges_are_offered_to_prometheus() -> None:
    registry = CollectorRegistry()
    expose(registry, lambda: {"step": 3.0, "groups_dropped": 2.0})
    assert registry.get_sample_value("forgestream_learner_step") == 3.0
    assert registry.get_sample_value("forgestream_learner_groups_dropped") == 2.0
