"""The errors of a command, each with its exit status."""

from __future__ import annotations


class LocalError(Exception):
    """A command cannot do, or go on with, what it is to do. The message is one line, for users."""

    status = 1


class OutOfReach(LocalError):
    """The API, or the database behind it, cannot be reached, or is too busy."""

    status = 3


class NotAllowed(LocalError):
    """The API wants a key, or one that allows more."""

    status = 4
