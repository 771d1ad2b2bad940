"""Faults as values: a plan of faults is a list that can be printed, shrunk and run again.

    Fault(3.25, "kill", ("contender1",))

`FaultPlan` draws plans for a workload: which kinds, how often, and against which hosts and processes.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tests.simulation.disk import Loss

if TYPE_CHECKING:
    from tests.simulation.world import World


@dataclass(frozen=True)
class Fault:
    """One fault.

    Args:
        at_s: when, in virtual seconds.
        kind: one of `KINDS`.
        args: its arguments: names of hosts and processes, durations in seconds.
    """

    at_s: float
    kind: str
    args: tuple[Any, ...] = ()

    def apply(self, world: World) -> bool:
        """Let it happen; return whether it could."""
        return KINDS[self.kind](world, *self.args) is not False

    def __repr__(self) -> str:
        return f"Fault({self.at_s!r}, {self.kind!r}, {self.args!r})"


# ------------------------------------------------------------------ processes


def _kill(world: World, name: str) -> bool:
    process = world.find(name)
    if process is None:
        return False
    process.kill()
    return True


def _kill_at_effect(world: World, name: str, count: int) -> bool:
    process = world.find(name)
    if process is None:
        return False
    process.kill_at_effect(count)
    return True


def _stall_at_effect(world: World, name: str, count: int, seconds: float) -> bool:
    process = world.find(name)
    if process is None:
        return False
    process.stall_at_effect(count, seconds)
    return True


def _freeze(world: World, name: str, seconds: float) -> bool:
    process = world.find(name)
    if process is None or process.frozen:
        return False
    process.freeze()
    world.kernel.after(seconds, process.thaw)
    return True


# ------------------------------------------------------------------ hosts


def _suspend(world: World, name: str, seconds: float) -> bool:
    host = world.kernel.hosts[name]
    if not host.up or host.suspended:
        return False
    host.suspend()
    world.kernel.after(seconds, host.resume)
    return True


def _crash(world: World, name: str, seconds: float) -> bool:
    host = world.kernel.hosts[name]
    if not host.up:
        return False
    host.crash()

    def boot() -> None:
        if not host.up:
            host.boot()
            world.network.host_is_up(host)

    world.kernel.after(seconds, boot)
    return True


def _jump(world: World, name: str, seconds: float) -> None:
    world.kernel.hosts[name].jump(seconds)


# ------------------------------------------------------------------ network


def _partition(world: World, one: str, other: str, seconds: float, one_way: bool = False) -> bool:
    hosts = world.kernel.hosts
    links = [world.network.link(hosts[one], hosts[other])]
    if not one_way:
        links.append(world.network.link(hosts[other], hosts[one]))
    links = [link for link in links if not link.blocked]
    for link in links:
        link.block()
        world.kernel.after(seconds, lambda link=link: link.unblock() if link.blocked else None)
    return bool(links)


def _isolate(world: World, name: str, seconds: float) -> bool:
    others = [other for other in world.kernel.hosts if other != name]
    parted = [_partition(world, name, other, seconds) for other in others]
    return any(parted)


def _slow(world: World, one: str, other: str, delay_s: float, seconds: float) -> None:
    hosts = world.kernel.hosts
    link = world.network.link(hosts[one], hosts[other])
    link.slow_s = delay_s
    world.kernel.after(seconds, setattr, link, "slow_s", 0.0)


def _choose(world: World, where: float) -> Any:
    connections = [
        one for one in world.network.connections if not one.is_cut and one.hosts[0] is not one.hosts[1]
    ] or list(world.network.connections)
    return connections[int(where * len(connections))] if connections else None


def _reset(world: World, where: float) -> bool:
    connection = _choose(world, where)
    if connection is None:
        return False
    world.network.reset(connection)
    return True


def _cut(world: World, where: float) -> bool:
    connection = _choose(world, where)
    if connection is None:
        return False
    world.network.cut(connection)
    return True


def _break_after(world: World, count: int) -> None:
    world.network.break_after(count)


# ------------------------------------------------------------------ redis


def _redis_kill(world: World, seconds: float) -> bool:
    if world.redis is None or not world.redis.master.up:
        return False
    world.redis.kill_and_restart(seconds)
    return True


def _redis_freeze(world: World, seconds: float) -> bool:
    if world.redis is None or not world.redis.master.up or world.redis.master.frozen:
        return False
    master = world.redis.master
    master.freeze()
    world.kernel.after(seconds, master.thaw)
    return True


def _redis_slow(world: World, delay_s: float, seconds: float) -> bool:
    if world.redis is None:
        return False
    master = world.redis.master
    master.slow_s = delay_s
    world.kernel.after(seconds, setattr, master, "slow_s", 0.0)
    return True


def _redis_fail_over(world: World, lag_s: float, seconds: float) -> bool:
    if world.redis is None or not world.redis.master.up:
        return False
    world.redis.fail_over(lag_s, seconds)
    return True


# ------------------------------------------------------------------ disks


def _disk_crash(world: World, name: str, loss: str) -> None:
    assert world.files is not None
    world.files.crashed(world.disks[name], Loss(loss))


def _disk_full(world: World, name: str, seconds: float) -> None:
    world.disks[name].is_full = True
    world.kernel.after(seconds, setattr, world.disks[name], "is_full", False)


def _disk_errors(world: World, name: str, kind: str, rate: float, seconds: float) -> None:
    world.disks[name].error_rates[kind] = rate
    world.kernel.after(seconds, world.disks[name].error_rates.pop, kind, None)


def _disk_slow(world: World, name: str, delay_s: float, seconds: float) -> None:
    world.disk_delays[name] = delay_s
    world.kernel.after(seconds, world.disk_delays.pop, name, None)


KINDS: dict[str, Callable[..., object]] = {
    "kill": _kill,
    "kill_at_effect": _kill_at_effect,
    "stall_at_effect": _stall_at_effect,
    "freeze": _freeze,
    "suspend": _suspend,
    "crash": _crash,
    "jump": _jump,
    "partition": _partition,
    "isolate": _isolate,
    "slow": _slow,
    "reset": _reset,
    "cut": _cut,
    "break_after": _break_after,
    "redis_kill": _redis_kill,
    "redis_freeze": _redis_freeze,
    "redis_slow": _redis_slow,
    "redis_fail_over": _redis_fail_over,
    "disk_crash": _disk_crash,
    "disk_full": _disk_full,
    "disk_errors": _disk_errors,
    "disk_slow": _disk_slow,
}
COMMON_KINDS = tuple(KINDS)
"""The kinds that `FaultPlan` draws; workloads add their own to `KINDS`."""


def add_kinds(kinds: Mapping[str, Callable[..., object]]) -> None:
    """Add the faults of a workload; all workloads share the names.

    Raises:
        ValueError: a name is taken.
    """
    if taken := sorted(KINDS.keys() & kinds.keys()):
        raise ValueError(f"another fault has the name {taken[0]!r}")
    KINDS.update(kinds)


class FaultPlan:
    """Draws the faults of one run.

    Args:
        hosts: names of the hosts that faults may hit.
        processes: names of the processes that faults may hit.
        weights: how often each kind happens, relative to the others.
        rate: mean number of faults per virtual second.
        until_s: end of the faults.
        longest_s: longest duration of a lasting fault.
        jumps: hosts whose wall clocks may jump.
        disks: names of the disks that faults may hit.
        all_hosts: names of all hosts, for partitions; by default *hosts*.
    """

    def __init__(
        self,
        *,
        hosts: Sequence[str],
        processes: Sequence[str],
        weights: dict[str, float],
        rate: float,
        until_s: float,
        longest_s: float,
        jumps: Sequence[str] = (),
        disks: Sequence[str] = (),
        all_hosts: Sequence[str] = (),
    ) -> None:
        self._hosts = hosts
        self._processes = processes
        self._weights = weights
        self._rate = rate
        self._until_s = until_s
        self._longest_s = longest_s
        self._jumps = jumps
        self._disks = disks
        self._all_hosts = all_hosts or hosts

    def draw(self, rng: random.Random) -> list[Fault]:
        """Return a plan. Each run prefers some kinds over others, and has its own rate."""
        kinds = sorted(self._weights)
        weights = [self._weights[kind] * rng.choice((0.0, 0.3, 1.0, 1.0, 4.0)) for kind in kinds]
        if not any(weights):
            weights = [self._weights[kind] for kind in kinds]
        rate = self._rate * rng.choice((0.2, 0.6, 1.0, 1.0, 2.0))
        faults = []
        at = 0.5 + rng.random()
        while at < self._until_s:
            kind = rng.choices(kinds, weights)[0]
            faults.append(Fault(round(at, 6), kind, self._arguments(kind, rng, self._until_s - at)))
            at += -_log(1.0 - rng.random()) / rate
        return faults

    def _arguments(self, kind: str, rng: random.Random, left_s: float) -> tuple[Any, ...]:
        # Short ones are as frequent as long ones.
        duration = round(min(left_s, 0.01 * (self._longest_s / 0.01) ** rng.random()), 6)
        match kind:
            case "kill":
                return (rng.choice(self._processes),)
            case "kill_at_effect":
                return rng.choice(self._processes), rng.randrange(1, 40)
            case "stall_at_effect":
                return rng.choice(self._processes), rng.randrange(1, 40), duration
            case "freeze":
                return rng.choice(self._processes), duration
            case "suspend" | "crash" | "isolate":
                return rng.choice(self._hosts), duration
            case "jump":
                return rng.choice(self._jumps), round(rng.uniform(-3600.0, 3600.0), 3)
            case "partition":
                one, other = rng.sample(list(self._all_hosts), 2)
                return one, other, duration, rng.random() < 0.5
            case "slow":
                one, other = rng.sample(list(self._all_hosts), 2)
                return one, other, round(0.01 * 300 ** rng.random(), 4), duration
            case "reset" | "cut":
                return (round(rng.random(), 6),)
            case "break_after":
                return (rng.randrange(1, 30),)
            case "redis_kill" | "redis_freeze":
                return (duration,)
            case "redis_slow":
                return round(0.001 * 200 ** rng.random(), 4), duration
            case "redis_fail_over":
                return round(rng.random() * 1.2, 3), duration
            case "disk_crash":
                return rng.choice(self._disks), rng.choice([loss.value for loss in Loss])
            case "disk_full":
                return rng.choice(self._disks), duration
            case "disk_slow":
                return rng.choice(self._disks), round(0.001 * 300 ** rng.random(), 4), duration
            case "disk_errors":
                return rng.choice(self._disks), rng.choice(("write", "sync")), round(rng.random() ** 2, 3), duration
        raise ValueError(f"unknown fault {kind!r}")


def _log(value: float) -> float:
    import math

    return math.log(value)
