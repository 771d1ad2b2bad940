"""The gateway for Spark Connect clients: PySpark's own client reaches a Spark driver of its user's through it.

A session is a job that holds a slot. `gateway` passes calls on to the driver; `sessions` decides what each call needs,
and `requests` reads and changes the requests. `named` rebuilds named sessions by their `record`, which
`record_files` keeps.
"""
