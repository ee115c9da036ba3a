"""From the record of a run to its figures: pure functions."""
