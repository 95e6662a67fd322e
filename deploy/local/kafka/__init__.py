"""A real Apache Kafka broker (KRaft, one node) as a child process: the default where no cluster is configured."""

from deploy.local.kafka.broker import EmbeddedBroker, RunningBroker, find_running, stop_running
from deploy.local.kafka.install import install

__all__ = ["EmbeddedBroker", "RunningBroker", "find_running", "install", "stop_running"]
