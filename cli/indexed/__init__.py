"""Captures, or what an interface brings, read once and remembered packed: what `browse` and `mcp` ask.

index.py     the index of packets and records, packed
reading.py   reads in the background, filters, and reads messages again with all that is in them
"""
