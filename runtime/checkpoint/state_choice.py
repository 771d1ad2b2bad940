"""Choose a part of a savepoint's state by query, operator, store and state variable. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from runtime.checkpoint.description import OperatorDescription, StoreDescription
from runtime.checkpoint.errors import SavepointError
from runtime.checkpoint.manifest import Savepoint, SavepointQuery
from runtime.checkpoint.state_schema import DEFAULT_FAMILY

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class StateChoice:
    """A part of a savepoint's state: one map of keys to values.

    Args:
        query: the query that it belongs to.
        operator: the operator's id.
        store: the name by which Spark's reader finds the store.
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
    has_variables = _has_variables(found)
    stores = {name: one for one in found.stores for name in ([one.name] if has_variables else _names(one))}
    name = store or next(iter(stores), None)
    inside = _one("store", stores, name, "--store")
    if not has_variables:
        if variable is not None:
            raise SavepointError(
                f"operator {found.id} ({found.name}) has no state variables, so none is {variable!r}",
                _remedy_of_variable(chosen.description.operators),
            )
        return StateChoice(chosen, found.id, str(name), None)
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


def _names(store: StoreDescription) -> list[str]:
    """Return the names by which Spark's reader finds the maps of a store.

    A join with state format 3 has one store, and its reader takes the names of the column families for those of stores.
    """
    return [store.name if one.name == DEFAULT_FAMILY else one.name for one in store.families] or [store.name]


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
