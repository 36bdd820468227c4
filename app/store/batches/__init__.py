"""Batches, their lines, and what their lines came to."""
