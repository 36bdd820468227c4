"""Webhooks and the event feed, without HTTP routes: a project is told what has ended."""
