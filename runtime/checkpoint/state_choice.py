"""Choose a part of a savepoint's state by query, operator, store and state variable. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from runtime.checkpoint.errors import SavepointError
from runtime.checkpoint.manifest import Savepoint, SavepointQuery

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class StateChoice:
    """A part of a savepoint's state: one map of keys to values.

    Args:
        query: the query that it belongs to.
        operator: the operator's id.
        store: the store's name.
        variable: the state variable of a transformWithState; None for all other operators.
    """

    query: SavepointQuery
    operator: int
    store: str
    variable: str | None


def choose_query(savepoint: Savepoint, query: str | None = None) -> SavepointQuery:
    """Return a query of a savepoint by its name, or the only one.

    Raises:
        SavepointError: there is no such query, or several; the remedy names them.
    """
    return _one("query", {one.snapshot.name: one for one in savepoint.queries}, query, "--query")


def choose_state(
    savepoint: Savepoint,
    query: str | None = None,
    operator: int | None = None,
    store: str | None = None,
    variable: str | None = None,
) -> StateChoice:
    """Return the chosen state.

    Args:
        savepoint: the savepoint.
        query: name of the query; None for the only one with state.
        operator: id of the operator; None for the first one.
        store: name of the store; None for the first one.
        variable: name of the state variable of a transformWithState; None for the only one.

    Raises:
        SavepointError: there is no such part, or several; the remedy names them.
    """
    queries = {one.snapshot.name: one for one in savepoint.queries if one.description.operators}
    chosen = _one("query with state", queries, query, "--query")
    operators = {str(one.id): one for one in chosen.description.operators}
    found = _one("operator", operators, _text(operator) or next(iter(operators)), "--operator")
    stores = {one.name: one for one in found.stores}
    inside = _one("store", stores, store or next(iter(stores), None), "--store")
    variables = {one.name: one for one in inside.families}
    if not found.name.startswith("transformWithState"):
        return StateChoice(chosen, found.id, inside.name, None)
    return StateChoice(chosen, found.id, inside.name, _one("state variable", variables, variable, "--variable").name)


def _text(number: int | None) -> str | None:
    return None if number is None else str(number)


def _one(what: str, known: dict[str, T], name: str | None, option: str) -> T:
    names: Sequence[str] = sorted(known)
    if not names:
        raise SavepointError(f"the savepoint has no {what}")
    if name is None and len(names) == 1:
        return known[names[0]]
    if name is None:
        raise SavepointError(f"the savepoint has more than one {what}", f"choose by {option}: {', '.join(names)}")
    if name not in known:
        raise SavepointError(f"the savepoint has no {what} {name!r}", f"there is: {', '.join(names)}")
    return known[name]
