"""Benchmarks, side by side with other frontends. Owner: scripts run by hand; no product code."""
