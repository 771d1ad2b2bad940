"""Heartbeats: who is alive, by messages and time-outs."""
