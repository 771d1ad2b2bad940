"""What the rest of remoting wants of a root node."""

from __future__ import annotations

from typing import Protocol

from actors.event_stream import Table
from actors.props import CreateOrder
from actors.remote.gateway import NodeId, Route


class Placing(Protocol):
    """What only a root node has: it knows where everything is."""

    async def resolve(self, path: str, uid: int) -> Route:
        """Where *path* is hosted; waits while it is being created."""

    async def create(self, creator: NodeId, order: CreateOrder) -> Route:
        """Place and create an actor."""

    def stopped(self, path: str, uid: int) -> None:
        """An actor that was placed has stopped for good."""

    def subscribed(self, origin: int, table: Table) -> None:
        """The subscriptions to the event stream that were made in a node of this system."""
