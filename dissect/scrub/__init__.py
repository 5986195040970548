"""Captures that can be published: what is nobody else's business overwritten in place, everything else as it was."""
