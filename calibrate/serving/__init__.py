"""Served runs that others measured, against the same runs simulated: what ``membound validate`` does."""
