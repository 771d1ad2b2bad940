"""Queues of jobs: limits of users, and the order in which jobs get slots."""
