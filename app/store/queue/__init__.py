"""The queue in Postgres: what waits, what is sent, and who works."""
