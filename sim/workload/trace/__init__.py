"""Readers of request traces and of the per-request files that load generators write."""
