"""Batches and windows as a user of the official client meets them: `python -m tests.e2e.acceptance`."""
