"""Actors in processes: Thespian, hardened, and an asyncio loop inside its actors."""
