"""What operators see of responses, and what they do to many at once."""
