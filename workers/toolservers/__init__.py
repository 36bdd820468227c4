"""Programs of their own: the MCP servers that come with Longhaul, a Python sandbox and a browser."""
