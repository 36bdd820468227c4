"""gpt-oss's browser tools as an MCP server. docs/toolservers.md says what a call returns ("What a call returns")."""
