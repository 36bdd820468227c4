"""Calls of tools: how a model is told of tools, and how its calls become items."""
