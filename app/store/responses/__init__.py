"""The rows of responses, and their logs: insert, claim, append, end, read."""
