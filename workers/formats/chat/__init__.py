"""Models with a chat template: items to messages, and decoded text to deltas."""
