"""Webhook endpoints, the deliveries of events to them, and the events of a project."""
