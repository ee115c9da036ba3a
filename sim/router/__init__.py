"""Routers: which replica a request goes to; one policy, one file, one class."""
