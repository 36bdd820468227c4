"""Who calls, and what they may do: API keys and projects, without HTTP."""
