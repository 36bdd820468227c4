"""Tools that run on the server: sessions with MCP servers, and the results of their calls."""
