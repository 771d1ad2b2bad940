"""The registered TaskExecutors, with listeners for each that comes or goes (Flink's `InstanceManager`).

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
        instance_id: of this registration; the same process gets a new one when it registers again.
        registration: the TaskExecutor's description of itself.
        gateway: to the TaskExecutor.
        registered_ms: when it registered.
        last_heartbeat_ms: when its last heartbeat came.
        metrics: its use of the machine at that time; None before its first heartbeat.
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
    """Listener to the beginning and the end of each registration, once each (Flink's `InstanceListener`)."""

    def new_instance_available(self, instance: Instance) -> None:
        """Handle a new registration."""

    def instance_died(self, instance: Instance, reason: str) -> None:
        """Handle the end of a registration: the TaskExecutor is lost, or has registered again."""


class InstanceManager:
    """The state of all registrations. It calls listeners after each change, in the order in which they were added."""

    def __init__(self) -> None:
        self._instances: dict[InstanceID, Instance] = {}
        self._by_name: dict[ResourceID, Instance] = {}
        self._listeners: list[InstanceListener] = []

    def __iter__(self) -> Iterator[Instance]:
        return iter(sorted(self._instances.values(), key=lambda instance: instance.resource_id))

    def add_instance_listener(self, listener: InstanceListener) -> None:
        """Call *listener* for every later change."""
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
            self.unregister(former.instance_id, "it registered again")
        instance = Instance(instance_id, registration, gateway, now_ms, now_ms)
        self._instances[instance.instance_id] = self._by_name[instance.resource_id] = instance
        for listener in self._listeners:
            listener.new_instance_available(instance)
        return instance

    def unregister(self, instance_id: InstanceID, reason: str) -> None:
        """Remove a TaskExecutor; do nothing if it is not registered."""
        instance = self._instances.pop(instance_id, None)
        if instance is not None:
            del self._by_name[instance.resource_id]
            for listener in self._listeners:
                listener.instance_died(instance, reason)

    def get(self, instance_id: InstanceID) -> Instance | None:
        """Return the registration of that id; None if it has ended."""
        return self._instances.get(instance_id)

    def find(self, resource_id: ResourceID) -> Instance | None:
        """Return the registration of the TaskExecutor of that name; None if there is none."""
        return self._by_name.get(resource_id)

    def heard(self, instance_id: InstanceID, heartbeat: TaskExecutorHeartbeat, now_ms: int) -> None:
        """Note a heartbeat of a TaskExecutor; ignore that of an ended registration."""
        instance = self._instances.get(instance_id)
        if instance is not None:
            instance.last_heartbeat_ms = now_ms
            instance.metrics = heartbeat.metrics

    def clear(self) -> None:
        """Drop all without calling listeners: this ResourceManager does not lead any more."""
        self._instances.clear()
        self._by_name.clear()
