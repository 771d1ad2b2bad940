"""The control plane, after Flink: jobs, slots, high availability and Spark, as actors."""

__version__ = "0.2.0"
