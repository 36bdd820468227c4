"""What callers get of a response, and how they cancel it."""
