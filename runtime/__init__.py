"""The Flink of Understudy: jobs, slots, high availability and Spark, as actors."""

__version__ = "0.1.0"
