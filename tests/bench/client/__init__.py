"""The client: a process of its own, with an event loop that does nothing else. `python -m tests.bench.client`."""
