"""Speaks the engine contract from outside: what the follower and the service need, for either engine."""

import asyncio
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import aiohttp

from learner.serving.errors import EngineUnreachable, WeightsRefused

_RESUME_PAUSES_S = (0.0, 0.1, 0.5, 1.0, 2.0, 5.0, 10.0, 10.0)
_METRIC_NAMES = (
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
    "vllm:generation_tokens_total",
    "forgestream_engine_busy_seconds_total",
)


class EngineClient:
    """One engine at `url`. The session should have `TCPConnector(force_close=True)`: vLLM hangs up after its errors."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self._session = session
        self._url = url

    async def weight_version(self) -> str:
        """The engine's name for its weights.

        Raises:
            EngineUnreachable: no answer, or an error.
        """
        return (await self._get("/weight_info"))["weight_version"]

    async def name_weights(self, name: str) -> None:
        """Gives the weights in use a name.

        Raises:
            EngineUnreachable: no answer, or an error.
        """
        await self._post("/update_weight_version", {"new_version": name})

    async def load(self, folder: Path, name: str) -> None:
        """Loads a version: pause, update, resume. Requests under way go on with the new weights.

        Whatever happens, the engine is told to resume.

        Raises:
            WeightsRefused: the weights do not fit; the engine serves what it did before.
            EngineUnreachable: no answer, or an error elsewhere.
        """
        await self._post("/init_weight_transfer_engine", {"init_info": {}})
        try:
            await self._post("/pause?mode=keep")
            await self._start_update()
            try:
                await self._post("/update_weights", {"update_info": {"path": str(folder)}})
            except EngineUnreachable as error:
                if error.status is None:
                    raise
                raise WeightsRefused(str(error)) from error
            await self._post("/finish_weight_update", {"weight_version": name})
        finally:
            await self.resume()

    async def resume(self) -> None:
        """Lets requests go on; tries again for half a minute, since a lost resume is a standstill.

        Raises:
            EngineUnreachable: no answer all that time.
        """
        problem: EngineUnreachable | None = None
        for pause_s in _RESUME_PAUSES_S:
            await asyncio.sleep(pause_s)
            try:
                await self._post("/resume")
            except EngineUnreachable as error:
                problem = error
            else:
                return
        raise problem or EngineUnreachable(f"the engine at {self._url} does not resume")

    async def metrics(self) -> dict[str, float]:
        """The figures named in this module that the engine has, by name without labels.

        Raises:
            EngineUnreachable: no answer, or an error.
        """
        return read_metrics((await self._text("GET", "/metrics")).splitlines(), _METRIC_NAMES)

    async def _start_update(self) -> None:
        try:
            await self._post("/start_weight_update")
        except EngineUnreachable:
            # Left open by a follower that died half-way: close it, nothing runs meanwhile, and begin again.
            await self._post("/finish_weight_update", {})
            await self._post("/start_weight_update")

    async def _get(self, path: str) -> dict[str, Any]:
        return json.loads(await self._text("GET", path))

    async def _post(self, path: str, body: dict[str, Any] | None = None) -> None:
        await self._text("POST", path, body)

    async def _text(self, method: str, path: str, body: dict[str, Any] | None = None) -> str:
        try:
            async with self._session.request(method, self._url + path, json=body) as response:
                text = await response.text()
        except (aiohttp.ClientError, TimeoutError) as error:
            raise EngineUnreachable(f"the engine at {self._url} does not answer {path}: {error!r}") from error
        if response.status != 200:
            message = f"the engine at {self._url} answers {response.status} to {path}: {text[:500]}"
            raise EngineUnreachable(message, status=response.status)
        return text


def read_metrics(lines: Iterable[str], names: Iterable[str]) -> dict[str, float]:
    """Values out of Prometheus text, each the sum over its labels."""
    wanted = set(names)
    values: dict[str, float] = {}
    for line in lines:
        name = line.split("{", 1)[0].split(" ", 1)[0]
        if name in wanted:
            values[name] = values.get(name, 0.0) + float(line.rsplit(" ", 1)[1])
    return values
