"""The file of queues: what it may say, what is refused with which words, and when it is read again."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import pytest

from runtime.queues.configuration import (
    Asked,
    Demand,
    Limits,
    Member,
    Queue,
    QueueRefusedError,
    Queues,
    QueuesError,
    QueuesFile,
    Scope,
    parse_queues,
)

WHOLE = """\
half-life: 10 min
queues:
  etl: {weight: 3, priority: 2, groups: [data], slots: 6, running-jobs: 4, waiting-jobs: 0}
  urgent:
    users: [ada]
groups:
  data:
    members: [ada, bob]
    slots: 8
users:
  ada: {slots: 4, submissions-per-minute: 9}
each-user: {slots: 2, running-jobs: 1}
"""


def test_a_whole_file_is_read() -> None:
    queues = parse_queues(WHOLE, "q.yaml")
    assert [queue.name for queue in queues.queues] == ["etl", "urgent", "default"]
    assert queues.queue("etl") == Queue("etl", 3.0, 2, (), ("data",), Limits(6, 4, 0, None))
    assert (queues.half_life_s, queues.is_set) == (600.0, True)
    assert queues.limits_of(Scope("user", "ada")) == Limits(4, 1, None, 9), "what is not said of ada is said of each"
    assert queues.limits_of(Scope("user", "eve")) == Limits(2, 1)
    assert queues.limits_of(Scope("group", "data")) == Limits(8)
    assert queues.limits_of(Scope("group", "gone")) == Limits()
    ada = [Scope("user", "ada"), Scope("group", "data"), Scope("queue", "etl")]
    assert list(queues.scopes_of("ada", "etl")) == ada
    assert list(queues.scopes_of("", "default")) == [Scope("queue", "default")], "nobody's jobs have no user's limits"


def test_limits_of_memory_and_cpus_are_read_with_what_a_task_takes_whose_job_does_not_say() -> None:
    text = "each-task: {memory-mb: 512, cpus: 0.25}\nusers: {ada: {memory-mb: 4096, cpus: 1.5}}\neach-user: {cpus: 1}"
    queues = parse_queues(text, "q")
    assert queues.limits_of(Scope("user", "ada")) == Limits(memory_mb=4096, cpus=Decimal("1.5"))
    assert queues.limits_of(Scope("user", "eve")) == Limits(cpus=Decimal(1))
    assert queues.demand(Asked()) == Demand(512, Decimal("0.25"))
    assert queues.demand(Asked.of({"job.task.memory": "1025 kb"})) == Demand(2, Decimal("0.25")), "rounded up"
    asked = Asked.of({"job.task.memory": "1 gb", "job.task.cpus": "0.1", "job.queue": "etl"}, 2 << 30)
    assert queues.demand(asked) == Demand(2048, Decimal("0.1")), "a vertex that may take more counts"
    assert (queues.limits_sizes, parse_queues(WHOLE, "q").limits_sizes) == (True, False)


def test_a_task_that_takes_more_than_a_limit_can_ever_give_is_refused() -> None:
    text = "each-task: {memory-mb: 512, cpus: 1}\ngroups: {g: {members: [ada], memory-mb: 1024}}\neach-user: {cpus: 2}"
    queues, ada = parse_queues(text, "q"), Member("ada", "default")
    queues.check_demand(ada, Demand(1024, Decimal(2)))
    queues.check_demand(Member("", "default"), Demand(4096, Decimal(9)))
    words = "takes 1025 MB of memory, and group g may use 1024 MB in total; set job.task.memory to less"
    with pytest.raises(QueueRefusedError, match=words):
        queues.check_demand(ada, Demand(1025))
    words = r"takes 2.5 CPUs, and user bob may use 2 in total; set job.task.cpus to less"
    with pytest.raises(QueueRefusedError, match=words):
        queues.check_demand(Member("bob", "default"), Demand(4096, Decimal("2.5")))


def test_a_job_is_in_the_queue_that_it_names_or_that_names_its_user_or_in_the_default_one() -> None:
    queues = parse_queues(WHOLE, "q.yaml")
    places = {user: queues.queue_of(user, "").name for user in ("ada", "bob", "eve", "")}
    assert places == {"ada": "etl", "bob": "etl", "eve": "default", "": "default"}
    assert queues.queue_of("ada", "urgent").name == "urgent"
    assert queues.queue_of("ada", "default").name == "default"
    with pytest.raises(QueueRefusedError, match=r"'urgent' may not be used by user bob; job.queue can be etl, default"):
        queues.queue_of("bob", "urgent")
    with pytest.raises(QueueRefusedError, match=r"'etl' may not be used by a job without a user; .* can be default$"):
        queues.queue_of("", "etl")
    with pytest.raises(QueueRefusedError, match=r"'nowhere' does not exist; job.queue can be default"):
        Queues().queue_of("eve", "nowhere")


def test_an_empty_file_and_json_are_right_too() -> None:
    assert parse_queues("", "q").queues == (Queue("default"),)
    assert parse_queues('{"queues": {"a": {"slots": 1}}}', "q").queue("a").limits == Limits(1)
    assert parse_queues("queues: {default: {weight: 2}}", "q").queues == (Queue("default", 2.0),)
    assert parse_queues("queues: {a: }", "q").queue("a") == Queue("a")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("quues: {}", "q: quues: there is no such key here; there are queues, groups"),
        ("queues: {a: {slot: 1}}", "q: queues.a.slot: there is no such key here"),
        ("queues: {a: {slots: 0}}", "q: queues.a.slots: '0' must be a whole number from 1 to"),
        ("queues: {a: {slots: true}}", "q: queues.a.slots: 'True' must be a whole number"),
        ("queues: {a: {slots: }}", "q: queues.a.slots: 'None' must be a whole number"),
        ("queues: {a: {weight: 0}}", "q: queues.a.weight: '0' must be a number from 0.001"),
        ("queues: {a: {weight: .nan}}", "q: queues.a.weight: 'nan' must be a number"),
        ("queues: {a: {weight: }}", "q: queues.a.weight: 'None' must be a number"),
        ("queues: {a: {priority: 1.5}}", "q: queues.a.priority: '1.5' must be a whole number"),
        ("queues: {a: {users: ada}}", r"q: queues.a.users: 'ada' is not a list of names; write \[ada, bob\]"),
        ("queues: {a: {groups: [g]}}", "q: queues.a.groups: there is no group 'g': there are none; add it"),
        ("queues: {default: {users: [ada]}}", "q: queues.default: this queue is for all users; remove"),
        ("queues: {a b: {}}", "q: queues: 'a b' is not a name; a name has"),
        ("queues: [a]", r"q: queues: \"\['a'\]\" is not a map; write"),
        ("queues: {1: {}}", "q: queues: the key '1' is not text; put it in quotation marks"),
        ("groups: {g: {members: [1]}}", r"q: groups.g.members: '\[1\]' is not a list of names"),
        ("users: {ada: {weight: 1}}", "q: users.ada.weight: there is no such key here; there are slots"),
        ("users: {ada: {memory-mb: 1}}", "q: each-task.memory-mb: there are limits of memory-mb; set here what a task"),
        ("queues: {a: {cpus: 1}}\neach-task: {memory-mb: 1}", "q: each-task.cpus: there are limits of cpus; set here"),
        ("each-task: {blob-mb: 1}", "q: each-task.blob-mb: there is no such key here; there are memory-mb, cpus"),
        ("each-task: {slots: 1}", "q: each-task.slots: there is no such key here; there are memory-mb, cpus"),
        ("each-user: {cpus: 0}", "q: each-user.cpus: '0' must be a number from 0.001"),
        ("groups: {g: {memory-mb: 2 gb}}", "q: groups.g.memory-mb: '2 gb' must be a whole number from 1"),
        ("half-life: 5", "q: half-life: 5 is not a time; write a number with its unit"),
        ("each-user: {waiting-jobs: -1}", "q: each-user.waiting-jobs: '-1' must be a whole number from 0"),
        ("users: {ada: {slots: 1}}\nusers: {}", "q:2: the key 'users' is given twice; fix this line"),
        ("users: &a {}\neach-user: *a", "q:2: aliases are not supported; fix this line"),
        ("users: {", "q:1: .*; fix this line"),
        ("a: !!python/object:os.system {}", "q:1: could not determine a constructor"),
        ("users: \x01", "q: not valid YAML: .*; save the file as YAML or JSON"),
    ],
)
def test_what_is_wrong_is_said_on_one_line_with_its_place_and_a_remedy(text: str, words: str) -> None:
    with pytest.raises(QueuesError, match=words) as refused:
        parse_queues(text, "q")
    assert "\n" not in str(refused.value)


def write(path: Path, text: str) -> None:
    new = path.with_suffix(".new")
    new.write_text(text)
    new.replace(path)


def test_the_file_is_read_again_when_it_has_changed_and_a_wrong_one_leaves_the_last_in_use(tmp_path: Path) -> None:
    path = tmp_path / "queues.yaml"
    write(path, "each-user: {slots: 1}")
    file = QueuesFile(path)
    first = file.read()
    assert (first.each_user, file.problem) == (Limits(1), "")
    assert file.read() is first, "what has not changed is not read again"
    write(path, "each-user: {slots: 2}")
    assert file.read().each_user == Limits(2)
    write(path, "each-user: {slots: -2}")
    assert file.read().each_user == Limits(2)
    assert "each-user.slots" in file.problem
    path.unlink()
    assert file.read().each_user == Limits(2)
    assert "create the file, or unset queues.file" in file.problem
    write(path, "each-user: {slots: 3}")
    assert (file.read().each_user, file.problem) == (Limits(3), "")


@pytest.mark.parametrize("content", [None, b"\xff\xfe", b"queues: 5", b" " * (1024 * 1024 + 1)])
def test_a_file_that_was_never_right_is_refused(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "queues.yaml"
    if content is not None:
        path.write_bytes(content)
    file = QueuesFile(path)
    for _ in range(2):
        with pytest.raises(QueuesError, match=r"queues\.yaml"):
            file.read()


def test_without_a_file_there_is_one_queue_without_limits() -> None:
    file = QueuesFile(None)
    assert (file.read(), file.is_set) == (Queues(), False)
    assert not file.read().is_set
