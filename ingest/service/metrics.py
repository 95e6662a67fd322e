"""Prometheus text of a registry, as `/metrics` answers it."""

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4


def new_registry() -> CollectorRegistry:
    """A registry of its own for one service, with memory, CPU and descriptors of the process in it."""
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    return registry


def exposition(registry: CollectorRegistry) -> tuple[bytes, str]:
    """The metrics of a registry, and their content type."""
    return generate_latest(registry), CONTENT_TYPE_PLAIN_0_0_4
