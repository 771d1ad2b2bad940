"""Who is registered at a ResourceManager, and what its listeners hear of it."""

from __future__ import annotations

from typing import cast

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from runtime.ids import InstanceID, ResourceID
from runtime.protocol.diagnostics import TaskManagerMetrics
from runtime.protocol.messages import TaskExecutorHeartbeat, TaskExecutorRegistration
from runtime.protocol.slots import SlotReport
from runtime.protocol.task_executor import TaskExecutorGateway
from runtime.resourcemanager.instance_manager import Instance, InstanceManager

GATEWAY = cast("TaskExecutorGateway", object())


def registration(name: str) -> TaskExecutorRegistration:
    return TaskExecutorRegistration(ResourceID(name), f"akka.tcp://s@h:1/user/{name}", 1, 2, "4", "21", "local", 2, 3)


class Recorder:
    def __init__(self) -> None:
        self.heard: list[str] = []

    def new_instance_available(self, instance: Instance) -> None:
        self.heard.append(f"+{instance.resource_id}")

    def instance_died(self, instance: Instance, reason: str) -> None:
        self.heard.append(f"-{instance.resource_id}: {reason}")


def test_all_listeners_hear_of_who_comes_and_goes() -> None:
    manager, first, second = InstanceManager(), Recorder(), Recorder()
    manager.add_instance_listener(first)
    manager.add_instance_listener(second)
    one = manager.register(InstanceID.random(), registration("tm-1"), GATEWAY, 5)
    assert (one.registered_ms, one.last_heartbeat_ms) == (5, 5)
    again = manager.register(InstanceID.random(), registration("tm-1"), GATEWAY, 6)
    manager.unregister(one.instance_id, "late")
    assert manager.find(ResourceID("tm-1")) is again
    manager.unregister(again.instance_id, "no heartbeat")
    manager.unregister(again.instance_id, "told twice")
    assert first.heard == ["+tm-1", "-tm-1: it registered again", "+tm-1", "-tm-1: no heartbeat"]
    assert second.heard == first.heard


def test_a_heartbeat_is_kept_with_its_instance_alone() -> None:
    manager = InstanceManager()
    one = manager.register(InstanceID.random(), registration("tm-1"), GATEWAY, 5)
    metrics = TaskManagerMetrics(1, 2.0, 3, 4, 5, 6.0, 7)
    manager.heard(InstanceID.random(), TaskExecutorHeartbeat(SlotReport(()), metrics), 8)
    assert (one.last_heartbeat_ms, one.metrics) == (5, None)
    manager.heard(one.instance_id, TaskExecutorHeartbeat(SlotReport(()), metrics), 9)
    assert (one.last_heartbeat_ms, one.metrics) == (9, metrics)


def test_a_listener_may_drop_what_has_just_come() -> None:
    manager, recorder = InstanceManager(), Recorder()

    class Refusing:
        def new_instance_available(self, instance: Instance) -> None:
            manager.unregister(instance.instance_id, "not wanted")

        def instance_died(self, instance: Instance, reason: str) -> None:
            pass

    manager.add_instance_listener(recorder)
    manager.add_instance_listener(Refusing())
    manager.register(InstanceID.random(), registration("tm-1"), GATEWAY, 1)
    assert recorder.heard == ["+tm-1", "-tm-1: not wanted"]
    assert list(manager) == []


class InstanceMachine(RuleBasedStateMachine):
    """Listeners that follow what they are told know exactly who is registered."""

    def __init__(self) -> None:
        super().__init__()
        self.manager = InstanceManager()
        self.manager.add_instance_listener(self)
        self.known: dict[InstanceID, str] = {}
        self.ended: list[InstanceID] = []

    def new_instance_available(self, instance: Instance) -> None:
        assert instance.instance_id not in self.known
        self.known[instance.instance_id] = instance.resource_id

    def instance_died(self, instance: Instance, reason: str) -> None:
        del self.known[instance.instance_id]
        self.ended.append(instance.instance_id)

    @rule(name=st.sampled_from(["tm-1", "tm-2", "tm-3"]))
    def register(self, name: str) -> None:
        self.manager.register(InstanceID.random(), registration(name), GATEWAY, 1)

    @rule(data=st.data())
    def unregister(self, data: st.DataObject) -> None:
        self.manager.unregister(data.draw(st.sampled_from([*self.known, *self.ended, InstanceID("0" * 32)])), "gone")

    @invariant()
    def the_book_and_its_listeners_agree(self) -> None:
        instances = list(self.manager)
        assert {item.instance_id: item.resource_id for item in instances} == self.known
        names = [item.resource_id for item in instances]
        assert names == sorted(set(names)), "one registration for each name"


InstanceMachine.TestCase.settings = settings(max_examples=50, stateful_step_count=30, deadline=None)
TestInstanceModel = InstanceMachine.TestCase
