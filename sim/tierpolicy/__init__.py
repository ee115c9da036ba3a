"""What a KV tier keeps when it is full: one policy, one file, one class."""
