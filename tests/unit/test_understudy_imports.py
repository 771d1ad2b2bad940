"""Our packages below `understudy`: a project's own modules win, ours find each other, and nothing is there twice."""

from __future__ import annotations

import importlib
import importlib.util
import pickle
import re
import subprocess
import sys
from pathlib import Path

import pytest

import actors
import understudy
from actors.errors import AskTimeout
from actors.messages import Terminated
from actors.own_modules import import_own, loaded_module, wire_name
from actors.rpc.codec import encode_error
from actors.serialization import name_of
from runtime import __version__
from runtime.api import Pipeline
from runtime.spark.task.program import run_main

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("actors", "blob", "conf", "runtime")
OURS = f"[name for name in sys.modules if name.partition('.')[0] in {PACKAGES}]"
EACH_ONCE = """
files = [module.__file__ for name, module in sys.modules.items() if name.startswith("understudy.")]
assert len(files) == len(set(files))
for name in [name for name in sys.modules if name.partition(".")[0] in ("actors", "blob", "conf", "runtime")]:
    assert sys.modules[name] is sys.modules.get("understudy." + name) or "project" in str(sys.modules[name]), name
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project with modules of all our names, and one of ours' below."""
    directory = tmp_path / "project"
    texts = {
        "actors/__init__.py": "MINE = 1\n",
        "actors/errors.py": "class AskTimeout(Exception):\n    pass\n",
        "blob.py": "MINE = 1\n",
        "conf/__init__.py": "",
        "conf/options.py": "MINE = 1\n",
        "runtime.py": "MINE = 1\nclass Kept:\n    pass\n",
    }
    for name, text in texts.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return directory


def run(text: str, directory: Path, *options: str) -> str:
    """Run a program in a directory, which is first on its path; returns what it prints."""
    done = subprocess.run(
        [sys.executable, *options, "-c", text], cwd=directory, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_importing_understudy_imports_none_of_our_packages(tmp_path: Path) -> None:
    assert run(f"import sys, understudy\nprint({OURS}, [n for n in sys.modules if 'understudy.' in n])", tmp_path) == (
        "[] ['understudy.imports']\n"
    )


@pytest.mark.parametrize("first", ["import runtime, conf.options, blob, actors.errors\n", ""])
def test_the_users_modules_win_and_ours_work_behind_them(project: Path, first: str) -> None:
    text = (
        f"import sys\n{first}"
        "from understudy import ActorSystem, EmbeddedCluster, Pipeline, AskTimeout, connect, runtime as ours\n"
        "import actors, actors.errors, blob, conf.options, runtime\n"
        "print(actors.MINE, blob.MINE, conf.options.MINE, runtime.MINE, AskTimeout is actors.errors.AskTimeout)\n"
        "print(Pipeline.__module__, EmbeddedCluster.__module__, ours.__version__)\n"
        f"{EACH_ONCE}"
    )
    assert run(text, project).splitlines() == [
        "1 1 1 1 False",
        f"understudy.runtime.api understudy.runtime.embedded.cluster {__version__}",
    ]


def test_a_project_with_one_of_the_names_may_call_the_others_as_ever(project: Path) -> None:
    (project / "runtime.py").unlink()
    text = (
        "import understudy.runtime.job_file\n"
        "from runtime.api import Pipeline\nimport conf.options, blob\n"
        "print(Pipeline is understudy.Pipeline, conf.options.MINE, blob.MINE)"
    )
    assert run(text, project) == "True 1 1\n"


def test_a_path_that_a_program_adds_later_wins(project: Path, tmp_path: Path) -> None:
    text = (
        "import sys\nfrom understudy import Pipeline\n"
        f"sys.path.insert(0, {str(project)!r})\nimport conf.options, runtime\n"
        "print(conf.options.MINE, runtime.MINE, Pipeline('p').name)"
    )
    assert run(text, tmp_path) == "1 1 p\n"


def test_ours_come_last_wherever_they_stand_on_the_path(project: Path, tmp_path: Path) -> None:
    text = (
        f"import sys\nsys.path[:] = [{str(ROOT)!r}, *sys.path, {str(project)!r}]\n"
        "from understudy import Pipeline\nimport conf.options, runtime\nprint(conf.options.MINE, runtime.MINE)"
    )
    assert run(text, tmp_path) == "1 1\n"


def test_another_installation_is_nobody_elses(project: Path, tmp_path: Path) -> None:
    for name in ("runtime/__init__.py", "runtime/api.py", "understudy/imports.py"):
        path = tmp_path / "other" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    text = (
        f"import sys\nsys.path[:] = [{str(tmp_path / 'other')!r}, *sys.path[1:]]\n"
        f"sys.path.insert(0, {str(ROOT)!r})\nfrom understudy import Pipeline\nimport runtime.api\n"
        "print(runtime.api.Pipeline is Pipeline)"
    )
    assert run(text, project) == "True\n"


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("import runtime.api, actors, blob.key\nfrom understudy import Pipeline, Props\n", "runtime.api"),
        ("from understudy import Pipeline, Props\nimport runtime.api, actors, blob.key\n", "understudy.runtime.api"),
    ],
)
def test_where_nobody_else_has_the_names_both_are_one_module(tmp_path: Path, text: str, name: str) -> None:
    text += (
        "import sys, understudy.runtime.api, understudy.blob.key\n"
        "assert runtime.api is understudy.runtime.api and understudy.runtime.api.Pipeline is Pipeline\n"
        "assert Props is actors.Props and blob.key is understudy.blob.key\n"
        "assert runtime.api.__spec__.name == runtime.api.__name__\n"
        "print(Pipeline.__module__)\n"
    )
    assert run(text, tmp_path) == f"{name}\n"


def test_a_directory_that_only_has_the_name_hides_nothing(tmp_path: Path) -> None:
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "settings.yaml").touch()
    (tmp_path / "runtime").mkdir()
    (tmp_path / "runtime" / "mine.py").write_text("MINE = 1\n")
    text = (
        "import understudy.runtime.api, conf.options, runtime.mine\nprint(conf.options.__name__, runtime.mine.MINE)\n"
        "try:\n    import conf.nowhere\nexcept ModuleNotFoundError as error:\n    print(error)\n"
    )
    assert run(text, tmp_path) == "understudy.conf.options 1\nNo module named 'conf.nowhere'\n"


def test_pickles_name_whichever_is_meant(project: Path, tmp_path: Path) -> None:
    """Also where one of our modules unpickles: pickle imports as if it were there."""
    text = (
        "import pickle, sys\nimport runtime\nfrom understudy import Pipeline\n"
        "from understudy.runtime.spark.function_task import load_result\n"
        "for thing in (runtime.Kept, Pipeline):\n"
        "    data = pickle.dumps(thing)\n"
        "    del sys.modules['runtime']\n"
        "    assert load_result(data).__module__ == thing.__module__\n"
        "    import runtime\n"
        "open(sys.argv[1], 'wb').write(pickle.dumps(Pipeline))"
    )
    run(f"import sys; sys.argv.append({str(tmp_path / 'pickle')!r})\n{text}", project)
    assert pickle.loads((tmp_path / "pickle").read_bytes()) is Pipeline


def test_a_program_has_pythons_own_import(project: Path) -> None:
    (project / "program.py").write_text(
        "import actors, runtime\nassert type(__builtins__).__name__ == 'module'\nprint(runtime.MINE)"
    )
    text = (
        "from understudy.runtime.spark.task.program import run_main\n"
        f"run_main({str(project / 'program.py')!r}, [], [{str(project)!r}])"
    )
    assert run(text, project.parent) == "1\n"
    assert run_main.__builtins__["__import__"] is __import__  # type: ignore[attr-defined]  # here all is as ever


def test_the_wire_knows_ours_by_one_name(project: Path, tmp_path: Path) -> None:
    text = (
        "import actors.errors, understudy\n"
        "from understudy.actors.errors import AskTimeout\n"
        "from understudy.actors.messages import Terminated\n"
        "from understudy.actors.own_modules import import_own, loaded_module\n"
        "from understudy.actors.rpc.codec import decode_error, encode_error\n"
        "from understudy.actors.serialization import name_of\n"
        "print(name_of(Terminated), *encode_error(AskTimeout('late'))[:2])\n"
        "assert type(decode_error('actors.errors.AskTimeout', 'late', '')) is AskTimeout\n"
        "assert loaded_module('actors.errors').AskTimeout is AskTimeout\n"
        "assert import_own('actors.errors') is loaded_module('actors.errors')\n"
        "assert import_own('json').__name__ == 'json'\n"
    )
    assert run(text, project).split() == [name_of(Terminated), *encode_error(AskTimeout("late"))[:2]]
    assert wire_name("understudy.actors.errors") == wire_name("actors.errors") == "actors.errors"
    assert loaded_module("actors.errors") is import_own("actors.errors") is sys.modules["actors.errors"]


def test_every_module_of_ours_is_imported_below_understudy(project: Path) -> None:
    files = [path.relative_to(ROOT) for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    if importlib.util.find_spec("airflow") is None:
        files = [file for file in files if file.stem not in ("hook", "operator", "trigger")]  # of runtime/airflow
    assert len(files) > 300
    names = [".".join(file.with_suffix("").parts).removesuffix(".__init__") for file in files]
    text = (
        "import importlib, sys\nimport understudy\n"
        f"for name in {names!r}:\n"
        "    importlib.import_module(f'understudy.{name}')\n"
        f"print({OURS})\n{EACH_ONCE}"
    )
    assert run(text, project) == "[]\n"


def test_no_code_of_ours_imports_ours_by_a_text() -> None:
    """`import_own` takes such a name; `importlib.import_module` would find a user's module."""
    allowed = {"actors/own_modules.py", "actors/props.py", "actors/serialization.py"}  # import users' classes
    allowed |= {"runtime/spark/task/pipeline.py", "runtime/spark/task/zygote.py"}
    allowed |= {"runtime/spark/task/imports.py"}  # in Spark's workers, below `understudy`
    allowed |= {"runtime/cluster/entrypoint.py"}  # in the cluster's own processes
    found = {
        str(path.relative_to(ROOT))
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
        if "import_module(" in path.read_text()
    }
    assert found <= allowed


def test_python_runs_the_main_of_a_module_below_understudy(project: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "understudy.runtime.cluster", "--version"],
        cwd=project, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout == f"understudy, version {understudy.runtime.__version__}\n"


@pytest.mark.parametrize("module", ["understudy", "runtime.cluster"])
def test_the_command_line_starts_in_a_directory_with_modules_of_our_names(project: Path, module: str) -> None:
    if module == "runtime.cluster":
        (project / "runtime.py").unlink()  # Python itself takes it for our package
    done = subprocess.run(
        [sys.executable, "-m", module, "job", "explain", "nowhere.py"],
        cwd=project,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "Traceback" not in done.stderr
    assert "there is no job file nowhere.py" in " ".join(done.stderr.split())


def test_every_public_name_is_there() -> None:
    for name in dir(understudy):
        assert getattr(understudy, name) is not None
    assert set(actors.__all__) == set(understudy._HOMES["actors"])
    assert set(understudy.__all__) <= set(dir(understudy))
    assert understudy.Pipeline is Pipeline
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        understudy.nothing  # noqa: B018
    text = (ROOT / "understudy" / "__init__.py").read_text()
    typed = set(re.findall(r"^    from \S+ import (\w+) as \1$", text, re.MULTILINE))
    assert typed == set(understudy.__all__) - set(actors.__all__)


def test_what_the_pages_and_examples_import_is_public() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").glob("*.*")]
    imported = {
        (module, name)
        for page in pages
        for module, names in re.findall(
            r"from ((?:actors|blob|conf|runtime)[\w.]*) import ([\w, ]+)", page.read_text("utf-8")
        )
        for name in names.replace(" ", "").split(",")
    }
    assert ("runtime.api", "Pipeline") in imported
    inner = {("runtime.jobgraph.json_form", "to_json")}  # for a client of our REST API in Python
    inner |= {
        ("actors.rpc.security", name) for name in ("GREETING_SIZE", "LOCAL", "ClientHandshake", "ServerHandshake")
    }
    inner |= {("conf", "settings"), ("runtime", "progress")}  # of a reader's project, which has packages of these names
    for module, name in sorted(imported - inner):
        assert getattr(understudy, name, None) is getattr(importlib.import_module(module), name), f"{module}.{name}"


@pytest.mark.parametrize("content", ["None", "file.read_bytes()"])
def test_a_pipeline_finds_its_own_modules_when_it_is_built(project: Path, content: str) -> None:
    file = project / "job.py"
    file.write_text("from conf.options import MINE\ndef pipeline(argv):\n    return Pipeline(f'mine {MINE}')\n")
    file.write_text(f"from understudy import Pipeline\n{file.read_text()}")
    text = (
        "from pathlib import Path\n"
        "import understudy.imports\n"
        "understudy.imports.install()\n"
        "from understudy.runtime.job_file import build_pipeline\n"
        f"file = Path({str(file)!r})\n"
        f"print(build_pipeline(file, [], {content}).name)\n"
    )
    assert run(text, ROOT) == "mine 1\n"
