"""Conversations, from their bytes to their records and ends; their processes; their table."""
