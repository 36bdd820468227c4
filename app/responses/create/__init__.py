"""From a checked request to an inserted row."""
