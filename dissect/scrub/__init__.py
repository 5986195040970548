"""Captures that can be published: secrets and private data overwritten in place, everything else unchanged."""
