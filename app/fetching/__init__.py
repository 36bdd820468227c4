"""Fetches what untrusted URLs name, from servers that the operator allows: for the browser tool, and files by URL."""
