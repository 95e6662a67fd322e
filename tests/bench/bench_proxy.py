"""What the proxy adds to a call, and how many calls it carries: `python tests/bench/bench_proxy.py`.

One proxy worker in a process of its own, in front of a scripted engine in another; recording to an embedded broker,
acknowledged before the last byte of each reply. The peer is the same load sent straight to the engine. Prints one JSON
line a figure; ratios are of one run, on one machine, with the two loads taking turns.
"""

import argparse
import asyncio
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import aiohttp
import psutil
import uvloop

sys.path.insert(0, str(Path(__file__).parents[2]))  # before the package `tests` that a dependency installs

from deploy.local.kafka import EmbeddedBroker
from deploy.local.processes import free_ports
from ingest.bearer import Bearer, mint
from ingest.kafka.admin import ensure_topics
from ingest.kafka.settings import KafkaSettings
from tests.support.model_folder import make_model_folder

ROOT = Path(__file__).parents[2]
SECRET = "a secret of thirty-two characters"
SYSTEM = "You are a careful assistant. " * 30
TOKENS, EVENTS, STREAM_EVENTS = 64, 8, 200
ADDED_GOAL_MS, RATE_GOAL = 10.0, 300.0

PROXY = """
import sys
from pathlib import Path
from pydantic import SecretStr
from ingest.kafka.settings import KafkaSettings
from ingest.service.runner import run_service
from ingest.settings import AuthSettings
from proxy.service import run
from proxy.settings import ProxySettings
port, model, engine, bootstrap, secret = sys.argv[1:]
settings = ProxySettings(port=int(port), model=Path(model), engines=(engine,))
kafka = KafkaSettings(bootstrap_servers=bootstrap)
auth = AuthSettings(secret=SecretStr(secret))
raise SystemExit(run_service("proxy", lambda ctx: run(ctx, settings, kafka, auth), settings, serve_health=False))
"""


class Connection(asyncio.Protocol):
    """One kept-alive HTTP/1.1 connection that sends ready-made requests: as little work as Python allows."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._reply: asyncio.Future[bytes] | None = None
        self._data = b""
        self._length = -1

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._data += data
        if self._length < 0 and (end := self._data.find(b"\r\n\r\n")) >= 0:
            declared = re.search(rb"(?i)content-length: (\d+)", self._data[:end])
            self._length = end + 4 + int(declared[1]) if declared else 0
        whole = len(self._data) >= self._length if self._length > 0 else self._data.endswith(b"0\r\n\r\n")
        if self._length >= 0 and whole and self._reply is not None:
            reply, self._data, self._length = self._data, b"", -1
            self._reply.set_result(reply)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._reply is not None and not self._reply.done():
            self._reply.set_exception(exc or ConnectionResetError("closed before the reply was whole"))

    async def ask(self, request: bytes) -> bytes:
        assert self._transport is not None
        self._reply = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        return await self._reply

    def close(self) -> None:
        assert self._transport is not None
        self._transport.close()


@dataclass
class Load:
    """What came of a stretch of load."""

    seconds: float
    latencies_s: list[float]
    cpu_s: float

    @property
    def rate(self) -> float:
        return len(self.latencies_s) / self.seconds

    def percentile_ms(self, percent: int) -> float:
        return statistics.quantiles(self.latencies_s, n=100)[percent - 1] * 1e3

    @property
    def p50_ms(self) -> float:
        return statistics.median(self.latencies_s) * 1e3


Request = Callable[[int, int], bytes]
"""Worker and number of the request → its bytes."""


async def load(port: int, request: Request, concurrency: int, seconds: float, process: psutil.Process) -> Load:
    """A closed loop: every worker asks again as soon as it is answered."""
    loop = asyncio.get_running_loop()
    latencies: list[float] = []
    before = process.cpu_times()
    started = time.perf_counter()
    end = started + seconds

    async def worker(number: int) -> None:
        _, connection = await loop.create_connection(Connection, "127.0.0.1", port)
        count = 0
        while time.perf_counter() < end:
            asked = time.perf_counter()
            reply = await connection.ask(request(number, count))
            latencies.append(time.perf_counter() - asked)
            assert reply.startswith(b"HTTP/1.1 200"), reply[:500]
            count += 1
        connection.close()

    await asyncio.gather(*(worker(number) for number in range(concurrency)))
    after = process.cpu_times()
    cpu = after.user + after.system - before.user - before.system
    return Load(time.perf_counter() - started, latencies, cpu)


def post(path: str, body: Any, token: str = "") -> bytes:
    payload = json.dumps(body).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\n"
        f"Authorization: Bearer {token}\r\nContent-Length: {len(payload)}\r\n\r\n"
    )
    return head.encode() + payload


def chat(run: str, *, stream: bool) -> Request:
    """A chat completion with a question that was never asked before."""
    tokens = {
        worker: mint(Bearer(rollout_id=f"{run}-{worker}", attempt=1, group_id="g", exp=2**33), SECRET)
        for worker in range(256)
    }

    def request(worker: int, number: int) -> bytes:
        messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": f"Question {number}?"}]
        body = {"model": "policy", "messages": messages, "stream": stream}
        return post("/v1/chat/completions", body, tokens[worker])

    return request


def straight(prompt_tokens: int) -> Request:
    """The same, as the proxy sends it on to the engine."""
    sampling = {"max_tokens": 1024, "temperature": 1.0, "top_p": 1.0, "top_k": -1, "stop_token_ids": [2], "logprobs": 1}
    body = {"model": "policy", "request_id": "r", "token_ids": list(range(3, 3 + prompt_tokens)), "stream": True}
    request = post("/inference/v1/generate", body | {"sampling_params": sampling})
    return lambda _worker, _number: request


class Bench:
    """A broker, an engine and a proxy; `figures` prints."""

    def __init__(self, seconds: float, repeats: int) -> None:
        self.seconds = seconds
        self.repeats = repeats
        self._stack = ExitStack()

    def __enter__(self) -> "Bench":
        home = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-proxy-")))
        self.model = make_model_folder(home / "model")
        broker = EmbeddedBroker(home / "broker", cache=ROOT / ".forgestream" / "kafka")
        self.bootstrap = broker.start()
        self._stack.callback(broker.stop)
        asyncio.run(ensure_topics(KafkaSettings(bootstrap_servers=self.bootstrap)))
        self.log = self._stack.enter_context((home / "proxy.log").open("wb"))
        return self

    def __exit__(self, *_exception: object) -> None:
        self._stack.close()

    def start(self, events: int, tokens: int) -> tuple[int, int, psutil.Process, Callable[[], None]]:
        """An engine and a proxy before it: their ports, the proxy's process, and how to end both."""
        engine_port, proxy_port = free_ports(2)
        engine_options = ["--port", str(engine_port), "--model", str(self.model), "--tokens", str(tokens)]
        engine = subprocess.Popen(
            [sys.executable, "-m", "tests.support.scripted_engine", *engine_options, "--chunk", str(tokens // events)],
            cwd=ROOT,
            stdout=subprocess.DEVNULL,
        )
        engine_url = f"http://127.0.0.1:{engine_port}"
        proxy = subprocess.Popen(
            [sys.executable, "-c", PROXY, str(proxy_port), str(self.model), engine_url, self.bootstrap, SECRET],
            cwd=ROOT,
            stderr=self.log,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
        )

        def end() -> None:
            for process in (proxy, engine):
                process.terminate()
                process.wait(30)

        try:
            _wait_until_ready(proxy_port, proxy)
        except BaseException:
            end()
            raise
        return engine_port, proxy_port, psutil.Process(proxy.pid), end


def _wait_until_ready(port: int, process: subprocess.Popen[bytes]) -> None:
    import urllib.error
    import urllib.request

    deadline = time.monotonic() + 60
    while True:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=5):
                return
        except (urllib.error.URLError, OSError) as error:
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the proxy does not start: {error}") from error
            time.sleep(0.1)


async def phases(port: int) -> dict[str, tuple[float, float]]:
    """Seconds and count of each phase since the proxy started."""
    async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{port}/metrics") as response:
        text = await response.text()
    found = {
        (kind, name): float(value)
        for kind, name, value in re.findall(r'phase_seconds_(sum|count)\{phase="(\w+)"\} (\S+)', text)
    }
    return {name: (found["sum", name], found["count", name]) for kind, name in found if kind == "sum"}


def show(name: str, value: float, unit: str, conditions: str, **against: float | bool | str | None) -> None:
    line = {
        "name": name,
        "value": round(value, 3),
        "unit": unit,
        "peer": None,
        "ratio": None,
        "goal": None,
        "met": None,
    }
    line |= {key: round(item, 3) if isinstance(item, float) else item for key, item in against.items()}
    print(json.dumps(line | {"conditions": conditions}), flush=True)


def median_of(loads: list[Load], figure: Callable[[Load], float]) -> float:
    return statistics.median(map(figure, loads))


async def alternate(bench: Bench, engine: int, proxy: int, process: psutil.Process, stream: bool, concurrency: int):
    """The two loads in turn; the first pair warms up."""
    through, direct = [], []
    for repeat in range(bench.repeats + 1):
        run = f"{stream}-{concurrency}-{repeat}"
        seconds = bench.seconds if repeat else min(1.0, bench.seconds)
        through.append(await load(proxy, chat(run, stream=stream), concurrency, seconds, process))
        direct.append(await load(engine, straight(200), concurrency, seconds, process))
    return through[1:], direct[1:]


async def measure(bench: Bench) -> None:
    machine = (
        f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; {bench.repeats} runs of {bench.seconds} s, medians"
    )
    engine, proxy, process, end = bench.start(EVENTS, TOKENS)
    try:
        work = f"{TOKENS} tokens in {EVENTS} events, prompt of about 300 tokens"
        base = f"one worker, commit before reply, {work}, {machine}"
        before = await phases(proxy)
        through, direct = await alternate(bench, engine, proxy, process, False, 1)
        split = await phases(proxy)
        ours, peer = median_of(through, lambda x: x.p50_ms), median_of(direct, lambda x: x.p50_ms)
        met = ours - peer <= ADDED_GOAL_MS
        where = f"whole replies, {base}"
        show("proxy_added_p50_c1", ours - peer, "ms", where, peer=peer, ratio=ours / peer, goal=ADDED_GOAL_MS, met=met)
        for phase in ("render", "engine", "ack", "total"):
            seconds, count = (
                after - start for after, start in zip(split[phase], before.get(phase, (0.0, 0.0)), strict=True)
            )
            show(f"proxy_{phase}_mean_c1", seconds / count * 1e3, "ms", f"whole replies, {base}")
        for stream in (False, True):
            kind = "streamed replies" if stream else "whole replies"
            through, direct = await alternate(bench, engine, proxy, process, stream, 32)
            rate, peer = median_of(through, lambda x: x.rate), median_of(direct, lambda x: x.rate)
            suffix = "_streamed" if stream else ""
            show(
                f"proxy_rate_c32{suffix}",
                rate,
                "completions/s",
                f"{kind}, {base}",
                peer=peer,
                ratio=rate / peer,
                goal=RATE_GOAL,
                met=rate >= RATE_GOAL,
            )
            show(f"proxy_p99_c32{suffix}", median_of(through, lambda x: x.percentile_ms(99)), "ms", f"{kind}, {base}")
            cpu = median_of(through, lambda x: x.cpu_s / len(x.latencies_s) * 1000)
            show(f"proxy_cpu_c32{suffix}", cpu, "CPU s per 1000 completions", f"{kind}, {base}")
        show("proxy_rss", process.memory_info().rss / 2**20, "MiB", f"after the runs above, {base}")
    finally:
        end()
    engine, proxy, process, end = bench.start(STREAM_EVENTS, STREAM_EVENTS)
    try:
        base = f"one worker, commit before reply, {STREAM_EVENTS} tokens in {STREAM_EVENTS} events, unpaced, {machine}"
        for concurrency in (1, 32):
            through, direct = await alternate(bench, engine, proxy, process, True, concurrency)
            rate, peer = median_of(through, lambda x: x.rate), median_of(direct, lambda x: x.rate)
            show(f"proxy_stream_rate_c{concurrency}", rate, "streams/s", base, peer=peer, ratio=rate / peer)
            cpu = median_of(through, lambda x: x.cpu_s / len(x.latencies_s) * 1000)
            show(f"proxy_stream_cpu_c{concurrency}", cpu, "CPU s per 1000 streams", base)
    finally:
        end()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=4.0, help="length of one run")
    parser.add_argument("--repeats", type=int, default=3, help="runs a figure")
    given = parser.parse_args()
    with Bench(given.seconds, given.repeats) as bench:
        uvloop.run(measure(bench))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
