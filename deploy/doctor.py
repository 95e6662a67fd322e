"""What is missing on this machine, and the command that mends it."""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from deploy.config import Settings
from deploy.local.kafka.java import archive_name, find_java
from deploy.local.processes import port_holder
from deploy.local.stack import HEAVY, KAFKA_CACHE, LIGHT
from deploy.local.statefile import running_stack
from deploy.models import MODELS, SHIPPED
from schemas import ForgestreamError

_ROOT = Path(__file__).parents[1]
_OURS = ("schemas", "ingest", "proxy", "rollouts", "learner", "deploy")
_DISK_GB = 5
_MEMORY_GB = 6


@dataclass(frozen=True)
class Check:
    """One thing that was looked at."""

    name: str
    ok: bool
    found: str
    mend: str = ""
    """What to do when it is not ok."""
    optional: bool = False
    """Whether the default stack runs without it."""

    @property
    def status(self) -> str:
        """`ok`, `missing`, or `optional` for something that is missing and may be."""
        return "ok" if self.ok else ("optional" if self.optional else "missing")


def examine(settings: Settings) -> list[Check]:
    """Look at everything; imports nothing heavy and changes nothing."""
    return [
        _python(),
        *_packages(),
        _names(),
        *_kafka(settings),
        *_node(),
        *_models(settings),
        _vllm(settings),
        *_machine(settings.state),
        *_ports(settings),
    ]


def _python() -> Check:
    version = ".".join(map(str, sys.version_info[:3]))
    return Check("python", sys.version_info[:2] == (3, 11), version, "install Python 3.11, then `make install`")


def _packages() -> Iterator[Check]:
    for name, serves in (("torch", "learner, engine"), ("verl", "learner"), ("transformers", "learner, engine")):
        yield Check(f"package {name}", _importable(name), _present(name), f"`make install` ({serves})")
    for name, serves in (("reasoning_gym", "task sets by name"), ("gguf", "making the model smollm2")):
        yield Check(f"package {name}", _importable(name), _present(name), f"`make install` ({serves})", optional=True)


def _names() -> Check:
    """Another distribution may own one of our import names; `proxy.py` does."""
    foreign = [name for name in _OURS if (path := _location(name)) is None or not path.is_relative_to(_ROOT)]
    found = f"not ours: {', '.join(foreign)}" if foreign else "ours"
    return Check("import names", not foreign, found, "uninstall the package of that name, then `make install`")


def _kafka(settings: Settings) -> Iterator[Check]:
    if settings.kafka.bootstrap_servers:
        yield Check("kafka", True, f"configured: {settings.kafka.bootstrap_servers}")
        return
    jars = KAFKA_CACHE / "jars"
    try:
        java = find_java()
    except ForgestreamError as error:
        yield Check("java", False, "not found", str(error))
        return
    version = _version([str(java), "-version"])
    yield Check("java", _major(version) >= 17, version, "sudo apt-get install openjdk-17-jre-headless")
    maven = shutil.which("mvn")
    yield Check(
        "maven",
        bool(maven or jars.exists()),
        maven or "not found",
        "sudo apt-get install maven",
        optional=jars.exists(),
    )
    yield Check("kafka broker", jars.exists(), str(jars) if jars.exists() else "not fetched", "`forgestream install`")
    if jars.exists():
        archive = KAFKA_CACHE / archive_name(java, jars.resolve())
        found = archive.name if archive.exists() else "not made: the broker starts slower"
        yield Check("kafka class archive", archive.exists(), found, "`forgestream install`", optional=True)


def _node() -> Iterator[Check]:
    node = shutil.which("node")
    version = _version([node, "--version"]) if node else "not found"
    mend = "sudo apt-get install nodejs npm (for the harness pi)"
    yield Check("node", _major(version) >= 20, version, mend, optional=True)
    npm = shutil.which("npm")
    yield Check("npm", bool(npm), npm or "not found", mend, optional=True)


def _models(settings: Settings) -> Iterator[Check]:
    wanted = {settings.engine.model, settings.learner.model}
    for folder in sorted({*(MODELS / name for name in SHIPPED), *wanted}):
        there = (folder / "model.safetensors").is_file() or any(folder.glob("*.safetensors"))
        shipped = folder.name in SHIPPED
        mend = f"`forgestream install --model {folder.name}`" if shipped else "name another with --model"
        yield Check(
            f"model {folder}", there, "there" if there else "not made", mend, optional=shipped or folder not in wanted
        )


def _vllm(settings: Settings) -> Check:
    python = settings.engine.vllm.python
    needed = settings.engine.kind == "vllm"
    return Check("vllm", python.exists(), str(python), "`make install-vllm` (for --engine vllm)", optional=not needed)


def _machine(state: Path) -> Iterator[Check]:
    folder = next(path for path in (state.resolve(), *state.resolve().parents) if path.exists())
    writable = os.access(folder, os.W_OK)
    yield Check("state folder", writable, str(state), f"make {folder} writable, or choose another with --state")
    free = shutil.disk_usage(folder).free / 1e9
    yield Check("disk", free >= _DISK_GB, f"{free:.0f} GB free", f"free some space: {_DISK_GB} GB are wanted")
    memory = psutil.virtual_memory().available / 1e9
    mend = f"end other programs: {_MEMORY_GB} GB are wanted for the whole stack with smollm2"
    yield Check("memory", memory >= _MEMORY_GB, f"{memory:.1f} GB available", mend, optional=True)
    cores = os.cpu_count() or 1
    yield Check("cores", cores >= 2, str(cores), "with one core everything works, slowly", optional=True)


def _ports(settings: Settings) -> Iterator[Check]:
    stack = running_stack(settings.state)
    own = {service.port for service in stack.services.values()} if stack else set()
    for name in (*LIGHT, *HEAVY):
        section = getattr(settings, name)
        holder = None if section.port in own else port_holder(section.host, section.port)
        found = f"{section.port} " + ("in use by our own stack" if section.port in own else holder or "free")
        mend = f"stop it, or --set {name}.port=…, or `forgestream up --ports auto`"
        yield Check(f"port of {name}", holder is None, found, mend)


def _importable(name: str) -> bool:
    return importlib.util.find_spec(name) is not None


def _present(name: str) -> str:
    return "importable" if _importable(name) else "not installed"


def _location(name: str) -> Path | None:
    spec = importlib.util.find_spec(name)
    return Path(spec.origin) if spec and spec.origin else None


def _version(command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"does not run: {error}"
    return ((done.stdout or done.stderr).strip().splitlines() or [""])[0]


def _major(version: str) -> int:
    found = re.search(r"\d+", version)
    return int(found.group()) if found else 0
