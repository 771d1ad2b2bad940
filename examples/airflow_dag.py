"""An Airflow DAG that runs jobs on a cluster each night. Copy it into the folder of your DAGs; it is for Airflow 3.

Airflow's workers need the package `understudy-spark`, and the connection `understudy_default`; see docs/airflow.md.
"""

import os
from datetime import datetime, timedelta

from airflow.sdk import DAG

from understudy.airflow import UnderstudySubmitOperator

JOBS = os.environ.get("UNDERSTUDY_JOBS", "/opt/jobs")
OUT = os.environ.get("UNDERSTUDY_OUT", "/data")

with DAG(
    "understudy_nightly",
    schedule="@daily",
    start_date=datetime(2026, 1, 1),
    catchup=False,
    default_args={"retries": 2, "retry_delay": timedelta(minutes=5)},
) as dag:
    # The worker follows the job: its output is the task's log while it runs.
    words = UnderstudySubmitOperator(task_id="words", script=f"{JOBS}/word_count.py", name="words {{ ds }}")
    # The triggerer waits for the job, and the worker is free for other tasks.
    delays = UnderstudySubmitOperator(
        task_id="delays",
        script=f"{JOBS}/flight_delays.py",
        args=["--out", OUT + "/delays/{{ ds }}"],
        deferrable=True,
        poll_interval=30,
        execution_timeout=timedelta(hours=6),
    )
    words >> delays
