"""Latencies of requests: groups of exchanges (`groups`), quantiles (`sketch`), and their rows (`rows`, with the types in `records`)."""
