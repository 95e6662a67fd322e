import sys
from pathlib import Path

import pytest

from deploy.local.processes import free_ports, marked_environment
from deploy.local.supervisor import ServiceSpec

ROOT = Path(__file__).parents[3]

SAMPLE = """
import asyncio, os, pathlib, subprocess, sys, time
from deploy.local.processes import die_with_parent
from ingest.service.context import ServiceContext
from ingest.service.errors import ServiceError
from ingest.service.runner import run_service
from ingest.service.settings import ServiceSettings

port, parent, mode, count = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], pathlib.Path(sys.argv[4])
die_with_parent(parent)
runs = int(count.read_text()) + 1 if count.exists() else 1
count.write_text(str(runs))

class Refused(ServiceError):
    exit_status = 2

async def main(ctx: ServiceContext) -> None:
    if mode == "crashing" or (mode == "crashes-once" and runs == 1):
        raise ServiceError("no space left on device")
    if mode == "refusing":
        raise Refused("setting sample.x: must be positive")
    if mode == "silent":
        await ctx.stopping.wait()
    if mode == "with-child":
        subprocess.Popen(["sleep", "300"])
    ctx.ready()
    await ctx.stopping.wait()
    if mode == "stubborn":
        await asyncio.sleep(300)

raise SystemExit(run_service("sample", main, ServiceSettings(port=port)))
"""


@pytest.fixture
def spec(tmp_path):
    """Makes the specification of a small service that behaves as its mode says."""
    script = tmp_path / "sample.py"
    script.write_text(SAMPLE)

    def spec(mode="well", name="sample", **further):
        import os

        port = further.pop("port", None) or free_ports(1)[0]
        environment = {**marked_environment(tmp_path), "PYTHONPATH": str(ROOT)}
        command = [sys.executable, script, port, os.getpid(), mode, tmp_path / f"{name}.count"]
        return ServiceSpec(
            name, [str(c) for c in command], "127.0.0.1", port, tmp_path / f"{name}.log", environment, **further
        )

    return spec
