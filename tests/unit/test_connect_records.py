"""Named sessions: which calls are recorded, which of them a session is rebuilt from, and the files; no Spark."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.connect.proto import base_pb2

from runtime.rest.connect import record as records
from runtime.rest.connect import record_files
from runtime.rest.connect.calls import CallRefusedError, name_of
from runtime.rest.connect.record import (
    ADD_ARTIFACTS,
    Change,
    Kind,
    RecordError,
    SessionRecord,
    Stage,
    change_of,
    decode_record,
    is_query,
    messages_in,
)
from runtime.rest.connect.record_files import RecordFiles
from runtime.rest.connect.requests import (
    ANSWERED,
    OBSERVED,
    InvalidRequestError,
    as_of,
    is_complete,
    observed_by,
    unobserved,
)
from runtime.rest.connect.sessions import METHODS

SESSION = "00112233-4455-6677-8899-aabbccddeeff"
SHOWN = "ffffffff-4455-6677-8899-aabbccddeeff"
SERVED = base_pb2.DESCRIPTOR.services_by_name["SparkConnectService"].methods_by_name
EMPTY = SessionRecord("ada", "etl", SHOWN, SESSION)
MOST = 1 << 20


# ------------------------------------------------------------------ requests


def executed(**plan: Any) -> bytes:
    made = base_pb2.ExecutePlanRequest(
        session_id=SESSION,
        client_observed_server_side_session_id=SHOWN,
        user_context=base_pb2.UserContext(user_id="ada"),
        operation_id=SHOWN,
        plan=base_pb2.Plan(**plan),
    )
    made.request_options.add().reattach_options.reattachable = True
    return bytes(made.SerializeToString())


def sql(query: str) -> bytes:
    request = base_pb2.ExecutePlanRequest(session_id=SESSION)
    request.plan.command.sql_command.input.sql.query = query
    return bytes(request.SerializeToString())


def view(name: str, of: str = "SELECT 1", *, is_global: bool = False) -> bytes:
    request = base_pb2.ExecutePlanRequest.FromString(executed())
    made = request.plan.command.create_dataframe_view
    made.name, made.is_global, made.replace, made.input.sql.query = name, is_global, True, of
    return bytes(request.SerializeToString())


def dropped(name: str) -> bytes:
    request = base_pb2.ExecutePlanRequest()
    request.plan.root.catalog.drop_temp_view.view_name = name
    return bytes(request.SerializeToString())


def registered(name: str, kind: str = "register_function", command: bytes = b"pickle") -> bytes:
    request = base_pb2.ExecutePlanRequest()
    made = getattr(request.plan.command, kind)
    if kind == "register_data_source":
        made.name, made.python_data_source.command = name, command
    else:
        made.function_name = name
        part = made.python_udf if kind == "register_function" else made.python_udtf
        part.command = command
    return bytes(request.SerializeToString())


def config(**values: str) -> bytes:
    request = base_pb2.ConfigRequest(session_id=SESSION)
    for key, value in values.items():
        request.operation.set.pairs.add(key=key, value=value)
    return bytes(request.SerializeToString())


def unset(*keys: str) -> bytes:
    request = base_pb2.ConfigRequest(session_id=SESSION)
    request.operation.unset.keys.extend(keys)
    return bytes(request.SerializeToString())


def added(name: str, data: bytes = b"x = 1") -> bytes:
    request = base_pb2.AddArtifactsRequest(session_id=SESSION, client_type="c")
    request.batch.artifacts.add(name=name, data=base_pb2.AddArtifactsRequest.ArtifactChunk(data=data, crc=7))
    return bytes(request.SerializeToString())


def the_change(method: str, *requests: bytes) -> Change:
    change = change_of(method, requests)
    assert change is not None
    return change


class Recorded:
    """A record that is built call by call, as (method, request)."""

    def __init__(self, most: int = MOST) -> None:
        self.record = EMPTY
        self.most = most

    def call(self, method: str, *requests: bytes, certain: bool = True) -> int | None:
        self.record, entry = self.record.with_change(method, the_change(method, *requests), self.most)
        if entry is None:
            return None
        if certain:
            self.record = self.record.certain(entry.number)
        return entry.number

    def plan(self, *requests: bytes, certain: bool = True) -> None:
        for request in requests:
            self.call("ExecutePlan", request, certain=certain)

    @property
    def shown(self) -> list[str]:
        return [entry.shown.removeprefix("the ") for entry in self.record.entries]


# ------------------------------------------------------------------ what is recorded


@pytest.mark.parametrize(
    ("method", "request_", "kind", "names"),
    [
        ("ExecutePlan", view("Sales"), Kind.VIEW, ("sales",)),
        ("ExecutePlan", registered("Twice"), Kind.FUNCTION, ("twice",)),
        ("ExecutePlan", registered("rows", "register_table_function"), Kind.TABLE_FUNCTION, ("rows",)),
        ("ExecutePlan", registered("mine", "register_data_source"), Kind.SOURCE, ("mine",)),
        ("ExecutePlan", dropped("sales"), Kind.VIEW, ("sales",)),
        ("Config", config(a="1", b="2"), Kind.SETTING, ("a", "b")),
        ("Config", unset("a"), Kind.SETTING, ("a",)),
        (ADD_ARTIFACTS, added("pyfiles/helper.py"), Kind.ARTIFACT, ("pyfiles/helper.py",)),
        ("ExecutePlan", sql("CREATE OR REPLACE TEMP VIEW Sales AS SELECT 1"), Kind.VIEW, ("sales",)),
        (
            "ExecutePlan",
            sql("-- for ada\ncreate /* a */ temporary view `my sales`(a) AS\nSELECT 1"),
            Kind.VIEW,
            ("my sales",),
        ),
        ("ExecutePlan", sql("CREATE TEMPORARY VIEW IF NOT EXISTS v USING csv"), Kind.VIEW, ("v",)),
        ("ExecutePlan", sql("CREATE TEMPORARY FUNCTION f AS 'a.B'"), Kind.FUNCTION, ("f",)),
        ("ExecutePlan", sql("DROP VIEW IF EXISTS v"), Kind.VIEW, ("v",)),
        ("ExecutePlan", sql("drop temporary function f"), Kind.FUNCTION, ("f",)),
        ("ExecutePlan", sql("ALTER VIEW v AS SELECT 2"), Kind.VIEW, ("v",)),
        ("ExecutePlan", sql("SET spark.sql.ansi.enabled = false"), Kind.SETTING, ("spark.sql.ansi.enabled",)),
        ("ExecutePlan", sql("SET TIME ZONE 'UTC'"), Kind.STATEMENT, ()),
        ("ExecutePlan", sql("SET VAR x = x + 1"), Kind.STATEMENT, ()),
        ("ExecutePlan", sql("RESET"), Kind.STATEMENT, ()),
        ("ExecutePlan", sql("USE db"), Kind.STATEMENT, ()),
        ("ExecutePlan", sql("DECLARE OR REPLACE VARIABLE x = 1"), Kind.STATEMENT, ()),
    ],
)
def test_what_changes_a_session_is_recorded(method: str, request_: bytes, kind: Kind, names: tuple[str, ...]) -> None:
    change = the_change(method, request_)
    assert (change.kind, change.names) == (kind, names)
    (message,) = messages_in(change.content)
    replayed = getattr(base_pb2, SERVED[method].input_type.name).FromString(message)
    original = getattr(base_pb2, SERVED[method].input_type.name).FromString(request_)
    assert (replayed.session_id, replayed.user_context.user_id, replayed.client_type) == ("", "", "")
    payload = {"ExecutePlan": "plan", "Config": "operation", ADD_ARTIFACTS: "batch"}[method]
    assert getattr(replayed, payload) == getattr(original, payload)
    if method == "ExecutePlan":
        assert (replayed.operation_id, len(replayed.request_options)) == ("", 0)
        assert not replayed.client_observed_server_side_session_id


@pytest.mark.parametrize(
    ("method", "request_"),
    [
        ("ExecutePlan", sql("SELECT 1")),
        ("ExecutePlan", sql("SET")),
        ("ExecutePlan", sql("SET spark.sql.ansi.enabled")),
        ("ExecutePlan", sql("CREATE VIEW db.v AS SELECT 1")),
        ("ExecutePlan", sql("DROP VIEW db.v")),
        ("ExecutePlan", sql("DROP VIEW db . v")),
        ("ExecutePlan", sql("CREATE TABLE t AS SELECT 1")),
        ("ExecutePlan", sql("CREATE GLOBAL TEMP VIEW v AS SELECT 1")),
        ("ExecutePlan", sql("INSERT INTO t SELECT 'create temp view v'")),
        ("ExecutePlan", view("v", is_global=True)),
        ("ExecutePlan", executed()),
        ("Config", base_pb2.ConfigRequest(session_id=SESSION).SerializeToString()),
        ("AnalyzePlan", base_pb2.AnalyzePlanRequest(session_id=SESSION).SerializeToString()),
    ],
)
def test_what_changes_no_session_is_not(method: str, request_: bytes) -> None:
    assert change_of(method, [request_]) is None


def test_a_query_may_be_repeated_and_nothing_else() -> None:
    query = base_pb2.ExecutePlanRequest()
    query.plan.root.sql.query = "SELECT 1"
    assert is_query("ExecutePlan", query.SerializeToString())
    for request in (view("v"), sql("INSERT INTO t SELECT 1"), dropped("v"), executed()):
        assert not is_query("ExecutePlan", request)
    assert not is_query("ReattachExecute", query.SerializeToString())
    query.plan.root.catalog.create_table.table_name = "t"
    assert not is_query("ExecutePlan", query.SerializeToString())


def test_a_compressed_command_is_recorded_without_compression() -> None:
    plain = base_pb2.ExecutePlanRequest.FromString(view("big")).plan
    request = base_pb2.ExecutePlanRequest()
    compressed = request.plan.compressed_operation
    compressed.data = zstandard.compress(plain.command.SerializeToString())
    compressed.op_type, compressed.compression_codec = 2, 1
    change = the_change("ExecutePlan", request.SerializeToString())
    assert change.names == ("big",)
    (message,) = messages_in(change.content)
    assert base_pb2.ExecutePlanRequest.FromString(message).plan == plain
    compressed.op_type = 1  # a query
    assert change_of("ExecutePlan", [request.SerializeToString()]) is None
    compressed.op_type, compressed.data = 2, b"no zstd"
    with pytest.raises(InvalidRequestError, match="compressed plan cannot be read"):
        change_of("ExecutePlan", [request.SerializeToString()])


def test_a_compressed_command_is_not_decompressed_beyond_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "MOST_PLAN", 1000)
    request = base_pb2.ExecutePlanRequest()
    compressed = request.plan.compressed_operation
    compressed.data, compressed.op_type, compressed.compression_codec = zstandard.compress(b"\0" * 10_000_000), 2, 1
    with pytest.raises(RecordError, match="a session without session_name"):
        change_of("ExecutePlan", [request.SerializeToString()])


@given(st.binary(max_size=200), st.sampled_from(["ExecutePlan", "Config", ADD_ARTIFACTS]))
def test_whatever_comes_is_refused_or_read(noise: bytes, method: str) -> None:
    with contextlib.suppress(InvalidRequestError):
        change_of(method, [noise])


def test_no_text_takes_long_to_read() -> None:
    # Each of them took ages if a pattern could match the same text in several ways.
    for text in ("/* */ " * 20_000 + "x", "create " + "-- a\n" * 20_000, "drop view " + "a" * 100_000 + " " * 100_000):
        change_of("ExecutePlan", [sql(text)])


# ------------------------------------------------------------------ what stays recorded


def test_a_record_keeps_the_order_of_what_depends_on_each_other() -> None:
    recorded = Recorded()
    recorded.plan(view("a"), view("b", "SELECT * FROM A"), view("a", "SELECT 2"))
    assert recorded.shown == ["temporary view a", "temporary view b", "temporary view a"]
    recorded.plan(view("b", "SELECT 3"))
    assert recorded.shown == ["temporary view a", "temporary view b"], "the first view a has no user any more"


def test_a_view_that_is_made_of_its_former_self_needs_it() -> None:
    recorded = Recorded()
    recorded.plan(view("sales"), view("sales", "SELECT * FROM sales WHERE x"), sql("ALTER VIEW sales AS SELECT 1"))
    assert len(recorded.shown) == 3


@pytest.mark.parametrize("text", ["SELECT * FROM identifier('sa' || 'les')", "SELECT * FROM `sales`"])
def test_a_name_that_is_written_in_another_way_counts_as_used(text: str) -> None:
    recorded = Recorded()
    recorded.plan(view("sales"), view("other", text), view("sales"))
    assert len(recorded.shown) == 3


def test_a_notebook_that_runs_its_cells_again_and_again_has_a_short_record() -> None:
    recorded = Recorded()
    for _ in range(50):
        recorded.call("Config", config(zone="UTC"))
        recorded.call(ADD_ARTIFACTS, added("pyfiles/helper.py"))
        recorded.plan(registered("twice"), view("sales"), sql("CREATE OR REPLACE TEMP VIEW top AS SELECT * FROM sales"))
    assert sorted(recorded.shown) == [
        "artifact pyfiles/helper.py",
        "function twice",
        "setting zone",
        "temporary view sales",
        "temporary view top",
    ]


def test_a_view_keeps_the_settings_under_which_it_was_made() -> None:
    recorded = Recorded()
    recorded.call("Config", config(zone="UTC"))
    recorded.plan(view("v"))
    recorded.call("Config", config(zone="CET"))
    assert recorded.shown == ["setting zone", "temporary view v", "setting zone"]
    recorded.call("Config", config(zone="PST"))
    assert recorded.shown == ["setting zone", "temporary view v", "setting zone"]
    assert messages_in(the_change("Config", config(zone="PST")).content)
    assert recorded.record.entries[-1].number == 3


def test_the_same_setting_after_a_reset_is_none_too_many() -> None:
    recorded = Recorded()
    recorded.call("Config", config(zone="UTC"))
    recorded.plan(sql("RESET"))
    recorded.call("Config", config(zone="UTC"))
    assert recorded.shown == ["setting zone", "statement", "setting zone"]


def test_a_dropped_view_leaves_nothing_and_a_view_of_a_database_is_never_dropped() -> None:
    recorded = Recorded()
    recorded.plan(view("v"), dropped("v"))
    assert recorded.shown == []
    recorded.plan(dropped("v"), sql("DROP VIEW v"), sql("ALTER VIEW v AS SELECT 1"))
    assert recorded.shown == []
    recorded.plan(view("v"), view("w", "SELECT * FROM v"), sql("DROP VIEW IF EXISTS V"))
    assert recorded.shown == ["temporary view v", "temporary view w", "removal of the temporary view v"]
    recorded.plan(dropped("w"))
    assert recorded.shown == []


def test_a_refused_call_leaves_nothing_and_one_without_an_answer_stays() -> None:
    recorded = Recorded()
    number = recorded.call("ExecutePlan", view("v"), certain=False)
    assert number is not None
    assert [entry.is_certain for entry in recorded.record.entries] == [False]
    assert recorded.record.without(number).entries == ()
    recorded.plan(view("w"))
    assert recorded.shown == ["temporary view v", "temporary view w"]
    recorded.plan(view("v"))
    assert [entry.is_certain for entry in recorded.record.entries] == [True, True], "the client has made it again"


# ------------------------------------------------------------------ limits


def test_a_call_that_has_no_room_is_refused_with_the_remedy() -> None:
    recorded = Recorded(most=1000)
    recorded.plan(view("v"))
    with pytest.raises(RecordError, match=r"no room for the function twice: .* raise connect.session.most-recorded"):
        recorded.plan(registered("twice", command=b"x" * 1000))
    assert recorded.shown == ["temporary view v"]


def test_a_record_has_a_limit_of_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "MOST_ENTRIES", 3)
    recorded = Recorded()
    recorded.plan(view("a"), view("b"), view("c"))
    with pytest.raises(RecordError, match="it has 3 calls"):
        recorded.plan(view("d"))


def test_local_data_that_no_view_uses_makes_room() -> None:
    recorded = Recorded(most=2500)
    hashes = [letter * 64 for letter in "abc"]
    for each in hashes[:2]:
        recorded.call(ADD_ARTIFACTS, added(f"cache/{each}", b"x" * 800))
    recorded.plan(view("v", f"SELECT '{hashes[0]}'"))
    recorded.call(ADD_ARTIFACTS, added(f"cache/{hashes[2]}", b"x" * 800))
    assert [name for entry in recorded.record.entries for name in entry.names] == [
        f"cache/{hashes[0]}",
        "v",
        f"cache/{hashes[2]}",
    ]
    with pytest.raises(RecordError, match="make the DataFrame from a file"):
        recorded.plan(view("w", f"SELECT '{hashes[1]}'"))


# ------------------------------------------------------------------ the session that its client sees


def test_the_fields_are_those_of_spark() -> None:
    assert set(ANSWERED) == METHODS
    assert set(OBSERVED) == METHODS - {"ReleaseSession"}
    for method in METHODS:
        asked, answered = SERVED[method].input_type.fields_by_name, SERVED[method].output_type.fields_by_name
        if method in OBSERVED:
            assert asked["client_observed_server_side_session_id"].number == OBSERVED[method]
        assert (answered["session_id"].number, answered["server_side_session_id"].number) == ANSWERED[method]


@pytest.mark.parametrize("method", sorted(OBSERVED))
def test_a_client_sees_one_session_whichever_driver_has_it(method: str) -> None:
    request = getattr(base_pb2, SERVED[method].input_type.name)
    message = request(session_id=SESSION, client_observed_server_side_session_id=SHOWN, client_type="c" * 300)
    sent = message.SerializeToString()
    assert observed_by(method, sent) == SHOWN
    got = request.FromString(unobserved(method, sent))
    assert (got.session_id, got.client_observed_server_side_session_id, got.client_type) == (SESSION, "", "c" * 300)
    answer = getattr(base_pb2, SERVED[method].output_type.name)
    theirs = answer(session_id="theirs", server_side_session_id="of this driver").SerializeToString()
    seen = answer.FromString(as_of(method, theirs, SESSION, SHOWN))
    assert (seen.session_id, seen.server_side_session_id) == (SESSION, SHOWN)


def test_answers_that_spark_ends_early_make_no_call_certain() -> None:
    part = base_pb2.ExecutePlanResponse(session_id=SESSION).SerializeToString()
    last = base_pb2.ExecutePlanResponse(result_complete=base_pb2.ExecutePlanResponse.ResultComplete())
    assert not is_complete(view("v"), [part])
    assert is_complete(view("v"), [part, last.SerializeToString()])
    assert is_complete(sql("USE db"), [part]), "this client never reattaches"


@pytest.mark.parametrize("name", ["etl", "a.b-c_9", "x" * 64])
def test_a_name_is_a_parameter_of_the_url(name: str) -> None:
    assert name_of([("x-other", "1"), ("session_name", name)]) == name


@pytest.mark.parametrize("names", [[""], ["a/b"], ["x" * 65], ["a", "b"], ["a b"], ["é"]])
def test_another_name_is_refused(names: list[str]) -> None:
    with pytest.raises(CallRefusedError, match="1 to 64 letters"):
        name_of([("session_name", name) for name in names])
    assert name_of(None) == ""


def test_a_record_is_read_as_it_was_written_and_by_a_release_with_more_fields() -> None:
    recorded = Recorded()
    recorded.plan(view("a"), view("b", "SELECT * FROM a"), dropped("a"))
    record = recorded.record.at(Stage.READY).on_another_driver(SHOWN).at(Stage.REPLAYING)
    assert decode_record(record.to_json()) == record
    assert decode_record(record.to_json().replace('"rebuilt"', '"new": 1, "rebuilt"')) == record
    assert record.rebuilt == 1
    for text in ("", "[]", "{}", '{"user": "ada"}', record.to_json().replace("replaying", "dancing")):
        with pytest.raises(RecordError, match="damaged"):
            decode_record(text)


# ------------------------------------------------------------------ files


def written(files: RecordFiles, recorded: Recorded, method: str, request: bytes) -> None:
    change = the_change(method, request)

    def to(found: SessionRecord | None) -> SessionRecord:
        after, entry = (found or EMPTY).with_change(method, change, MOST)
        assert entry is not None
        return after.certain(entry.number)

    made = files.change("ada", "etl", to, change.content)
    assert made is not None
    recorded.record = made


def record_file(directory: Path) -> Path:
    (found,) = directory.rglob("record.json")
    return found


def test_a_user_has_a_limited_number_of_named_sessions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_files, "MOST_SESSIONS", 2)
    files = RecordFiles(tmp_path, 60.0)

    def begin(user: str, name: str) -> None:
        files.change(user, name, lambda found: found or SessionRecord(user, name, SHOWN, SESSION))

    for user, name in (("ada", "a"), ("ada", "b"), ("ada", "a"), ("bob", "a"), ("bob", "b")):
        begin(user, name)
    with pytest.raises(RecordError, match=r"has 2 others; end one with spark.stop\(\)"):
        begin("ada", "c")
    files.remove("ada", "a")
    begin("ada", "c")


def test_what_is_recorded_is_private_and_removed_with_its_session(tmp_path: Path) -> None:
    files, recorded = RecordFiles(tmp_path / "records", 60.0), Recorded()
    assert files.read("ada", "etl") is None
    written(files, recorded, "Config", config(password="secret"))
    written(files, recorded, "ExecutePlan", view("v"))
    written(files, recorded, "ExecutePlan", view("v", "SELECT 2"))
    assert files.read("ada", "etl") == recorded.record
    assert [messages_in(files.content(recorded.record, entry)) for entry in recorded.record.entries] == [
        messages_in(the_change("Config", config(password="secret")).content),
        messages_in(the_change("ExecutePlan", view("v", "SELECT 2")).content),
    ]
    found = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(found) == 4, "the lock, the record and two calls; the replaced view is gone"
    assert {path.stat().st_mode & 0o777 for path in found} == {0o600}
    assert {path.stat().st_mode & 0o777 for path in tmp_path.rglob("*") if path.is_dir()} == {0o700}
    files.remove("ada", "etl", "another session's id")
    assert files.read("ada", "etl") == recorded.record
    files.remove("ada", "etl", SESSION)
    assert files.read("ada", "etl") is None
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["lock"]


def test_a_name_is_another_session_for_each_user(tmp_path: Path) -> None:
    files, recorded = RecordFiles(tmp_path, 60.0), Recorded()
    written(files, recorded, "ExecutePlan", view("v"))
    assert files.read("bob", "etl") is None
    # Even if a file of ada's stands where bob's would be.
    ada = record_file(tmp_path)
    files.change("bob", "etl", lambda _: SessionRecord("bob", "etl", SHOWN, SHOWN))
    (bob,) = {*tmp_path.rglob("record.json")} - {ada}
    bob.write_bytes(ada.read_bytes())
    with pytest.raises(RecordError, match="the record of another session"):
        files.read("bob", "etl")


def test_what_is_idle_for_too_long_is_removed(tmp_path: Path) -> None:
    files, recorded = RecordFiles(tmp_path, 60.0), Recorded()
    written(files, recorded, "ExecutePlan", view("v"))
    assert 0 < files.sweep() <= 60.0
    place = record_file(tmp_path).parent
    past = time.time() - 61
    os.utime(place / "record.json", (past, past))
    assert files.read("ada", "etl") is None, "before it is removed, too"
    files.touch("ada", "etl")
    assert files.read("ada", "etl") is not None
    os.utime(place / "record.json", (past, past))
    assert files.sweep() == 60.0
    assert [path.name for path in tmp_path.iterdir()] == ["lock"]
    assert files.change("ada", "etl", lambda found: found) is None


def test_a_damaged_record_is_named_and_can_be_removed(tmp_path: Path) -> None:
    files, recorded = RecordFiles(tmp_path, 60.0), Recorded()
    written(files, recorded, "ExecutePlan", view("v"))
    place = record_file(tmp_path).parent
    (entry,) = recorded.record.entries
    (place / entry.digest).write_bytes(b"other")
    with pytest.raises(RecordError, match="the temporary view v is not what was recorded"):
        files.content(recorded.record, entry)
    (place / entry.digest).unlink()
    with pytest.raises(RecordError, match="cannot be read"):
        files.content(recorded.record, entry)
    (place / "record.json").write_text("{")
    with pytest.raises(RecordError, match=r"spark.stop\(\) removes it") as caught:
        files.read("ada", "etl")
    assert str(place) in str(caught.value)
    files.remove("ada", "etl")
    assert not place.exists()


def test_changes_of_several_masters_do_not_get_lost(tmp_path: Path) -> None:
    def note(letter: str) -> None:
        files, recorded = RecordFiles(tmp_path, 60.0), Recorded()
        for number in range(10):
            written(files, recorded, "ExecutePlan", view(f"{letter}{number}"))

    threads = [threading.Thread(target=note, args=(letter,)) for letter in "xyz"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = RecordFiles(tmp_path, 60.0).read("ada", "etl")
    assert found is not None
    assert len(found.entries) == 30
    assert len({entry.number for entry in found.entries}) == 30


def test_one_caller_at_a_time_rebuilds_a_session(tmp_path: Path) -> None:
    first, second = RecordFiles(tmp_path, 60.0), RecordFiles(tmp_path, 60.0)
    with first.rebuilding("ada", "etl") as may:
        assert may
        with second.rebuilding("ada", "etl") as may_too, second.rebuilding("ada", "other") as may_another:
            assert (may_too, may_another) == (False, True)
    with second.rebuilding("ada", "etl") as may:
        assert may
    assert list(tmp_path.iterdir()) == []
