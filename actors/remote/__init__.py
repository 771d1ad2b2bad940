"""Actors in several processes and systems: routing, creation, failure detection."""
