"""Captures, or what an interface brings, read once and remembered packed: what `browse` and `mcp` ask.

index.py     what is remembered of each packet and record, packed
reading.py   reads in the background, filters, and reads messages again with all that is in them
"""
