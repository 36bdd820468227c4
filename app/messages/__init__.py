"""Anthropic's Messages: a request becomes one for a response; its response and events a message and its events."""
