"""Reads policies.v1 and loads each new version into the engine beside it.

The topic is compacted: reading it from its first record gives the newest version of every policy. Several versions
announced at once are one load, of the newest. Versions only grow.
"""

import asyncio
import time
from pathlib import Path
from urllib.parse import unquote, urlsplit

from structlog.typing import FilteringBoundLogger

from ingest.errors import IngestError
from ingest.kafka.consumer import EARLIEST, RecordConsumer
from ingest.kafka.settings import KafkaSettings
from learner.serving.client import EngineClient
from learner.serving.errors import EngineUnreachable, WeightsRefused
from learner.serving.versions import parse_weight_version, weight_version
from learner.weights import WeightsError, weights_digest
from schemas import Policy
from schemas.topics import POLICIES

_BACKOFF_S = (0.5, 1.0, 2.0, 5.0, 10.0, 30.0)


class Follower:
    """Keeps one engine on the newest version of one policy."""

    def __init__(self, engine: EngineClient, policy_id: str, log: FilteringBoundLogger) -> None:
        self.version = -1
        """The version that the engine serves; -1 before it has been asked."""
        self.ready = asyncio.Event()
        """Set once the engine serves a version with a name."""
        self._engine = engine
        self._policy_id = policy_id
        self._log = log
        self._wanted: Policy | None = None
        self._failures = 0
        self._not_before = 0.0

    async def follow(self, kafka: KafkaSettings) -> None:
        """Runs until it is cancelled. Trouble with Kafka or the engine is logged and tried again."""
        failures = 0
        while True:
            began = time.monotonic()
            try:
                await self._begin()
                await self._read(kafka)
            except (IngestError, EngineUnreachable) as error:
                failures = 0 if time.monotonic() - began > _BACKOFF_S[-1] else failures
                pause_s = _BACKOFF_S[min(failures, len(_BACKOFF_S) - 1)]
                failures += 1
                self._log.warning("following the policy is interrupted", error=str(error), next_try_s=pause_s)
                await asyncio.sleep(pause_s)

    async def _begin(self) -> None:
        await self._engine.resume()  # an earlier follower may have died between pause and resume
        served = parse_weight_version(await self._engine.weight_version(), self._policy_id)
        self.version = -1 if served is None else served

    async def _read(self, kafka: KafkaSettings) -> None:
        partitions = [(POLICIES, number) for number in range(POLICIES.partitions)]
        # Many engines read this topic; one copy of a bad record in its dead letters is the learner's business.
        start = dict.fromkeys(partitions, EARLIEST)
        async with RecordConsumer.assign(kafka, start, write_dead_letters=False) as consumer:
            ends = await consumer.end_offsets(partitions)
            while True:
                self._note([received.record for received in await consumer.poll()])
                positions = consumer.positions()
                if not self.ready.is_set() and any(positions[key] < end for key, end in ends.items()):
                    continue  # do not load a version that a newer one is about to replace
                await self._catch_up()
                if not self.ready.is_set() and (self._wanted is None or self.version >= 0):
                    await self._settle()

    def _note(self, policies: list[Policy]) -> None:
        for policy in policies:
            newest = self._wanted.version if self._wanted else self.version
            if policy.policy_id == self._policy_id and policy.version > newest:
                self._wanted, self._failures, self._not_before = policy, 0, 0.0

    async def _catch_up(self) -> None:
        """Loads the wanted version, if there is one and it is time."""
        policy = self._wanted
        if policy is None or time.monotonic() < self._not_before:
            return
        try:
            await self._load(policy)
        except (WeightsError, WeightsRefused) as error:
            self._log.error("policy version skipped", version=policy.version, error=str(error))
            self._wanted = None
        except EngineUnreachable as error:
            pause_s = _BACKOFF_S[min(self._failures, len(_BACKOFF_S) - 1)]
            self._failures += 1
            self._not_before = time.monotonic() + pause_s
            self._log.warning("policy version not loaded", version=policy.version, error=str(error), next_try_s=pause_s)
        else:
            self.version, self._wanted = policy.version, None

    async def _load(self, policy: Policy) -> None:
        began = time.monotonic()
        folder = weights_folder(policy)
        digest = await asyncio.to_thread(weights_digest, folder)
        if digest != policy.weights_digest:
            raise WeightsError(
                f"weights in {folder} have digest {digest[:12]}…, announced {policy.weights_digest[:12]}…"
            )
        verified = time.monotonic()
        await self._engine.load(folder, weight_version(self._policy_id, policy.version))
        self._log.info(
            "policy version loaded",
            version=policy.version,
            verify_s=round(verified - began, 3),
            swap_s=round(time.monotonic() - verified, 3),
        )

    async def _settle(self) -> None:
        """After the first look at the topic: the engine serves the newest version, or the base model by its name."""
        if self.version < 0:
            await self._engine.name_weights(weight_version(self._policy_id, 0))
            self.version = 0
        self.ready.set()
        self._log.info("serving", version=self.version)


def weights_folder(policy: Policy) -> Path:
    """Where the weights of a policy version lie.

    Raises:
        WeightsError: not as whole safetensors files in a local folder.
    """
    parts = urlsplit(policy.weights_uri)
    if parts.scheme != "file" or parts.netloc not in ("", "localhost") or not parts.path:
        raise WeightsError(f"weights URI {policy.weights_uri!r} is no file:// folder of this machine")
    if policy.format != "safetensors":
        raise WeightsError(f"weights format {policy.format!r} is not served; announce full weights as safetensors")
    return Path(unquote(parts.path))
