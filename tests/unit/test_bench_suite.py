"""What all benchmarks came to: ratios, medians and spreads, what failed, and how that is shown."""

from __future__ import annotations

import re
from collections.abc import Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from tests.bench import flink, suite
from tests.bench.comparisons import COMPARISONS, growths
from tests.bench.guard import bounds, exceeded
from tests.bench.html_report import html_report
from tests.bench.page import TEXTS, page
from tests.bench.suite import Outcome, summary, surroundings

ROUNDS = [
    [
        Outcome("submit", {"cli_finished_s": 1.0, "spark_submit_s": 10.0, "overhead_ratio": 1.2}),
        Outcome("rpc", {"uds.pipelined_asks_per_s": 50.0, "pykka.asks_per_s": 100.0}),
        Outcome("scale", {"rm_slots_growth_exponent": 1.9, "rm_slots_bends_at": 250.0, "rm_bytes": 20000.0}),
    ],
    [
        Outcome("submit", {"cli_finished_s": 2.0, "spark_submit_s": 10.0, "overhead_ratio": 1.4}),
        Outcome("rpc", {}, "status 1: the port <is> taken"),
    ],
    [Outcome("submit", {"cli_finished_s": 6.0, "spark_submit_s": 10.0, "overhead_ratio": 1.3})],
]


@pytest.fixture
def result() -> dict[str, Any]:
    return summary(ROUNDS) | surroundings() | {"began": 0, "took_s": 60, "not_run": [], "not_installed": ["Ray"]}


def test_a_ratio_is_taken_within_a_round_and_told_with_its_spread(result: dict[str, Any]) -> None:
    ratios = {(one["what"], one["beside"]): one["ratio"] for one in result["ratios"]}
    assert ratios["job by the command line", "spark-submit"] == {"median": 0.2, "least": 0.1, "greatest": 0.6}
    (main_job,) = (ratio for (what, _), ratio in ratios.items() if what == "the main job")
    assert main_job["median"] == 1.3
    assert ratios["100 asks outstanding", "Pykka, in one process"]["median"] == 2.0, "half the rate is twice the time"
    assert len(ratios) == 3, "what was not measured is not told"
    assert result["figures"]["submit/cli_finished_s"] == {"median": 2.0, "least": 1.0, "greatest": 6.0}
    assert result["failed"] == [{"benchmark": "rpc", "error": "status 1: the port <is> taken"}]


def test_a_peer_that_is_not_installed_is_left_out_and_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found = {"pyspark": "4.1.0", "ray": "2.40.0"}
    monkeypatch.setattr(suite, "_version", lambda name: found.get(name, ""))
    around = surroundings()
    assert around["not_installed"] == ["xoscar", "Pykka", "Thespian", "Flink"]
    assert around["versions"] == found
    monkeypatch.setattr(flink, "flink_home", lambda: None)
    with flink.flink_session(tmp_path / "flink") as session:
        assert session is None
    assert not list(tmp_path.iterdir())


def test_a_job_is_set_beside_flinks_by_the_command_line_and_by_a_client_in_process() -> None:
    figures = {"cli_finished_s": 1.0, "finished_s": 0.2, "flink_run_s": 4.0, "flink_rest_finished_s": 0.1}
    told = summary([[Outcome("submit", figures)]])["ratios"]
    assert [(one["what"], one["ratio"]["median"], bool(one["why"])) for one in told] == [
        ("job by the command line", 0.25, False),
        ("job by a client in process", 2.0, True),
    ]
    assert all(one["beside"].startswith("Flink: ") for one in told), "what the page of charts calls them"


def test_every_comparison_has_a_name_of_its_own() -> None:
    assert len({(one.what, one.beside) for one in COMPARISONS}) == len(COMPARISONS)
    known = {one.what for one in COMPARISONS}
    assert set(bounds()["ratios"]) <= known


def test_the_page_says_what_was_measured_where_we_lose_and_what_was_left_out(result: dict[str, Any]) -> None:
    text = page(result)
    assert "| job by the command line | spark-submit | 0.2 | 0.1 - 0.6 |" in text
    lost = text.partition("## Where we lose, and why")[2].partition("\n## ")[0]
    assert "Pykka's actors are threads" in lost
    assert "command line" not in lost
    assert "Not installed, and left out: Ray." in text
    assert "rpc failed in one round" in text
    assert "| `rm_slots` | 1.90 | 250 |" in text
    assert all(len({row.count("|") for row in table.splitlines()}) == 1 for table in re.findall(r"(?:\|.*\n)+", text))


def test_a_run_that_is_stopped_keeps_what_had_ended_and_names_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[dict[str, Any]] = []

    def one(name: str, options: Sequence[str]) -> Outcome:
        if len(kept) == 3:
            raise KeyboardInterrupt
        return Outcome(name, {"p50_ms": float(len(kept))})

    monkeypatch.setattr(suite, "_one", one)
    with pytest.raises(KeyboardInterrupt):
        suite.run_all(["rpc", "scale", "rest"], 2, (), kept.append)
    assert kept[-1]["figures"]["rest/p50_ms"]["median"] == 2.0
    assert [so_far["not_run"] for so_far in kept] == [
        ["scale of round 1", "rest of round 1", "rpc of round 2", "rest of round 2"],
        ["rest of round 1", "rpc of round 2", "rest of round 2"],
        ["rpc of round 2", "rest of round 2"],
    ]
    line = "Not run, since it was stopped before: rpc of round 2, rest of round 2."
    assert line in page(kept[-1])
    assert line in html_report(kept[-1])


def test_the_committed_page_is_one_that_was_written_by_it() -> None:
    written = (Path(__file__).parents[2] / "docs" / "performance.md").read_text()
    assert written.startswith((TEXTS / "page_head.md").read_text()), (
        "python -m tests.bench page FILE > docs/performance.md"
    )


def test_the_html_is_whole_escaped_and_asks_for_nothing(result: dict[str, Any]) -> None:
    text = html_report(result)
    opened: list[str] = []

    class Checker(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            assert not {name for name, _ in attrs} & {"src", "href"}
            if tag not in ("meta", "line", "rect"):
                opened.append(tag)

        def handle_endtag(self, tag: str) -> None:
            if tag not in ("line", "rect"):
                assert opened.pop() == tag

    Checker().feed(text)
    assert opened == []
    assert "url(" not in text
    assert "<script" not in text
    assert "the port &lt;is&gt; taken" in text
    assert text.count("<svg") == 2


def test_a_figure_beyond_its_bound_is_named_with_both_numbers() -> None:
    assert exceeded({"a": 2.0, "b": 9.0}, {"a": 2.0, "b": 8.0, "c": 1.0}) == [
        "c: bound 1, not measured",
        "b: bound 8, measured 9",
    ]


def test_growths_are_found_with_their_bends() -> None:
    figures = {"x_growth_exponent": 1.1, "x_bends_at": 0.0, "y_growth_exponent": 2.0, "y_bends_at": 250.0, "z": 1.0}
    assert growths(figures) == [("x", 1.1, 0.0), ("y", 2.0, 250.0)]
