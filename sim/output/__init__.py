"""What a run prints and writes, format by format."""
