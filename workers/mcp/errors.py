"""Errors of MCP servers, for callers that do not load the MCP library."""

from __future__ import annotations


class ListingFailed(Exception):
    """An MCP server did not list its tools. The message is shown to the client and to the model."""


class Unreachable(Exception):
    """No session is possible: the MCP server is away, refuses, or does not speak MCP."""


class SessionGone(Exception):
    """The MCP server does not know the session any more. It has not made the call."""
