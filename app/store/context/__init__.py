"""What responses continue: chains, conversations and stored items."""
