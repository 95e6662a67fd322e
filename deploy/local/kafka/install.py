"""Fetches the broker once: its jars by Maven, checked against `jars.sha256`, and a class archive that halves its start.

Everything is made beside its place and renamed into it, under a lock: an install that was cut off is simply done again,
and two at once do the work once.
"""

import fcntl
import hashlib
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from deploy.local.kafka.errors import InstallFailed
from deploy.local.kafka.java import archive_name, find_java, find_maven

DEFAULT_CACHE = Path(".forgestream/kafka")
_HERE = Path(__file__).parent
_MAVEN_TIMEOUT_S = 600


def install(
    cache: Path | None = None, *, java: str | None = None, report: Callable[[str], None] = lambda line: None
) -> Path:
    """Jars and class archive, ready in `cache` (default `.forgestream/kafka`). Returns the folder of the jars.

    Raises:
        ToolMissing: no Java or no Maven.
        InstallFailed: the jars cannot be fetched, or are not the pinned ones.
    """
    cache = (cache or DEFAULT_CACHE).resolve()
    program = find_java(java)
    jars = ensure_jars(cache, report)
    archive = cache / archive_name(program, jars)
    with _locked(cache):
        if not archive.exists():
            report("preparing the Kafka broker for quick starts (about 15 s, once)")
            _remove_leftovers(cache)
            _make_archive(cache, jars, str(program), archive)
    return jars


def ensure_jars(cache: Path, report: Callable[[str], None] = lambda line: None) -> Path:
    """The folder with the broker's jars, fetched when it is not there yet (38 MB).

    Raises:
        ToolMissing: no Maven.
        InstallFailed: Maven failed, or the jars are not the pinned ones.
    """
    cache = cache.resolve()
    jars = cache / "jars"
    with _locked(cache):
        if not jars.exists():
            report("fetching Apache Kafka (38 MB, once)")
            _remove_leftovers(cache)
            fresh = Path(tempfile.mkdtemp(prefix="jars.", dir=cache))
            try:
                _fetch(fresh)
                check_jars(fresh)
                fresh.rename(jars)
            finally:
                shutil.rmtree(fresh, ignore_errors=True)
    return jars


def check_jars(jars: Path) -> None:
    """Compares a folder of jars with the pinned digests.

    Raises:
        InstallFailed: a jar is missing, altered or unknown.
    """
    lines = [line.split() for line in (_HERE / "jars.sha256").read_text().splitlines()]
    pinned = {name: digest for digest, name in lines}
    found = {jar.name: hashlib.sha256(jar.read_bytes()).hexdigest() for jar in jars.glob("*.jar")}
    wrong = sorted({name for name, _ in pinned.items() ^ found.items()})
    if wrong:
        raise InstallFailed(
            f"{jars}: not the pinned jars of the Kafka broker ({', '.join(wrong[:5])}): remove the folder"
        )


def _fetch(target: Path) -> None:
    arguments = ["-q", "-B", "-ntp", "-f", str(_HERE / "pom.xml"), "dependency:copy-dependencies"]
    arguments += ["-DincludeScope=runtime", f"-DoutputDirectory={target}"]
    try:
        subprocess.run(
            [str(find_maven()), *arguments],
            check=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_MAVEN_TIMEOUT_S,
        )
    except subprocess.CalledProcessError as error:
        lines = [line for line in error.stdout.splitlines() if "ERROR" in line]
        reason = lines[0] if lines else f"exit status {error.returncode}"
        raise InstallFailed(f"Maven could not fetch the Kafka broker: {reason}: run it again when online") from error
    except subprocess.TimeoutExpired as error:
        raise InstallFailed(
            f"Maven took longer than {_MAVEN_TIMEOUT_S} s to fetch the Kafka broker: run it again"
        ) from error


def _make_archive(cache: Path, jars: Path, java: str, archive: Path) -> None:
    """Starts a throw-away broker that writes down its loaded classes when it ends."""
    from deploy.local.kafka.broker import EmbeddedBroker  # the broker imports this module for its jars

    for stale in cache.glob("classes-*.jsa"):
        stale.unlink()
    with tempfile.TemporaryDirectory(prefix="archive.", dir=cache) as scratch:
        fresh = Path(scratch) / "classes.jsa"
        broker = EmbeddedBroker(Path(scratch) / "home", jars=jars, java=java)
        broker.start(timeout_s=120, flags=[f"-XX:ArchiveClassesAtExit={fresh}"])
        broker.stop(grace_s=120)
        if not fresh.exists():
            raise InstallFailed(f"{java} wrote no class archive: Java 17 or newer is needed")
        fresh.rename(archive)


def _remove_leftovers(cache: Path) -> None:
    """Of installs that were cut off. Under the lock nobody else works here."""
    for pattern in ("jars.*", "archive.*"):
        for left in cache.glob(pattern):
            shutil.rmtree(left, ignore_errors=True)


@contextmanager
def _locked(cache: Path) -> Iterator[None]:
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "install.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
