"""The TaskExecutor: slots, task processes, and the Spark driver that they share."""
