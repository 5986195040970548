"""Requests with their responses: which response answers which request, how long it took, and which requests stay open."""
