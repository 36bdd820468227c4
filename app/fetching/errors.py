"""Errors of a URL, or of the server behind it."""

from __future__ import annotations


class FetchError(Exception):
    """Nothing was fetched; the message is one sentence for whoever named the URL."""


class NotAllowed(FetchError):
    """The operator does not allow the server, or its address."""
