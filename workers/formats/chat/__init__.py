"""Models with a chat template: items to messages, and text with markup to deltas."""
