"""Requests that a client may send, checked field by field."""
