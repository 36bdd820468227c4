"""Calls of tools: how prompts show tools and calls, and how the model's calls become deltas."""
