"""Testing actors: a system in one thread under virtual time, a network in memory, and probes for any system."""

from actors.testkit.deterministic import DeterministicSystem
from actors.testkit.network import MemoryNetwork
from actors.testkit.probe import TestProbe
from actors.testkit.virtual_loop import VirtualLoop

__all__ = ["DeterministicSystem", "MemoryNetwork", "TestProbe", "VirtualLoop"]
