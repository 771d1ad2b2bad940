"""An Airflow DAG that runs jobs on a cluster each night. Copy it into the folder of your DAGs; it is for Airflow 3.

Airflow's workers need the command `understudy` on their PATH, and a connection named `understudy`. That has scheme,
host and port of the cluster's web endpoint, and its token as the password.
"""

import os
from datetime import datetime, timedelta

from airflow.providers.standard.operators.bash import BashOperator
from airflow.providers.standard.sensors.bash import BashSensor
from airflow.sdk import DAG

JOBS = os.environ.get("UNDERSTUDY_JOBS", "/opt/jobs")
OUT = os.environ.get("UNDERSTUDY_OUT", "/data")
CLUSTER = {
    "PATH": os.environ["PATH"],
    "HOME": os.environ.get("HOME", "/"),
    "UNDERSTUDY_URL": "{{ conn.understudy.schema }}://{{ conn.understudy.host }}:{{ conn.understudy.port }}",
    "UNDERSTUDY_TOKEN": "{{ conn.understudy.password }}",
}
WAIT = """
state=$(understudy job info --json "$JOB" | python3 -c 'import json, sys; print(json.load(sys.stdin)["state"])')
case "$state" in
  FINISHED) exit 0 ;;
  FAILED | CANCELED) understudy job logs "$JOB"; exit 1 ;;
  *) exit 75 ;;  # it runs, or the cluster does not answer: look again later
esac
"""

with DAG(
    "understudy_nightly",
    schedule="@daily",
    start_date=datetime(2026, 1, 1),
    catchup=False,
    default_args={"retries": 2, "retry_delay": timedelta(minutes=5)},
) as dag:
    # Attached: the job's output is the task's log, its exit status the task's result. Airflow ends a task by SIGTERM,
    # which cancels the job.
    words = BashOperator(
        task_id="words",
        bash_command=f"understudy job run --name 'words {{{{ ds }}}}' {JOBS}/word_count.py",
        env=CLUSTER,
    )
    # Detached: the job outlives a restart of Airflow, and waiting for it takes no slot of a worker. Its id is the XCom.
    submit = BashOperator(
        task_id="submit",
        bash_command=f"understudy job run --detach {JOBS}/flight_delays.py --out {OUT}/delays/{{{{ ds }}}}",
        env=CLUSTER,
    )
    wait = BashSensor(
        task_id="wait",
        bash_command=WAIT,
        env={**CLUSTER, "JOB": "{{ ti.xcom_pull('submit') }}"},
        retry_exit_code=75,
        mode="reschedule",
        poke_interval=30,
        timeout=6 * 60 * 60,
        retries=0,
    )
    words >> submit >> wait
