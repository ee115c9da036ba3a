"""Studies: many runs that belong together, and what they say side by side."""
