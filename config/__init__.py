"""Settings, models and MCP servers, read once at the start of a process, and how helper programs start."""
