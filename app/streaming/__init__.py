"""How committed chunks reach the readers of a response: Redis pub/sub, and the log in Postgres behind it."""
