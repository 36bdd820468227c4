"""Settings, models and tool servers, read once at the start of a process."""
