"""Requests to serve: traces read from files, and arrivals and lengths drawn from distributions."""
