"""The registered TaskExecutors, and who is told when one comes or goes (Flink's `InstanceManager`).

Pure; times are milliseconds since the epoch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from runtime.ids import InstanceID, ResourceID
from runtime.protocol.diagnostics import TaskManagerMetrics
from runtime.protocol.messages import TaskExecutorHeartbeat, TaskExecutorRegistration
from runtime.protocol.task_executor import TaskExecutorGateway


@dataclass(slots=True)
class Instance:
    """One registration of a TaskExecutor.

    Args:
        instance_id: of this registration; the same process has a new one when it registers anew.
        registration: what it said of itself.
        gateway: asks it.
        registered_ms: when it registered.
        last_heartbeat_ms: when it was last heard of.
        metrics: what it took of its machine then; None before its first heartbeat.
    """

    instance_id: InstanceID
    registration: TaskExecutorRegistration
    gateway: TaskExecutorGateway
    registered_ms: int
    last_heartbeat_ms: int
    metrics: TaskManagerMetrics | None = None

    @property
    def resource_id(self) -> ResourceID:
        """The TaskExecutor's name, which outlives its registrations."""
        return self.registration.resource_id


class InstanceListener(Protocol):
    """Told of every registration's beginning and end, once each (Flink's `InstanceListener`)."""

    def new_instance_available(self, instance: Instance) -> None:
        """A TaskExecutor has registered."""

    def instance_died(self, instance: Instance, reason: str) -> None:
        """A registration has ended: the TaskExecutor is gone, or has registered anew."""


class InstanceManager:
    """The book of instances. Listeners are told in the order in which they were added, while the book is up to date."""

    def __init__(self) -> None:
        self._instances: dict[InstanceID, Instance] = {}
        self._by_name: dict[ResourceID, Instance] = {}
        self._listeners: list[InstanceListener] = []

    def __iter__(self) -> Iterator[Instance]:
        return iter(sorted(self._instances.values(), key=lambda instance: instance.resource_id))

    def add_instance_listener(self, listener: InstanceListener) -> None:
        """Tell *listener* of what comes and goes from now on."""
        self._listeners.append(listener)

    def register(
        self,
        instance_id: InstanceID,
        registration: TaskExecutorRegistration,
        gateway: TaskExecutorGateway,
        now_ms: int,
    ) -> Instance:
        """Add a TaskExecutor under a new id; an earlier registration of the same name ends."""
        former = self.find(registration.resource_id)
        if former is not None:
            self.unregister(former.instance_id, "it registered anew")
        instance = Instance(instance_id, registration, gateway, now_ms, now_ms)
        self._instances[instance.instance_id] = self._by_name[instance.resource_id] = instance
        for listener in self._listeners:
            listener.new_instance_available(instance)
        return instance

    def unregister(self, instance_id: InstanceID, reason: str) -> None:
        """A TaskExecutor is gone; no error when it was not registered."""
        instance = self._instances.pop(instance_id, None)
        if instance is not None:
            del self._by_name[instance.resource_id]
            for listener in self._listeners:
                listener.instance_died(instance, reason)

    def get(self, instance_id: InstanceID) -> Instance | None:
        """The registration of that id, unless it has ended."""
        return self._instances.get(instance_id)

    def find(self, resource_id: ResourceID) -> Instance | None:
        """The registration of the TaskExecutor of that name."""
        return self._by_name.get(resource_id)

    def heard(self, instance_id: InstanceID, heartbeat: TaskExecutorHeartbeat, now_ms: int) -> None:
        """A TaskExecutor gave a sign of life; that of an ended registration is ignored."""
        instance = self._instances.get(instance_id)
        if instance is not None:
            instance.last_heartbeat_ms = now_ms
            instance.metrics = heartbeat.metrics

    def clear(self) -> None:
        """Forget all, and tell nobody: this ResourceManager does not lead any more."""
        self._instances.clear()
        self._by_name.clear()
