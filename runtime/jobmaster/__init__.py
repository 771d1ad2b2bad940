"""The JobMaster: one job's execution graph, slots, restarts and results."""
