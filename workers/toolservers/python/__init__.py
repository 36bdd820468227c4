"""The python tool: runs untrusted code, in one sandbox for each MCP session."""
