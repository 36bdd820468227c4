"""One response from its claim to its last commit."""
