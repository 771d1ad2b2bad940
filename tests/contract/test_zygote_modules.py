"""A task process is forked with its modules imported: what it would import in a task, each task would pay for."""

from __future__ import annotations

import json
import subprocess
import sys

from tests.waiting import PATIENCE_S

PROGRAM = """\
import json, sys
from runtime.spark.task.zygote import warm_up
warm_up()
before = set(sys.modules)
import pyspark.sql.connect.session, pyspark.sql.connect.client.core
from pyspark.errors.utils import _capture_call_site
_capture_call_site(1)  # at each function of columns
import grpc
grpc.insecure_channel("localhost:1")
print(json.dumps(sorted({name.partition(".")[0] for name in set(sys.modules) - before})))
"""


def test_a_task_imports_nothing_more_to_open_a_session_and_name_a_column() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, timeout=PATIENCE_S
    )
    assert json.loads(done.stdout) == []
