"""A profile of a Python process by samples of its threads' stacks (as Flink's flame graphs). Pure.

A sample is a thread dump. Where threads wait counts as well as where they compute: what the interpreter tells of a
thread is where it is, not whether it runs.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

MOST_SAMPLES = 1000
MOST_STACKS = 2000
"""Most different stacks of a profile; the ones that are seen when there are so many are counted together."""

_LONGEST_NAME = 160
_FRAME = re.compile(r'^ +File "(.*)", line \d+, in (.*)$', re.MULTILINE)
OTHERS = "(others)"


@dataclass(frozen=True, slots=True)
class FoldedStack:
    """A stack and how often it was seen: the thread's name, and its frames, the outermost first."""

    frames: tuple[str, ...]
    count: int


@dataclass(frozen=True, slots=True)
class StackProfile:
    """What the samples came to.

    Args:
        pid: the process.
        samples: how many were taken.
        interval_ms: the pause between two.
        stacks: each different stack, the most frequent first.
    """

    pid: int
    samples: int
    interval_ms: int
    stacks: tuple[FoldedStack, ...]


@dataclass(slots=True)
class FlameNode:
    """A frame with those that it called (Flink's `JobVertexFlameGraph.Node`): in how many samples it was seen."""

    name: str
    value: int = 0
    children: dict[str, FlameNode] = field(default_factory=dict)


class StackSampler:
    """Counts the stacks of thread dumps."""

    def __init__(self) -> None:
        self._stacks: Counter[tuple[str, ...]] = Counter()
        self._samples = 0

    def add(self, threads: Iterable[tuple[str, str]]) -> None:
        """One sample: each thread's name and where it is, as in a traceback."""
        self._samples += 1
        for name, stack in threads:
            frames = (name[:_LONGEST_NAME], *frames_of(stack))
            known = frames in self._stacks or len(self._stacks) < MOST_STACKS
            self._stacks[frames if known else (OTHERS,)] += 1

    def profile(self, pid: int, interval_ms: int) -> StackProfile:
        """What they came to."""
        stacks = tuple(FoldedStack(frames, count) for frames, count in self._stacks.most_common())
        return StackProfile(pid, self._samples, interval_ms, stacks)


def frames_of(stack: str) -> tuple[str, ...]:
    """The frames of a stack, as ``function (package/file.py)``, the outermost first."""
    return tuple(
        f"{function} ({'/'.join(file.split('/')[-2:])})"[:_LONGEST_NAME] for file, function in _FRAME.findall(stack)
    )


def flame_graph(profile: StackProfile) -> FlameNode:
    """The stacks as a tree, from all of the process down."""
    root = FlameNode("all threads")
    for stack in profile.stacks:
        node = root
        node.value += stack.count
        for frame in stack.frames:
            node = node.children.setdefault(frame, FlameNode(frame))
            node.value += stack.count
    return root
