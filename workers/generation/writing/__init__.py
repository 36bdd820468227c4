"""From the deltas of running responses to committed chunks."""
