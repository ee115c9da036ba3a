"""Arrival processes: one file, one class each."""
