"""What the CheckpointCoordinator tells the JobMaster to do; the JobMaster reports back by the coordinator's events."""

from __future__ import annotations

from dataclasses import dataclass

from runtime.checkpoint.messages import CheckpointMetadata, CheckpointTrigger
from runtime.checkpoint.model import QuerySnapshot
from runtime.checkpoint.pending import CheckpointTask


@dataclass(frozen=True, slots=True)
class AllocateCheckpointID:
    """Get the next number; answer with `id_allocated`."""


@dataclass(frozen=True, slots=True)
class TriggerTasks:
    """Have the tasks take part; one that cannot be reached is answered with `declined`."""

    checkpoint_id: int
    trigger: CheckpointTrigger
    directory: str
    tasks: tuple[CheckpointTask, ...]


@dataclass(frozen=True, slots=True)
class StoreCheckpoint:
    """All have acknowledged it: make it last; answer with `stored` or `store_failed`.

    A savepoint is written to the trigger's target, a checkpoint is added to the store.
    """

    trigger: CheckpointTrigger
    metadata: CheckpointMetadata


@dataclass(frozen=True, slots=True)
class NotifyComplete:
    """Second phase: tell the tasks that the checkpoint is complete."""

    checkpoint_id: int
    tasks: tuple[CheckpointTask, ...]


@dataclass(frozen=True, slots=True)
class NotifyAborted:
    """Tell the tasks that the checkpoint came to nothing."""

    checkpoint_id: int
    tasks: tuple[CheckpointTask, ...]


@dataclass(frozen=True, slots=True)
class DiscardSnapshots:
    """Remove the files of a checkpoint that nobody will restore."""

    checkpoint_id: int
    directory: str
    queries: tuple[QuerySnapshot, ...]


@dataclass(frozen=True, slots=True)
class FailJob:
    """Too many checkpoints have failed in a row."""

    reason: str


CheckpointInstruction = (
    AllocateCheckpointID | TriggerTasks | StoreCheckpoint | NotifyComplete | NotifyAborted | DiscardSnapshots | FailJob
)
