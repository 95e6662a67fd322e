"""The agent programs that attempt tasks, one pack each."""

from collections.abc import Mapping

from rollouts.harnesses.base import HarnessPack
from rollouts.harnesses.pi.pack import PiPack
from rollouts.harnesses.react.pack import ReactPack

PACKS: Mapping[str, HarnessPack] = {pack.name: pack for pack in (ReactPack(), PiPack())}
"""All packs by name."""
