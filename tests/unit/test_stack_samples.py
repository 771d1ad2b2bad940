"""Profiles: stacks are folded, counted, and made a tree."""

from __future__ import annotations

import threading

from hypothesis import given
from hypothesis import strategies as st

from runtime.stack_samples import MOST_STACKS, OTHERS, FlameNode, FoldedStack, StackSampler, flame_graph, frames_of
from runtime.threads import thread_stacks
from tests.waiting import PATIENCE_S

STACK = """  File "/usr/lib/python3.11/threading.py", line 1002, in _bootstrap
    self._bootstrap_inner()
  File "/work/runtime/spark/task.py", line 41, in run
    work(line 3, in vain)
"""


def test_frames_are_functions_with_their_files_the_outermost_first() -> None:
    assert frames_of(STACK) == ("_bootstrap (python3.11/threading.py)", "run (spark/task.py)")
    assert frames_of("nonsense") == ()


def test_a_stack_is_counted_whatever_its_lines_are() -> None:
    sampler = StackSampler()
    for line in (41, 42, 43):
        sampler.add([("main", STACK.replace("line 41", f"line {line}")), ("idle", "")])
    profile = sampler.profile(7, 20)
    assert (profile.pid, profile.samples, profile.interval_ms) == (7, 3, 20)
    assert {stack.frames[0]: stack.count for stack in profile.stacks} == {"main": 3, "idle": 3}
    (main,) = [stack for stack in profile.stacks if stack.frames[0] == "main"]
    assert main == FoldedStack(("main", *frames_of(STACK)), 3)


def test_a_real_thread_is_found_where_it_stands() -> None:
    stands, go_on = threading.Event(), threading.Event()

    def stand_still() -> None:
        stands.set()
        go_on.wait(PATIENCE_S)

    thread = threading.Thread(target=stand_still, name="stands")
    thread.start()
    try:
        assert stands.wait(PATIENCE_S)
        sampler = StackSampler()
        sampler.add(thread_stacks())
    finally:
        go_on.set()
        thread.join()
    (found,) = [stack for stack in sampler.profile(1, 1).stacks if stack.frames[0] == "stands"]
    assert "stand_still (unit/test_stack_samples.py)" in found.frames


def test_there_is_a_bound_to_different_stacks() -> None:
    sampler = StackSampler()
    sampler.add((f"thread {number}", "") for number in range(MOST_STACKS + 10))
    stacks = sampler.profile(1, 1).stacks
    assert len(stacks) == MOST_STACKS + 1
    assert stacks[0] == FoldedStack((OTHERS,), 10)


def _check(node: FlameNode) -> None:
    assert sum(child.value for child in node.children.values()) <= node.value
    for child in node.children.values():
        _check(child)


@given(st.lists(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 3)), max_size=4), min_size=1, max_size=20))
def test_a_frame_is_seen_at_least_as_often_as_what_it_calls(samples: list[list[tuple[str, int]]]) -> None:
    sampler = StackSampler()
    for threads in samples:
        sampler.add(
            (name, "".join(f'  File "/x/y.py", line 1, in f{level}\n' for level in range(depth)))
            for name, depth in threads
        )
    profile = sampler.profile(1, 1)
    root = flame_graph(profile)
    assert root.value == sum(map(len, samples)) == sum(stack.count for stack in profile.stacks)
    _check(root)
