"""Models that tests need, and how they were made."""
