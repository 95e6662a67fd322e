"""The services, and how each is run in this process. Their modules are imported only when they run."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from deploy.config import Settings
from deploy.secret import with_secret
from ingest.service.context import ServiceContext
from ingest.service.runner import run_service

Main = Callable[[ServiceContext], Awaitable[None]]


@dataclass(frozen=True)
class Service:
    """One service. `main` imports it and binds its settings."""

    main: Callable[[Settings], Main]
    serves_health: bool = True
    """Whether the skeleton answers `/readyz`; the others do so beside their own API."""


def run_named(name: str, settings: Settings) -> int:
    """Run a service until it is told to stop; its exit status."""
    service = SERVICES[name]
    return run_service(name, service.main(settings), getattr(settings, name), serve_health=service.serves_health)


def _proxy(settings: Settings) -> Main:
    from proxy.service import run

    auth = with_secret(settings.auth, settings.state)
    return lambda ctx: run(ctx, settings.proxy, settings.kafka, auth)


def _launcher(settings: Settings) -> Main:
    from rollouts.service import run

    auth = with_secret(settings.auth, settings.state)
    return lambda ctx: run(ctx, settings.launcher, settings.kafka, auth)


def _assembler(settings: Settings) -> Main:
    from ingest.assembler.service import run

    return lambda ctx: run(ctx, settings.assembler, settings.kafka)


def _archiver(settings: Settings) -> Main:
    from ingest.archive.service import run

    return lambda ctx: run(ctx, settings.archiver, settings.kafka)


def _learner(settings: Settings) -> Main:
    from learner.service import run

    return lambda ctx: run(ctx, settings.learner, settings.kafka)


def _engine(settings: Settings) -> Main:
    from learner.serving.service import run

    return lambda ctx: run(ctx, settings.engine, settings.kafka)


SERVICES = {
    "proxy": Service(_proxy, serves_health=False),
    "launcher": Service(_launcher),
    "assembler": Service(_assembler),
    "archiver": Service(_archiver),
    "learner": Service(_learner),
    "engine": Service(_engine, serves_health=False),
}
