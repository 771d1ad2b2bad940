from __future__ import annotations

import json
import struct
from dataclasses import replace

import pytest

from runtime.checkpoint.compatibility import Fit, check_job, check_query, left_behind
from runtime.checkpoint.description import OperatorDescription, QueryDescription, StoreDescription, source_kind
from runtime.checkpoint.metadata_log import IncompleteError
from runtime.checkpoint.state_schema import ColumnFamily, read_schemas, schema_fields


def schema(nullable: bool = True, **columns: object) -> str:
    fields = [{"name": name, "type": kind, "nullable": nullable, "metadata": {}} for name, kind in columns.items()]
    return json.dumps({"type": "struct", "fields": fields})


WINDOW = json.loads(schema(start="timestamp", end="timestamp"))
COUNTS = ColumnFamily("default", schema(window=WINDOW, carrier="string"), schema(count="long"))


def query(
    family: ColumnFamily = COUNTS,
    *more: ColumnFamily,
    partitions: int = 2,
    operator: str = "stateStoreSave",
    store: str = "default",
    sources: tuple[str, ...] = ("file",),
    **conf: str,
) -> QueryDescription:
    stores = (StoreDescription(store, partitions, (family, *more)),)
    settings = {f"spark.sql.{name.replace('__', '.')}": value for name, value in conf.items()}
    return QueryDescription("counts", sources, (OperatorDescription(0, operator, stores),), settings)


ALL_NULLABLE = "streaming__statefulOperator__alwaysNullableOutput__enabled"
KEPT = query(shuffle__partitions="2")


@pytest.mark.parametrize(
    ("kept", "now", "reason"),
    [
        (KEPT, query(sources=("file", "file")), "it had 1 sources and has 2; offsets belong to sources by their order"),
        (KEPT, query(sources=("kafka:a",)), "source 0 was file and is kafka"),
        (KEPT, query(operator="dedupe"), "stateful operator 0 was stateStoreSave and is dedupe"),
        (KEPT, replace(KEPT, operators=()), "stateful operator 0 (stateStoreSave) is not there any more"),
        (
            replace(KEPT, operators=()),
            KEPT,
            "stateful operator 0 (stateStoreSave) is new; the savepoint has no state for it",
        ),
        (KEPT, query(store="left"), "operator 0 (stateStoreSave) had the stores default and has left"),
        (
            KEPT,
            query(replace(COUNTS, key=schema(window=WINDOW, carrier="integer"))),
            "the key of operator 0 (stateStoreSave): column carrier was string and is integer",
        ),
        (
            KEPT,
            query(replace(COUNTS, key=schema(carrier="string"))),
            "the key of operator 0 (stateStoreSave) had 2 columns (window struct<start:timestamp,end:timestamp>, "
            "carrier string) and has 1 (carrier string)",
        ),
        (
            KEPT,
            query(replace(COUNTS, value=schema(count="long", late="long"))),
            "the value of operator 0 (stateStoreSave) had 1 columns (count long) and has 2 (count long, late long)",
        ),
        (
            query(replace(COUNTS, value=schema(False, count="long"))),
            KEPT,
            "the value of operator 0 (stateStoreSave): column count could not be null and can be now",
        ),
    ],
)
def test_what_does_not_fit(kept: QueryDescription, now: QueryDescription, reason: str) -> None:
    verdict = check_query(kept, now)
    assert verdict.fit is Fit.DOES_NOT_FIT
    assert verdict.reasons == (reason,)
    assert len(verdict.remedies) == (1 if kept.operators else 2)


@pytest.mark.parametrize("earlier", [{}, {ALL_NULLABLE: "false"}])
def test_a_query_of_an_earlier_spark_keeps_its_columns_that_are_never_null(earlier: dict[str, str]) -> None:
    kept = query(replace(COUNTS, value=schema(False, count="long")), **earlier)
    verdict = check_query(kept, query(**{ALL_NULLABLE: "true"}))  # Spark 4.3 shows all columns as nullable
    assert verdict.fit is Fit.FITS
    assert "column count could not be null; whether it can be now is only known with" in verdict.notes[0]
    assert check_query(kept, query(**{ALL_NULLABLE: "false"})).fit is Fit.DOES_NOT_FIT


def test_the_type_of_what_collect_list_keeps_is_not_known() -> None:
    kept = query(replace(COUNTS, value=schema(buf="binary")))
    verdict = check_query(kept, kept)
    assert verdict.fit is Fit.FITS
    assert "Spark reads them wrongly" in verdict.notes[0]


def test_what_makes_a_query_fit() -> None:
    named = replace(query(sources=("file", "rate")), source_names=("us", "clock"))
    positional = query(sources=("file", "rate"))

    def remedy(kept: QueryDescription, now: QueryDescription) -> str:
        [found] = check_query(kept, now).remedies
        return found

    assert "savepoint name-sources" in remedy(KEPT, positional)
    assert "savepoint name-sources" in remedy(positional, named)
    assert "the names us, clock" in remedy(named, positional)
    assert "another name" in remedy(named, replace(named, sources=("kafka:a", "rate")))
    assert "--allow-non-restored-state" in remedy(KEPT, query(operator="dedupe"))
    key = schema(window=WINDOW, carrier="integer")
    assert remedy(KEPT, query(replace(COUNTS, key=key))).startswith("before the operator, cast")
    assert "coalesce" in remedy(query(replace(COUNTS, value=schema(False, count="long"))), KEPT)
    assert check_query(KEPT, KEPT).remedies == ()


PROVIDER = "streaming__stateStore__providerClass"
STATE = "org.apache.spark.sql.execution.streaming.state."
EVOLVE = "savepoint edit --schemas-from"


def test_the_state_gets_the_form_of_the_new_version_where_a_command_can_write_it() -> None:
    kept = query(**{PROVIDER: f"{STATE}RocksDBStateStoreProvider"})
    more = query(replace(COUNTS, value=schema(count="long", sum="long")))
    key = query(replace(COUNTS, key=schema(window=WINDOW, carrier="integer")))
    for now in (more, key, query(operator="dedupe"), query(store="left"), replace(kept, operators=())):
        *_, remedy = check_query(kept, now).remedies
        assert EVOLVE in remedy
        assert "convert" not in remedy
    assert EVOLVE in check_query(replace(kept, operators=()), more).remedies[-1]
    hashed = query(**{PROVIDER: f"{STATE}HDFSBackedStateStoreProvider"})
    assert "savepoint convert" in check_query(hashed, more).remedies[-1]
    avro = query(replace(COUNTS, key=schema(carrier="long")), streaming__stateStore__encodingFormat="avro")
    for before, now in (
        (kept, query(operator="globalLimit")),
        (kept, avro),
        (query(**{PROVIDER: "org.example.Store"}), more),
        (kept, query(sources=("kafka:a",))),
    ):
        assert not any(EVOLVE in remedy for remedy in check_query(before, now).remedies)


def test_sources_with_names_are_moved_added_and_removed() -> None:
    kept = replace(query(sources=("file", "kafka:a,b")), source_names=("us", "clicks"))
    now = replace(query(sources=("kafka:b", "file", "rate")), source_names=("clicks", "us", "clock"))
    verdict = check_query(kept, now)
    assert verdict.fit is Fit.FITS_WITH_LOSS
    assert verdict.losses == ("source clicks forgets where it was in a",)
    assert verdict.notes == ("source clock is new, and is read from its start",)
    verdict = check_query(kept, replace(query(), source_names=("us",)))
    assert verdict.losses == (
        "source clicks is not there any more; if it comes back after more than one batch, it is read from its start",
    )


def test_what_fits_and_is_good_to_know() -> None:
    assert check_query(KEPT, KEPT).fit is Fit.FITS
    assert check_query(KEPT, KEPT).notes == ()
    renamed = replace(COUNTS, key=schema(window=WINDOW, airline="string"))
    verdict = check_query(KEPT, query(renamed, partitions=5, shuffle__partitions="5"))
    assert verdict.fit is Fit.FITS
    assert verdict.notes == (
        "operator 0 (stateStoreSave) keeps its 2 partitions; the job asks for 5",
        "the key of operator 0 (stateStoreSave): column carrier is called airline now",
        "spark.sql.shuffle.partitions stays 2, as it was when the query began, and does not become 5",
    )
    provider = "spark.sql.streaming.stateStore.providerClass"
    hashmap, rocksdb = (f"a.{name}StateStoreProvider" for name in ("HDFSBacked", "RocksDB"))
    for old, new, command in ((hashmap, rocksdb, "savepoint convert"), (rocksdb, hashmap, "")):
        [note] = check_query(replace(KEPT, conf={provider: old}), replace(KEPT, conf={provider: new})).notes
        assert note.startswith(f"{provider} stays {old}")
        assert command in note
        assert ("savepoint convert" in note) == bool(command)
    # a column that was nullable may be so no longer, and names within a struct do not count
    window = json.loads(schema(begin="timestamp", end="timestamp"))
    assert check_query(KEPT, query(replace(COUNTS, key=schema(False, window=window, carrier="string")))).fit is Fit.FITS
    assert check_query(replace(KEPT, sources=("unknown",)), KEPT).fit is Fit.FITS
    assert check_query(QueryDescription("counts"), KEPT).fit is Fit.FITS  # no batch was begun


def test_topics() -> None:
    verdict = check_query(query(sources=("kafka:a,b",)), query(sources=("kafka:b,c",)))
    assert verdict.fit is Fit.FITS_WITH_LOSS
    assert verdict.losses == ("source 0 forgets where it was in a",)
    assert verdict.notes == ("source 0 begins to read c",)


def test_state_variables() -> None:
    total, seen = replace(COUNTS, name="total"), replace(COUNTS, name="seen")
    verdict = check_query(query(COUNTS, total), query(COUNTS, seen))
    assert verdict.fit is Fit.FITS_WITH_LOSS
    assert verdict.losses == ("the state variable total of operator 0 (stateStoreSave) is not there any more",)
    assert verdict.notes == ("the state variable seen of operator 0 (stateStoreSave) is new, and begins empty",)


def test_values_in_avro_may_evolve() -> None:
    avro = {"streaming__stateStore__encodingFormat": "avro"}
    total = ColumnFamily("total", schema(k="long"), schema(n="long", m="long"))
    verdict = check_query(query(total, **avro), query(replace(total, value=schema(n="long", o="long")), **avro))
    assert verdict.fit is Fit.FITS_WITH_LOSS
    what = "the value of state variable total of operator 0 (stateStoreSave)"
    assert verdict.losses == (f"{what}: column m is not there any more",)
    assert verdict.notes == (f"{what}: column o is new, and null at first",)
    verdict = check_query(query(total, **avro), query(replace(total, value=schema(n="string", m="long")), **avro))
    assert verdict.reasons == (f"{what}: column n was long and is string",)


def test_queries_that_only_one_side_has() -> None:
    verdicts = check_job([KEPT, replace(KEPT, name="gone")], [replace(KEPT, name="new"), KEPT])
    assert [(verdict.query, verdict.fit) for verdict in verdicts] == [
        ("new", Fit.FITS),
        ("counts", Fit.FITS),
        ("gone", Fit.FITS_WITH_LOSS),
    ]
    assert verdicts[0].notes == ("it is new, and begins without state",)
    assert verdicts[2].losses == ("the job has no such query: its state and position are left behind",)
    assert left_behind(verdicts) == ("gone",)
    texts = [replace(verdict, losses=("another text",)) for verdict in verdicts]
    assert left_behind(texts) == ("gone",), "the text of a loss decides nothing"


@pytest.mark.parametrize(
    ("offset", "kind"),
    [
        (None, "unknown"),
        ('{"logOffset":3}', "file"),
        ('{"b":{"0":1},"a":{"0":5,"1":7}}', "kafka:a,b"),
        ("17", "rate"),
        ('{"my":"own"}', "other"),
        ("true", "other"),
        ("not JSON", "other"),
    ],
)
def test_what_an_offset_tells_of_its_source(offset: str | None, kind: str) -> None:
    assert source_kind(offset) == kind


def text(value: str) -> bytes:
    return struct.pack(">H", len(value.encode())) + value.encode()


def chunks(*values: str) -> bytes:
    return struct.pack(">i", len(values)) + b"".join(map(text, values))


def test_schema_files_of_all_forms() -> None:
    key, value = schema(k="integer"), schema(n="long", tags={"type": "array", "elementType": "string"})
    expected = (ColumnFamily("default", key, value),)
    assert read_schemas(text("v1") + text(key) + text(value)) == expected
    assert read_schemas(text("v2") + chunks(key[:9], key[9:]) + chunks(value)) == expected
    zero = b"\0\0"
    family = text("total") + zero + chunks(key) + zero + chunks(value) + chunks("{}") + chunks("{}")
    third = text("v3") + struct.pack(">i", 1) + family
    assert read_schemas(third) == (ColumnFamily("total", key, value),)
    assert list(schema_fields(value)) == [("n", "long"), ("tags", "array<string>")]
    assert list(schema_fields(COUNTS.key)) == [
        ("window.start", "timestamp"),
        ("window.end", "timestamp"),
        ("carrier", "string"),
    ]
    for size in range(len(third)):
        with pytest.raises(IncompleteError):
            read_schemas(third[:size])
    with pytest.raises(IncompleteError, match="unknown form 'v9'"):
        read_schemas(text("v9"))
    with pytest.raises(IncompleteError, match="not a schema"):
        list(schema_fields("[]"))
