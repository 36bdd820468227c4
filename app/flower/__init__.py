"""Flower as operators of Longhaul need it: it shows what Postgres says, and its buttons do what the API does."""
