"""The way of committed chunks from Redis pub/sub and the log to the readers of a response."""
