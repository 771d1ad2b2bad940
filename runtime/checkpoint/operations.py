"""What clients have wished for, and what became of it (Flink's `CompletedOperationCache`). Pure."""

from __future__ import annotations

from dataclasses import replace

from runtime.checkpoint.messages import CheckpointTrigger, OperationState, OperationStatus
from runtime.ids import TriggerID

KEPT = 64
"""How many wishes that are done are remembered."""


class Operations:
    """Wishes by their trigger ids; asking twice with one id is asking once."""

    def __init__(self) -> None:
        self._known: dict[TriggerID, OperationStatus] = {}
        self._joined: dict[TriggerID, TriggerID] = {}

    def find(self, trigger_id: TriggerID) -> OperationStatus | None:
        """What became of a wish so far; None where it is not known."""
        known = self._known.get(self._joined.get(trigger_id, trigger_id))
        return None if known is None else replace(known, trigger_id=trigger_id)

    def all(self) -> tuple[OperationStatus, ...]:
        """All that are remembered: in the order in which they came, then those that have joined one of them."""
        joined = (replace(self._known[first], trigger_id=later) for later, first in self._joined.items())
        return (*self._known.values(), *joined)

    def join(self, trigger_id: TriggerID, first: TriggerID) -> OperationStatus:
        """A new wish for what another one asks for: what becomes of that becomes of this."""
        self._joined[trigger_id] = first
        return replace(self._known[first], trigger_id=trigger_id)

    def begin(self, trigger: CheckpointTrigger) -> OperationStatus:
        """A new wish."""
        status = OperationStatus(trigger.trigger_id, OperationState.IN_PROGRESS)
        self._known[trigger.trigger_id] = status
        done = [key for key, known in self._known.items() if known.state is not OperationState.IN_PROGRESS]
        for key in done[: max(len(done) - KEPT, 0)]:
            del self._known[key]
        self._joined = {later: first for later, first in self._joined.items() if first in self._known}
        return status

    def numbered(self, trigger_id: TriggerID, checkpoint_id: int) -> None:
        """Its checkpoint has a number."""
        self._change(trigger_id, checkpoint_id=checkpoint_id)

    def completed(self, trigger_id: TriggerID, path: str, notes: tuple[str, ...] = (), *, drained: bool = True) -> None:
        """It is done."""
        self._change(trigger_id, state=OperationState.COMPLETED, path=path, notes=notes, drained=drained)

    def failed(self, trigger_id: TriggerID, error: str) -> None:
        """It came to nothing."""
        self._change(trigger_id, state=OperationState.FAILED, error=error)

    def undone(self, trigger_id: TriggerID, error: str) -> None:
        """It was done, and does not hold any more."""
        self._known[trigger_id] = replace(self._known[trigger_id], state=OperationState.FAILED, error=error)

    def _change(self, trigger_id: TriggerID, **changes: object) -> None:
        known = self._known.get(trigger_id)
        if known is not None and known.state is OperationState.IN_PROGRESS:
            self._known[trigger_id] = replace(known, **changes)  # type: ignore[arg-type]
