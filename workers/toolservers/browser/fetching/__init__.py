"""Fetches pages from untrusted URLs, without reaching addresses that are not public."""
