import io

from rich.console import Console

from deploy.local.loop import LoopState
from deploy.local.view import render, sparkline
from schemas import Policy, Step, Telemetry


def shown(state, **further):
    services = [
        {"service": "proxy", "ready": True, "restarts": 0},
        {"service": "learner", "ready": False, "restarts": 2},
    ]
    console = Console(file=io.StringIO(), width=100)
    console.print(render(state, services, now_s=0.0, title="forgestream", **further))
    return console.file.getvalue()


def test_a_stack_that_did_nothing_yet():
    text = shown(LoopState())
    assert "● proxy" in text
    assert "○ learner ↻2" in text
    assert "no optimizer step yet" in text


def test_steps_lag_and_notes_are_shown():
    state = LoopState()
    for number, reward in enumerate([0.0, 0.5, 1.0], 1):
        metrics = {"reward_mean": reward, "delta_mean": 0.01}
        state.observe(Step(step=number, policy_version=number, metrics=metrics, timings={"update": 2.5}), 0.0)
    state.observe(Policy(version=3), 0.0)
    state.observe(Telemetry(source="archiver", gauges={"lag_records": 12.0}), 0.0)
    text = shown(state, notes=["12:00:00  proxy crashed"])
    assert "reward by step   ▄█" in text
    assert "archiver 12" in text
    assert "12:00:00  proxy crashed" in text
    assert "policy version" in text


def test_a_sparkline_stays_within_its_bars():
    assert sparkline([-1.0, 0.0, 0.49, 1.0, 7.0]) == "  ▄██"
