"""The real pi, installed from its lock file, against the stand-in proxy."""

import json
from pathlib import Path
from typing import Any

import pytest

from ingest.kafka.settings import KafkaSettings
from rollouts.harnesses.pi.pack import PiPack
from schemas import EndReason, Harness, Limits, Verifier
from tests.support.launchers import SECRET, exact_task, finished, launcher, processes_with, produce
from tests.support.standin_proxy import Reply, standin_proxy

INSTALLED = Path(__file__).parents[3] / ".forgestream/harnesses"


@pytest.mark.slow
async def test_pi_works_in_its_workspace_answers_and_meets_its_limit(kafka: KafkaSettings, tmp_path: Path) -> None:
    await PiPack().install(INSTALLED)
    plain = json.dumps({"tools": [], "system": "Answer."})
    tasks = [
        exact_task("plain", "yes", group_size=1, harness=Harness(name="pi", options=plain)),
        exact_task(
            "tools", "", group_size=1, harness=Harness(name="pi"), limits=Limits(wall_s=60),
            verifier=Verifier(kind="command", options='{"command": "test \\"$(cat out.txt)\\" = hello"}'),
        ),
        exact_task("limit", "x", group_size=1, harness=Harness(name="pi")),
    ]  # fmt: skip

    def script(bearer: Any, messages: list[dict[str, Any]]) -> Reply:
        if bearer.rollout_id.startswith("limit"):
            return Reply(error_code="call_limit")
        if bearer.rollout_id.startswith("plain"):
            return Reply("yes\n")
        return Reply("done") if messages[-1]["role"] == "tool" else Reply("I run it.", bash="echo hello > out.txt")

    async with standin_proxy(kafka, SECRET, script) as proxy, launcher(kafka, tmp_path, proxy.url, harnesses=INSTALLED):
        await produce(kafka, tasks)
        events = await finished(kafka, tasks, timeout_s=120)
    found = {told[-1].task_id: told[-1] for told in events.values()}
    assert {name: (end.end_reason, end.reward, end.completion_count) for name, end in found.items()} == {
        "plain": (EndReason.COMPLETED, 1.0, 1),
        "tools": (EndReason.COMPLETED, 1.0, 2),
        "limit": (EndReason.CALL_LIMIT, None, 1),
    }
    assert {end.harness_version for end in found.values()} == {"0.73.1"}
    plain_bodies = [body for bearer, body in proxy.requests if bearer.rollout_id.startswith("plain")]
    assert [message["role"] for message in plain_bodies[0]["messages"]] == ["system", "user"]
    assert "tools" not in plain_bodies[0]
    assert plain_bodies[0]["stream"]
    assert processes_with(str(tmp_path)) == []
