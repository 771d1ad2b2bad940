"""Understudy in an Airflow DAG: a task submits a job, finds it again after its worker was killed, and waits for it.

`task_jobs` decides which job belongs to a task instance (pure), and `attached` carries that out on a cluster. Neither
imports Airflow. `hook`, `operator` and `trigger` are Airflow's classes around them. Users import these from
`understudy.airflow`.
"""
