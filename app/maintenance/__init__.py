"""Maintenance: what becomes due, or was left lying, is done by a process of its own, in any number of copies."""
