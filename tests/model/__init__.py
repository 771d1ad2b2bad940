"""A model of the leader latch in Promela, checked exhaustively by SPIN: ``python -m tests.model``."""
