"""Projects and their keys, limits, usage and audit log."""
