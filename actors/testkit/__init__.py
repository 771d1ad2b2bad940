"""Test kit for actors: a system in one thread under virtual time, a network in memory, and probes for any system."""

from actors.testkit.deterministic import DeterministicSystem, MemoryNetwork, VirtualLoop
from actors.testkit.probe import TestProbe

__all__ = ["DeterministicSystem", "MemoryNetwork", "TestProbe", "VirtualLoop"]
