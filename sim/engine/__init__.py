"""The engine: requests in, steps composed and run, tokens out."""
