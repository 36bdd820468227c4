"""The roles of Postgres: what each kind of process may do, and granting it."""
