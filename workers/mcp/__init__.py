"""Hosted tools: sessions with MCP servers, and the results of their calls."""
