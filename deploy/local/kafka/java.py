"""The broker's JVM: which program, which flags. The flags are for a small, quick start, not for throughput records."""

import hashlib
import shutil
from collections.abc import Sequence
from pathlib import Path

from deploy.local.kafka.errors import ToolMissing

APT = "apt-get install openjdk-17-jre-headless maven"
_LOG4J = Path(__file__).parent / "log4j2.properties"
_FLAGS = (
    # One collector thread and the quick compiler alone: half the start time and 30 MB less than the defaults.
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Xms64m",
    "-Xmx512m",
    "-XX:+ExitOnOutOfMemoryError",
    "-Djava.awt.headless=true",
    # A class archive that does not fit is ignored; the JVM need not talk about it.
    "-Xlog:cds=off",
    "-Xlog:cds+dynamic=off",
)


def find_java(wanted: str | None = None) -> Path:
    """The `java` program: the wanted path or name, else the one on PATH.

    Raises:
        ToolMissing: there is none.
    """
    found = shutil.which(wanted or "java")
    if not found:
        what = f"{wanted!r} is no Java program" if wanted else "no `java` on PATH"
        raise ToolMissing(f"{what}: the embedded Kafka broker needs Java 17 or newer: {APT}")
    return Path(found)


def find_maven() -> Path:
    """The `mvn` program on PATH.

    Raises:
        ToolMissing: there is none.
    """
    found = shutil.which("mvn")
    if not found:
        raise ToolMissing(f"no `mvn` on PATH: it fetches the embedded Kafka broker once: {APT}")
    return Path(found)


def classpath(jars: Path) -> str:
    """All jars of a folder, sorted: a class archive is valid for one exact class path only."""
    return ":".join(sorted(str(jar) for jar in jars.glob("*.jar")))


def archive_name(java: Path, jars: Path) -> str:
    """Name of the class archive (AppCDS) that fits this JVM and these jars; any other would be ignored silently."""
    real = java.resolve()
    parts = [str(real), str(real.stat().st_size)]
    for jar in sorted(jars.glob("*.jar")):
        parts += [str(jar), str(jar.stat().st_size), str(jar.stat().st_mtime_ns)]
    return f"classes-{hashlib.sha256(chr(10).join(parts).encode()).hexdigest()[:16]}.jsa"


def command(java: Path, jars: Path, logs: Path, flags: Sequence[str], main: str, *arguments: str) -> list[str]:
    """The command line that runs `main` of the broker's jars with its logs in `logs`."""
    settings = [f"-Dlog4j2.configurationFile={_LOG4J.as_uri()}", logs_setting(logs)]
    return [str(java), *_FLAGS, *flags, *settings, "-cp", classpath(jars), main, *arguments]


def logs_setting(logs: Path) -> str:
    """The argument that tells the broker where to log; it also marks whose process a JVM is."""
    return f"-Dkafka.logs.dir={logs}"
