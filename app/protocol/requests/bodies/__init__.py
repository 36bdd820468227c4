"""The bodies of requests, one module each."""
