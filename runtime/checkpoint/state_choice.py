"""Choose a part of a savepoint's state by query, operator, store and state variable. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from runtime.checkpoint.description import OperatorDescription
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
        SavepointError: there is no such part, or several; the remedy names them. Or *variable* is given for an operator
            that has none.
    """
    queries = {one.snapshot.name: one for one in savepoint.queries if one.description.operators}
    chosen = _one("query with state", queries, query, "--query")
    operators = {str(one.id): one for one in chosen.description.operators}
    found = _one("operator", operators, _text(operator) or next(iter(operators)), "--operator")
    stores = {one.name: one for one in found.stores}
    inside = _one("store", stores, store or next(iter(stores), None), "--store")
    if not _has_variables(found):
        if variable is not None:
            raise SavepointError(
                f"operator {found.id} ({found.name}) has no state variables, so none is {variable!r}",
                _remedy_of_variable(chosen.description.operators),
            )
        return StateChoice(chosen, found.id, inside.name, None)
    variables = {one.name: one for one in inside.families}
    return StateChoice(chosen, found.id, inside.name, _one("state variable", variables, variable, "--variable").name)


def _has_variables(operator: OperatorDescription) -> bool:
    return operator.name.startswith("transformWithState")


def _remedy_of_variable(operators: Iterable[OperatorDescription]) -> str:
    """Return the remedy for a state variable of an operator without any: the variables of the query."""
    known = [
        f"operator {one.id} has {', '.join(sorted({family.name for store in one.stores for family in store.families}))}"
        for one in operators
        if _has_variables(one)
    ]
    return (
        f"choose by --operator: {'; '.join(known)}"
        if known
        else "leave out --variable: no operator of the query has any"
    )


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
