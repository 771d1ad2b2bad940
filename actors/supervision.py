"""Supervision (Akka's ``FaultHandling``): decisions about failed children, limits and delays of restarts. Pure."""

from __future__ import annotations

import dataclasses
import enum
import math
import random
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from actors.errors import ActorError, ActorInitializationError, ActorKilled, DeathPactError, RemoteError
from actors.mailbox import named
from actors.serialization import import_object, import_path, message, name_of


@message
class Directive(enum.Enum):
    """Decision of a supervisor (Akka's ``SupervisorStrategy.Directive``)."""

    RESUME = "resume"
    """The child continues with its present state; the message that failed is lost."""
    RESTART = "restart"
    """A new instance replaces the child and keeps its ref and mailbox; the message that failed is lost."""
    STOP = "stop"
    """The child stops."""
    ESCALATE = "escalate"
    """The supervisor itself fails with the child's error; its own supervisor decides."""


Decider = Callable[[BaseException], Directive]
"""Returns the directive for an error."""


def default_decider(error: BaseException) -> Directive:
    """Decide as Akka does by default.

    - Initialization errors, `Kill`, death pacts and ``sys.exit()`` stop the child: a restart would fail again at once,
      or an end was intended.
    - Other exceptions restart it.
    - Anything else escalates.
    """
    if _is_a(error, ActorInitializationError, ActorKilled, DeathPactError, SystemExit):
        return Directive.STOP
    return Directive.RESTART if _is_a(error, Exception) else Directive.ESCALATE


def stopping_decider(error: BaseException) -> Directive:
    """Stop the child on exceptions and ``sys.exit()``; escalate anything else."""
    return Directive.STOP if _is_a(error, Exception, SystemExit) else Directive.ESCALATE


def escalating_decider(error: BaseException) -> Directive:
    """Escalate every error to the supervisor's own supervisor."""
    return Directive.ESCALATE


def _is_a(error: BaseException, *kinds: type[BaseException]) -> bool:
    if isinstance(error, RemoteError):
        return any(map(error.was_a, kinds))
    return isinstance(error, kinds)


@message
class Backoff:
    """Delays before restarts, each longer than the one before (Akka's ``BackoffSupervisor``).

    Args:
        min_s: delay before the first restart, in seconds.
        max_s: longest delay without jitter, in seconds.
        factor: factor by which each delay is longer than the one before.
        jitter: largest random fraction that is added to a delay, so that children that failed together restart apart.
        reset_after_s: seconds without a failure after which the next delay is *min_s* again; default: *min_s*, as in
            Akka.

    Raises:
        ValueError: a value is out of range.
    """

    min_s: float
    max_s: float
    factor: float = 2.0
    jitter: float = 0.2
    reset_after_s: float | None = None

    def __post_init__(self) -> None:
        if not 0 < self.min_s <= self.max_s < math.inf:
            raise ValueError(f"a back-off needs 0 < min_s <= max_s, not min_s={self.min_s!r} and max_s={self.max_s!r}")
        if not 1 <= self.factor < math.inf:
            raise ValueError(f"the factor of a back-off is 1 or more, not {self.factor!r}")
        if not 0 <= self.jitter <= 1:
            raise ValueError(f"the jitter of a back-off is a fraction from 0 to 1, not {self.jitter!r}")
        if self.reset_after_s is not None and not self.reset_after_s > 0:
            raise ValueError(f"reset_after_s is more than 0, or None for min_s, not {self.reset_after_s!r}")

    def delay(self, restart_count: int, rng: random.Random) -> float:
        """Return the seconds to wait before the next restart.

        Args:
            restart_count: number of restarts since the delays last started again at *min_s*.
            rng: source of the jitter.
        """
        # Compare logarithms first: the power itself could exceed the range of a float.
        if restart_count * math.log(self.factor) >= math.log(self.max_s / self.min_s):
            delay = self.max_s
        else:
            delay = self.min_s * self.factor**restart_count
        return delay * (1.0 + self.jitter * rng.random())

    @property
    def reset_s(self) -> float:
        """Seconds after a restart without another failure, after which the next delay is `min_s` again."""
        return self.min_s if self.reset_after_s is None else self.reset_after_s


class BackoffCounter:
    """The restart delays of one child.

    Args:
        backoff: the rule by which they grow.
    """

    __slots__ = ("_backoff", "_count", "_restarts_at")

    def __init__(self, backoff: Backoff) -> None:
        self._backoff = backoff
        self._count = 0
        self._restarts_at = -math.inf

    def next_delay(self, now: float, rng: random.Random) -> float:
        """Return the seconds to wait before restarting the child, which has failed at *now* (monotonic seconds)."""
        if now - self._restarts_at >= self._backoff.reset_s:
            self._count = 0
        delay = self._backoff.delay(self._count, rng)
        self._count += 1
        self._restarts_at = now + delay
        return delay


class RestartWindow:
    """Limit on the restarts of a child (Akka's ``ChildRestartStats.requestRestartPermission``, case by case).

    A window without *max_retries* allows one restart, as in Akka. The window opens with the first request and lasts
    *within_s* seconds. A request after its end opens another window, and is the first one in it.

    Args:
        max_retries: restarts allowed in the window, or in total without a window; None for no limit.
        within_s: length of the window in seconds; None for no window.
    """

    __slots__ = ("_count", "_max_retries", "_window_start", "_within_s")

    def __init__(self, max_retries: int | None, within_s: float | None) -> None:
        self._max_retries = max_retries
        self._within_s = within_s
        self._count = 0
        self._window_start: float | None = None

    def restart_permissible(self, now: float) -> bool:
        """Return whether a restart at *now* (monotonic seconds) is allowed; each request counts, allowed or not."""
        if self._max_retries is not None and self._max_retries < 1:
            return False
        if self._within_s is not None:
            return self._permissible_in_window(1 if self._max_retries is None else self._max_retries, now)
        if self._max_retries is None:
            return True
        self._count += 1
        return self._count <= self._max_retries

    def _permissible_in_window(self, retries: int, now: float) -> bool:
        assert self._within_s is not None
        if self._window_start is None:
            self._window_start = now
        if now - self._window_start <= self._within_s:
            self._count += 1
            return self._count <= retries
        self._count = 1
        self._window_start = now
        return True


@dataclasses.dataclass(frozen=True, slots=True)
class SupervisorStrategy:
    """Treatment of children that fail: `OneForOneStrategy` or `AllForOneStrategy`.

    Args:
        decider: a function of the error, the import path of one, or a mapping from error types to directives. Default:
            `default_decider`. In a mapping the most special type of the error counts; an error without a match
            escalates (as in Akka). A mapping compares a `RemoteError` from another process by the names of its classes.
            A strategy can travel to another process when its function has an import path.
        max_retries: restarts allowed before the supervisor stops the child instead; None for no limit.
        within_s: seconds in which *max_retries* restarts are allowed, see `RestartWindow`; None for no window.
        backoff: delays before restarts; None for restarts without delay.

    Raises:
        ValueError: an argument is out of range, or *decider* is not a decider.
    """

    all_for_one: ClassVar[bool] = False
    """Whether a decision about one child applies to all."""

    decider: str | Decider | Mapping[Any, Directive] = default_decider
    max_retries: int | None = None
    within_s: float | None = None
    backoff: Backoff | None = None
    _decide: list[Decider] = dataclasses.field(default_factory=list, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.max_retries is not None and (type(self.max_retries) is not int or self.max_retries < 0):
            raise ValueError(f"max_retries is a number of restarts, or None for no limit, not {self.max_retries!r}")
        if self.within_s is not None and not 0 <= self.within_s < math.inf:
            raise ValueError(f"within_s is a number of seconds, or None for no window, not {self.within_s!r}")
        if self.backoff is not None and not isinstance(self.backoff, Backoff):
            raise ValueError(f"backoff is a Backoff or None, not {self.backoff!r}")
        decider = self.decider
        object.__setattr__(self, "decider", _named_rules(decider) if isinstance(decider, Mapping) else named(decider))

    def decide(self, error: BaseException) -> Directive:
        """Decide on the child that failed with *error*.

        Raises:
            SerializationError: the decider, or an error type of its mapping, cannot be imported here.
            TypeError: the decider returned something else than a `Directive`.
            Exception: any error that the decider itself raises.
        """
        if not self._decide:  # not in the constructor: a strategy from another process must not import anything
            self._decide.append(_compiled(self.decider))
        directive = self._decide[0](error)
        if not isinstance(directive, Directive):
            raise TypeError(f"a decider returns a Directive, not {directive!r}; what it is not to decide it escalates")
        return directive

    def unmatched(self, error: BaseException) -> str | None:
        """Return why this strategy may have missed the type of *error*, and the remedy; None without such a reason."""
        kinds = _kinds(error)
        if isinstance(self.decider, Mapping):
            rules = [rule if isinstance(rule, str) else name_of(rule) for rule in self.decider]
            for rule in rules:
                for kind in kinds:
                    if rule != kind and rule not in kinds and rule.partition(":")[2] == kind.partition(":")[2]:
                        return (
                            f"the rule for {rule} does not apply to {kind}, which is a class of another module; "
                            "import the class from the same module on both sides"
                        )
        elif isinstance(error, RemoteError) and self.decider not in _OWN_DECIDERS:
            return (
                f"the decider was given a RemoteError in place of {kinds[0]}; import its module in the supervisor's "
                "process and give it plain arguments; or decide by a mapping of types or RemoteError.was_a"
            )
        return None

    def window(self) -> RestartWindow:
        """Return a new restart limit for one child."""
        return RestartWindow(self.max_retries, self.within_s)


@message
class OneForOneStrategy(SupervisorStrategy):
    """Applies each decision only to the child that failed; arguments as for `SupervisorStrategy`."""


@message
class AllForOneStrategy(SupervisorStrategy):
    """Restarts or stops all children when one is restarted or stopped; arguments as for `SupervisorStrategy`."""

    all_for_one: ClassVar[bool] = True


def stopping_strategy() -> OneForOneStrategy:
    """Return a strategy that stops each child that fails (Akka's ``SupervisorStrategy.stoppingStrategy``)."""
    return OneForOneStrategy(stopping_decider)


_OWN_DECIDERS = [import_path(each) for each in (default_decider, stopping_decider, escalating_decider)]
_GENERAL = ("builtins:Exception", "builtins:BaseException")


def _kinds(error: BaseException) -> list[str]:
    """Return the names of the error's classes, the most special first; general ones of a `RemoteError` come last."""
    if not isinstance(error, RemoteError):
        return [name_of(kind) for kind in type(error).__mro__]
    special = [kind for kind in error.kinds if kind not in _GENERAL]
    return [*special, name_of(RemoteError), name_of(ActorError), *(kind for kind in _GENERAL if kind in error.kinds)]


def _named_rules(rules: Mapping[Any, Directive]) -> dict[Any, Directive]:
    """Return the rules with error types replaced by their import paths where they have one, so that they can travel."""
    for kind, directive in rules.items():
        if not isinstance(kind, str) and not (isinstance(kind, type) and issubclass(kind, BaseException)):
            raise ValueError(
                f"a decider's mapping is from exception types to directives; {kind!r} is not an exception type"
            )
        if not isinstance(directive, Directive):
            raise ValueError(
                f"a decider's mapping is from exception types to directives; {directive!r} is not a Directive"
            )
    return {
        kind if isinstance(kind, str) else import_path(kind) or kind: directive for kind, directive in rules.items()
    }


def _compiled(decider: str | Decider | Mapping[Any, Directive]) -> Decider:
    if isinstance(decider, str):
        function: Decider = import_object(decider)
        return function
    if not isinstance(decider, Mapping):
        return decider
    rules = {import_object(kind) if isinstance(kind, str) else kind: each for kind, each in decider.items()}

    by_name = {name_of(kind): directive for kind, directive in rules.items()}

    def decide(error: BaseException) -> Directive:
        if isinstance(error, RemoteError):
            return next((by_name[kind] for kind in _kinds(error) if kind in by_name), Directive.ESCALATE)
        return next((rules[kind] for kind in type(error).__mro__ if kind in rules), Directive.ESCALATE)

    return decide
