"""A profile of a Python process by samples of its threads' stacks (as Flink's flame graphs). Pure.

A sample is a thread dump. Waiting threads count as well as computing ones: the interpreter shows a thread's stack, but
not whether it runs.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

MOST_SAMPLES = 1000
MOST_STACKS = 2000
"""Largest number of different stacks in a profile; further ones are counted together as `OTHERS`."""

_LONGEST_NAME = 160
_FRAME = re.compile(r'^ +File "(.*)", line \d+, in (.*)$', re.MULTILINE)
OTHERS = "(others)"


@dataclass(frozen=True, slots=True)
class FoldedStack:
    """A stack and the number of its samples; *frames* are the thread's name and then its frames, outermost first."""

    frames: tuple[str, ...]
    count: int


@dataclass(frozen=True, slots=True)
class StackProfile:
    """The result of sampling.

    Args:
        pid: the process.
        samples: number of samples.
        interval_ms: the pause between two.
        stacks: each different stack, the most frequent first.
    """

    pid: int
    samples: int
    interval_ms: int
    stacks: tuple[FoldedStack, ...]


@dataclass(slots=True)
class FlameNode:
    """A frame, the number of its samples, and the frames that it called (Flink's `JobVertexFlameGraph.Node`)."""

    name: str
    value: int = 0
    children: dict[str, FlameNode] = field(default_factory=dict)


class StackSampler:
    """Counts the stacks of thread dumps."""

    def __init__(self) -> None:
        self._stacks: Counter[tuple[str, ...]] = Counter()
        self._samples = 0

    def add(self, threads: Iterable[tuple[str, str]]) -> None:
        """Add one sample: each thread's name and its stack, as in a traceback."""
        self._samples += 1
        for name, stack in threads:
            frames = (name[:_LONGEST_NAME], *frames_of(stack))
            known = frames in self._stacks or len(self._stacks) < MOST_STACKS
            self._stacks[frames if known else (OTHERS,)] += 1

    def profile(self, pid: int, interval_ms: int) -> StackProfile:
        """Return the profile of all samples so far."""
        stacks = tuple(FoldedStack(frames, count) for frames, count in self._stacks.most_common())
        return StackProfile(pid, self._samples, interval_ms, stacks)


def frames_of(stack: str) -> tuple[str, ...]:
    """Return the frames of a stack, as ``function (package/file.py)``, the outermost first."""
    return tuple(
        f"{function} ({'/'.join(file.split('/')[-2:])})"[:_LONGEST_NAME] for file, function in _FRAME.findall(stack)
    )


def flame_graph(profile: StackProfile) -> FlameNode:
    """Return the stacks as a tree, whose root stands for all threads."""
    root = FlameNode("all threads")
    for stack in profile.stacks:
        node = root
        node.value += stack.count
        for frame in stack.frames:
            node = node.children.setdefault(frame, FlameNode(frame))
            node.value += stack.count
    return root
