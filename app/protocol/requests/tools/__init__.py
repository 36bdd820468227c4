"""`tools` and `tool_choice`."""
