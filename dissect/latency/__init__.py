"""How long requests took: groups of exchanges (`groups`), their quantiles (`sketch`), the slowest, and how that changed over time, as plain
data (`rows`, whose types are in `records`)."""
