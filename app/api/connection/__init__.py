"""uvicorn's connections with bounds that hold before anything is known of the caller.

uvicorn's own protocols collect heads without a bound, wait for the rest of a request for ever, and give a client that
reads nothing all the time in the world (docs/internals/decisions/bounds.md).
"""
