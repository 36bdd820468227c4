"""The python tool: strangers' code in a sandbox of its own for each MCP session."""
