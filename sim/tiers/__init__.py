"""KV tiers behind the device's memory, and the moving of blocks between them."""
