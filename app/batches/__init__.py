"""Batches: a file of requests in, a file of results out. Each line becomes a response of its batch."""
