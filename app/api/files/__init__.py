"""Bodies and answers with the bytes of files, which are never whole in memory."""
