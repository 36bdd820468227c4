"""The embedded Postgres and Valkey."""
