"""`/livez` and `/readyz` on vLLM's own port, so that an engine is asked like every other service.

Protocol of an endpoint plug-in: `vllm.plugins.endpoint_plugins.interface`, vLLM 0.32.
"""
# pyright: reportMissingImports=false

import os
from argparse import Namespace
from typing import Any

from fastapi import FastAPI
from fastapi.responses import JSONResponse

UNSET = "default"
"""vLLM's label of weights that nobody named."""


class HealthRoutes:
    """Ready as soon as the follower has named the weights: no token may carry a version that nobody knows."""

    name = "forgestream"
    required_tasks = None

    def __init__(self) -> None:
        self._engine: Any = None
        self._ready = False

    def attach_router(self, app: FastAPI) -> None:
        """Adds the two routes."""
        app.add_api_route("/livez", self._livez, methods=["GET"])
        app.add_api_route("/readyz", self._readyz, methods=["GET"])

    async def init_state(self, engine_client: Any, state: Any, args: Namespace) -> None:
        """Called when the engine is up."""
        self._engine = engine_client

    async def _livez(self) -> JSONResponse:
        return JSONResponse({"service": "engine", "pid": os.getppid()})

    async def _readyz(self) -> JSONResponse:
        # Asked once only: the engine answers between two steps, which may take seconds under load.
        if not self._ready and self._engine is not None:
            self._ready = await self._engine.get_weight_version() != UNSET
        reason = None if self._ready else "no weight version yet"
        body = {"service": "engine", "pid": os.getppid(), "ready": self._ready, "reason": reason}
        return JSONResponse(body, status_code=200 if self._ready else 503)
