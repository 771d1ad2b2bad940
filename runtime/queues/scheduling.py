"""The order in which waiting slot requests are served, and what each waits for. Pure: times are arguments.

The order, first the queues, then the users of a queue, then the requests of a user:

1. Queues of a higher priority first. Limit their slots: otherwise they can hold back the others for ever.
2. Among queues of one priority: the one with the fewest slot-seconds by its weight.
3. In a queue: the user with the fewest slot-seconds there.
4. Of a user: jobs of a higher ``--priority``, then the order of the requests.

There is no preemption. A request beyond a limit is passed over, so that it does not hold up the requests of others.

Slot-seconds are counted while a job holds a slot, and count half after each half-life. The plain number of slots that
a user holds now would forget their last job at once. With short jobs, or fewer slots than users, the user with most
jobs would then get most slots. A count without decay would never forget: a user of an empty cluster at night would wait
all day. Each slot costs `GRANT_S` at once, so that slots that become free at one moment do not all go to one user.

The counts are in the memory of the leader. A new leader begins at zero, and counts the slots that jobs hold.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal

from runtime.ids import AllocationID, JobID
from runtime.queues.configuration import DEFAULT_QUEUE, Asked, Demand, Limits, Member, Queues, Scope, cpus_text

GRANT_S = 1.0
"""Slot-seconds that each slot costs when it is given, besides those for which it is held."""
NOTHING_ASKED = Asked()
FORGOTTEN_S = 0.001
"""Slot-seconds below which an account without slots is dropped."""


@dataclass(frozen=True, slots=True)
class Claim:
    """A waiting request for a slot.

    Args:
        job_id: the job.
        allocation_id: of the request.
        rank: its place among the requests of its user; the lowest is first.
    """

    job_id: JobID
    allocation_id: AllocationID
    rank: tuple[int, int]


@dataclass(slots=True)
class Account:
    """Slot-seconds with decay.

    Args:
        at: the time of *value*, in seconds.
        value: slot-seconds at that time.
        slots: held since then.
    """

    at: float
    value: float = 0.0
    slots: int = 0

    def used(self, now: float, half_life_s: float) -> float:
        """Return the slot-seconds at a time."""
        left = math.exp2(-max(now - self.at, 0.0) / half_life_s)
        return self.value * left + self.slots * (1.0 - left) * half_life_s / math.log(2.0)

    def change(self, slots: int, now: float, half_life_s: float) -> None:
        """Add *slots*, or remove some."""
        self.value = self.used(now, half_life_s) + max(slots, 0) * GRANT_S
        self.at, self.slots = max(now, self.at), self.slots + slots


@dataclass(frozen=True, slots=True)
class Use:
    """Use by a user, group or queue: slots, running jobs, and memory and processors of the tasks in these slots."""

    slots: int = 0
    jobs: int = 0
    memory_mb: int = 0
    cpus: Decimal = Decimal()

    def plus(self, slots: int, jobs: int, demand: Demand) -> Use:
        """Return the use with more slots, of a demand each, and more running jobs."""
        memory_mb = self.memory_mb + slots * demand.memory_mb
        return Use(self.slots + slots, self.jobs + jobs, memory_mb, self.cpus + slots * demand.cpus)


NO_USE = Use()


@dataclass(frozen=True, slots=True)
class Turn:
    """The place of a waiting request.

    Args:
        claim: the request.
        member: its user and queue.
        place: from 1, among the requests of its queue.
        blocked: the limits that it waits for, as texts; empty if it waits for its turn only.
    """

    claim: Claim
    member: Member
    place: int
    blocked: tuple[str, ...]


class FairShare:
    """The slots that jobs hold, what they have used, and who is next.

    Args:
        queues: queues and limits.
    """

    def __init__(self, queues: Queues) -> None:
        self._queues = queues
        self._wanted: dict[JobID, Member] = {}
        """Users and queues as the jobs ask for them; the queue may not exist (any more)."""
        self._members: dict[JobID, Member] = {}
        self._asked: dict[JobID, Asked] = {}
        self._ended: set[JobID] = set()
        self._slots: Counter[JobID] = Counter()
        self._held: dict[Scope, Use] = {}
        self._of_queues: dict[str, Account] = {}
        self._of_users: dict[Member, Account] = {}

    @property
    def queues(self) -> Queues:
        """Queues and limits in use."""
        return self._queues

    def configure(self, queues: Queues, now: float) -> None:
        """Use other queues and limits. Jobs keep their slots; a job of a removed queue is in the default one."""
        held = {job_id: slots for job_id, slots in self._slots.items() if slots}
        for job_id, slots in held.items():
            self._add(job_id, -slots, now)
        half_life_s = self._queues.half_life_s
        for account in (*self._of_queues.values(), *self._of_users.values()):
            account.change(0, now, half_life_s)
        self._queues = queues
        self._members = {job_id: queues.member(wanted.user, wanted.queue) for job_id, wanted in self._wanted.items()}
        for job_id, slots in held.items():
            self._add(job_id, slots, now, is_new=False)

    def register(self, job_id: JobID, user: str, queue: str, now: float, asked: Asked = NOTHING_ASKED) -> None:
        """Note a job. Idempotent.

        Args:
            job_id: the job.
            user: its user; empty for none.
            queue: the queue that it asks for; empty for none.
            now: seconds.
            asked: memory and processors of each of its tasks.
        """
        self._ended.discard(job_id)
        wanted = Member(user, queue)
        if self._wanted.get(job_id) == wanted and self._asked[job_id] == asked:
            return
        slots = self._slots[job_id]
        self._add(job_id, -slots, now)
        self._wanted[job_id], self._members[job_id] = wanted, self._queues.member(user, queue)
        self._asked[job_id] = asked
        self._add(job_id, slots, now, is_new=False)

    def unregister(self, job_id: JobID) -> None:
        """Note that a job has ended; the slots that it still holds count until they are free."""
        self._ended.add(job_id)
        self._forget(job_id)

    def take(self, job_id: JobID, now: float) -> None:
        """Note that a job has one slot more."""
        self._add(job_id, 1, now)

    def give_back(self, job_id: JobID, now: float) -> None:
        """Note that a job has one slot less."""
        self._add(job_id, -1, now)
        self._forget(job_id)

    def slots_of(self, job_id: JobID) -> int:
        """Return the number of slots that a job holds."""
        return self._slots[job_id]

    @property
    def running(self) -> tuple[JobID, ...]:
        """Jobs that hold a slot."""
        return tuple(job_id for job_id, slots in self._slots.items() if slots > 0)

    def member(self, job_id: JobID) -> Member:
        """Return a job's user and queue; for an unknown job no user, and the default queue."""
        return self._members.get(job_id) or Member("", DEFAULT_QUEUE)

    def blob_bytes(self, scope: Scope) -> int:
        """Return the bytes of the blobs of a user's, group's or queue's jobs that are registered."""
        return sum(
            asked.blob_bytes
            for job_id, asked in self._asked.items()
            if job_id not in self._ended and scope in self._scopes(self.member(job_id))
        )

    def demand(self, job_id: JobID) -> Demand:
        """Return memory and processors of each task of a job; none for an unknown job."""
        asked = self._asked.get(job_id)
        return Demand() if asked is None else self._queues.demand(asked)

    def held(self, scope: Scope) -> Use:
        """Return what a user, group or queue uses."""
        return self._held.get(scope, NO_USE)

    @property
    def scopes(self) -> list[Scope]:
        """Users and groups with jobs or with limits of their own, by name; users first."""
        queues = self._queues
        own = [Scope("user", name) for name in queues.users]
        own += [Scope("group", group.name) for group in queues.groups.values() if group.limits != Limits()]
        members = [self.member(job_id) for job_id in (*self._asked, *self._slots)]
        used = [scope for member in members for scope in self._scopes(member) if scope.kind != "queue"]
        return sorted({*own, *used}, key=lambda scope: (scope.kind != "user", scope.name))

    def used(self, queue: str, now: float) -> float:
        """Return the slot-seconds of a queue, with decay."""
        account = self._of_queues.get(queue)
        return 0.0 if account is None else account.used(now, self._queues.half_life_s)

    def used_by(self, member: Member, now: float) -> float:
        """Return the slot-seconds of a user in a queue, with decay."""
        account = self._of_users.get(member)
        return 0.0 if account is None else account.used(now, self._queues.half_life_s)

    # ------------------------------------------------------------------- order

    def order(self, claims: Iterable[Claim], now: float) -> Iterator[Claim]:
        """Yield the requests that no limit holds back, as they are served if slots become free one after another.

        Each one counts as served for those after it: also for the limits. If a request waits for memory or processors
        of a limit, later ones that count for this limit wait too. Otherwise small ones could hold it back for ever.
        """
        yield from self._order(claims, now, set())

    def _order(self, claims: Iterable[Claim], now: float, kept: set[Scope]) -> Iterator[Claim]:
        """Yield as `order`, and add to *kept* whose memory and processors are kept for an earlier request."""
        lines: dict[str, dict[Member, list[Claim]]] = {}
        for claim in claims:
            member = self.member(claim.job_id)
            lines.setdefault(member.queue, {}).setdefault(member, []).append(claim)
        held = dict(self._held)
        slots = Counter[JobID]()
        heap = []
        for number, queue in enumerate(self._queues.queues):
            if queue.name in lines:
                line = self._line(lines[queue.name], held, slots, kept, now)
                heap.append((-queue.priority, self.used(queue.name, now) / queue.weight, number, line, queue.weight))
        heapq.heapify(heap)
        while heap:
            priority, used, number, line, weight = heap[0]
            served = next(line, None)
            if served is None:
                heapq.heappop(heap)
                continue
            heapq.heapreplace(heap, (priority, used + GRANT_S / weight, number, line, weight))
            yield served

    def _line(
        self,
        users: Mapping[Member, list[Claim]],
        held: dict[Scope, Use],
        slots: Counter[JobID],
        kept: set[Scope],
        now: float,
    ) -> Iterator[Claim]:
        """Yield the requests of one queue in order, and count them in *held* and *slots*; see `_order`."""
        waiting = {member: iter(sorted(own, key=lambda claim: claim.rank)) for member, own in users.items()}
        heads = [(self.used_by(member, now), next(own), member) for member, own in waiting.items()]
        heap = [(used, claim.rank, number, claim, member) for number, (used, claim, member) in enumerate(heads)]
        heapq.heapify(heap)
        while heap:
            used, _, number, claim, member = heapq.heappop(heap)
            allowed = kept.isdisjoint(self._scopes(member)) and not self._exceeded(claim.job_id, held, slots)
            if (following := next(waiting[member], None)) is not None:
                cost = GRANT_S if allowed else 0.0
                heapq.heappush(heap, (used + cost, following.rank, number, following, member))
            if allowed:
                begins = not self._slots[claim.job_id] and not slots[claim.job_id]
                slots[claim.job_id] += 1
                demand = self.demand(claim.job_id)
                for scope in self._scopes(member):
                    held[scope] = held.get(scope, NO_USE).plus(1, int(begins), demand)
                yield claim
            else:
                kept.update(self._too_full(claim.job_id, held))

    def turns(self, claims: Iterable[Claim], now: float) -> list[Turn]:
        """Return the place of each waiting request in its queue: first those that no limit holds back."""
        known = list(claims)
        kept = set[Scope]()
        free = list(self._order(known, now, kept))
        found = {claim.allocation_id for claim in free}
        others = sorted((claim for claim in known if claim.allocation_id not in found), key=lambda claim: claim.rank)
        places = Counter[str]()
        turns = []
        for claim in (*free, *others):
            member = self.member(claim.job_id)
            places[member.queue] += 1
            blocked = self.blocked_by(claim.job_id)
            if not blocked and claim.allocation_id not in found:
                scopes = (scope for scope in self._scopes(member) if scope in kept)
                blocked = tuple(f"an earlier request waits for memory or CPUs of {scope}" for scope in scopes)
            turns.append(Turn(claim, member, places[member.queue], blocked))
        return turns

    def blocked_by(self, job_id: JobID) -> tuple[str, ...]:
        """Return the limits that hold back a further slot of a job now, as texts."""
        return self._exceeded(job_id, self._held, Counter())

    def _exceeded(self, job_id: JobID, held: Mapping[Scope, Use], further: Mapping[JobID, int]) -> tuple[str, ...]:
        begins = not self._slots[job_id] and not further.get(job_id)
        demand, found = self.demand(job_id), list[str]()
        for scope in self._scopes(self.member(job_id)):
            limits, use = self._queues.limits_of(scope), held.get(scope, NO_USE)
            if limits.slots is not None and use.slots >= limits.slots:
                found.append(f"{scope} uses {use.slots} of {limits.slots} slots")
            if begins and limits.running_jobs is not None and use.jobs >= limits.running_jobs:
                found.append(f"{scope} runs {use.jobs} of {limits.running_jobs} jobs")
            if limits.memory_mb is not None and use.memory_mb + demand.memory_mb > limits.memory_mb:
                used = f"{use.memory_mb} of {limits.memory_mb} MB used"
                found.append(f"memory of {scope}: {used}, {demand.memory_mb} asked for")
            if limits.cpus is not None and use.cpus + demand.cpus > limits.cpus:
                used = f"{cpus_text(use.cpus)} of {cpus_text(limits.cpus)} used"
                found.append(f"CPUs of {scope}: {used}, {cpus_text(demand.cpus)} asked for")
        return tuple(found)

    def _too_full(self, job_id: JobID, held: Mapping[Scope, Use]) -> Iterator[Scope]:
        """Yield whose limit of memory or processors holds back a further slot of a job, and could give it later."""
        demand = self.demand(job_id)
        for scope in self._scopes(self.member(job_id)):
            limits, use = self._queues.limits_of(scope), held.get(scope, NO_USE)
            memory, cpus = limits.memory_mb, limits.cpus
            waits_for_memory = memory is not None and demand.memory_mb <= memory < use.memory_mb + demand.memory_mb
            waits_for_cpus = cpus is not None and demand.cpus <= cpus < use.cpus + demand.cpus
            if waits_for_memory or waits_for_cpus:
                yield scope

    # --------------------------------------------------------------- internals

    def _scopes(self, member: Member) -> tuple[Scope, ...]:
        return self._queues.scopes_of(member.user, member.queue)

    def _add(self, job_id: JobID, slots: int, now: float, *, is_new: bool = True) -> None:
        """Change the number of a job's slots; slots that are not new cost nothing at once."""
        if not slots:
            return
        member, demand, half_life_s = self.member(job_id), self.demand(job_id), self._queues.half_life_s
        before = self._slots[job_id]
        self._slots[job_id] += slots
        begun = (self._slots[job_id] > 0) - (before > 0)
        for scope in self._scopes(member):
            self._held[scope] = self.held(scope).plus(slots, begun, demand)
            if self._held[scope] == NO_USE:
                del self._held[scope]
        for account in (
            self._of_queues.setdefault(member.queue, Account(now)),
            self._of_users.setdefault(member, Account(now)),
        ):
            account.change(slots, now, half_life_s)
            if slots > 0 and not is_new:
                account.value -= slots * GRANT_S
        self._drop_forgotten(now)

    def _drop_forgotten(self, now: float) -> None:
        half_life_s = self._queues.half_life_s
        if len(self._of_users) > 2 * len(self._members) + 64:
            self._of_users = {
                member: account
                for member, account in self._of_users.items()
                if account.slots or account.used(now, half_life_s) > FORGOTTEN_S
            }

    def _forget(self, job_id: JobID) -> None:
        if self._slots[job_id] <= 0 and (job_id in self._ended or job_id not in self._wanted):
            self._ended.discard(job_id)
            del self._slots[job_id]
            self._wanted.pop(job_id, None)
            self._members.pop(job_id, None)
            self._asked.pop(job_id, None)
