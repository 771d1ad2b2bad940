"""The user's own traceback."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

import runtime.spark
from runtime.spark import wire
from runtime.spark.messages import Failed, pack, unpack_from_task
from runtime.spark.task.control import describe

OURS = str(Path(runtime.spark.__file__).parent / "script.py")


def failure(text: str, file: str) -> BaseException:
    """What a program raises when it is run by our runner."""
    runner: dict[str, object] = {}
    exec(compile("def run(code):\n    exec(code, {})\n", OURS, "exec"), runner)
    run = runner["run"]
    assert callable(run)
    try:
        run(compile(text, file, "exec"))
    except BaseException as error:
        error.__traceback__ = error.__traceback__.tb_next if error.__traceback__ else None  # this function's own frame
        return error
    raise AssertionError("it did not fail")


def test_frames_of_ours_are_left_out_and_the_file_has_its_own_name(tmp_path: Path) -> None:
    file = tmp_path / "report.py"
    text = "def f():\n    1 / 0\nf()\n"
    file.write_text(text)
    described = describe(failure(text, str(file)), {str(file): "report.py"})
    assert (described.type, described.message) == ("ZeroDivisionError", "division by zero")
    lines = [line for line in described.traceback.splitlines() if not line.strip().startswith(("~", "^"))]
    assert lines == [
        "Traceback (most recent call last):",
        '  File "report.py", line 3, in <module>',
        "    f()",
        '  File "report.py", line 2, in f',
        "    1 / 0",
        "ZeroDivisionError: division by zero",
    ]


def test_causes_are_cleaned_too(tmp_path: Path) -> None:
    text = "try:\n    int('x')\nexcept ValueError as e:\n    raise KeyError('k') from e\n"
    described = describe(failure(text, "/long/way/report.py"), {"/long/way/report.py": "report.py"})
    assert described.traceback.count('File "report.py"') == 2
    assert "runtime/spark" not in described.traceback
    assert "/long/way" not in described.traceback


def test_syntax_error(tmp_path: Path) -> None:
    file = tmp_path / "broken.py"
    file.write_text("x = = 1\n")
    with pytest.raises(SyntaxError) as caught:
        runpy.run_path(str(file))
    described = describe(caught.value, {str(file): "broken.py"})
    assert 'File "broken.py", line 1' in described.traceback


def test_error_condition_of_pyspark() -> None:
    class Conditional(Exception):
        def getCondition(self) -> str:  # noqa: N802
            return "TABLE_OR_VIEW_NOT_FOUND"

    assert describe(Conditional("x"), {}).error_class == "TABLE_OR_VIEW_NOT_FOUND"
    assert describe(ValueError("x"), {}).error_class is None


@pytest.mark.parametrize(
    ("text", "remedy"),
    [
        ("java.lang.IllegalStateException: Cannot stop SparkContext within listener bus thread", "use spark.stop()"),
        (
            "[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: Job aborted due to stage failure:"
            " java.lang.AssertionError: assertion failed: Can only upgrade readStore to writeStore with the same"
            " stateStoreId",
            "leave dropDuplicates out",
        ),
    ],
)
def test_errors_of_spark_without_a_cause_get_it_and_the_remedy(text: str, remedy: str) -> None:
    described = describe(RuntimeError(text)).message
    assert described.endswith(f": {text}")
    assert remedy in described.removesuffix(text)


def test_long_texts_are_cut_in_the_middle() -> None:
    described = describe(ValueError("a" * 300_000 + "end"), {})
    assert len(described.message) < 210_000
    assert described.message.endswith("end")


def test_texts_that_utf8_cannot_encode_travel() -> None:
    """Python's name of a file that is not UTF-8 has surrogates, and an error with that name has them too."""
    described = describe(ValueError("/data/\udcff.csv has no header"), {})
    assert r"/data/\udcff.csv" in described.message
    assert r"/data/\udcff.csv" in described.traceback
    sent = unpack_from_task(wire.FrameReader().feed(wire.encode(pack(Failed(described))))[0])
    assert sent == Failed(described)


def test_an_error_without_a_text_is_described() -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no text")

    described = describe(Mute(), {})
    assert described.message == f"<exception str() failed> of {Mute.__qualname__}"
