"""Environments of child processes, built from nothing: what the launcher holds is not inherited."""

import os
from pathlib import Path

RUNTIME_MARK = "FORGESTREAM_RUNTIME"
"""Names the state folder of the launcher that a process belongs to; a new launcher finds leftovers by it."""

_PASSED_ON = ("PATH", "LANG", "LC_ALL", "TZ")
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def bare() -> dict[str, str]:
    """Where programs are, and the language; nothing else of the launcher's own environment."""
    return {"PATH": _PATH, "LANG": "C.UTF-8"} | {name: os.environ[name] for name in _PASSED_ON if name in os.environ}


def own_python() -> dict[str, str]:
    """For `python -P -m` of a module of this project, wherever the process stands."""
    return bare() | {"PYTHONPATH": str(Path(__file__).parents[2]), "PYTHONUNBUFFERED": "1"}
