"""What a run writes down while it goes: where the time of steps went, request by request and step by step."""
