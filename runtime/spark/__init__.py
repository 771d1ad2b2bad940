"""The Spark runtime: one driver JVM per worker, and task processes that a warm zygote forks.

    driver = await SparkDriver.start(DriverOptions(work_dir=..., log_file=...))     # the worker process
    driver = await SparkDriver.adopt(info_file(work_dir))                           # the TaskExecutor
    zygote = await Zygote.start(log_file=...)

    endpoint = await driver.open_session()                # or, for a script, await driver.open_classic(attempt_id)
    task = await zygote.fork(TaskSpec(..., connect=endpoint))
    async for message in task.messages(): ...
    status = await task.wait()
    await driver.release(endpoint)

The worker and the TaskExecutor use `driver`; `task` runs in task processes; `spec` and `wire` define the messages
between them. Only this package imports pyspark and py4j, and only task processes import pyspark.
"""
