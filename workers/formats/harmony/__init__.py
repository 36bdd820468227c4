"""gpt-oss: items to harmony messages, and harmony tokens to deltas."""
