"""Celery's synchronous task tracer on an event loop: it runs in a greenlet, the body awaits through `aio_await`.

The trick is SQLAlchemy's `greenlet_spawn`. Celery keeps its task and request stacks per greenlet
once greenlet is installed (celery.utils.threads), so thousands of bodies may be half way at once.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar, cast

import greenlet

T = TypeVar("T")


class _Body(greenlet.greenlet):  # type: ignore[misc]
    """The greenlet of one job; it shares the context variables of the asyncio task that drives it."""

    def __init__(self, function: Callable[..., Any], driver: greenlet.greenlet) -> None:
        super().__init__(function, driver)
        self.gr_context = driver.gr_context


async def run_body(function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
    """Calls `function` where it may use `aio_await`; returns or raises what it does.

    A cancellation arrives in the body as CancelledError from its `aio_await`, so the body's
    `finally` blocks run, and may await again.
    """
    body = _Body(function, greenlet.getcurrent())
    given = body.switch(*args, **kwargs)
    while not body.dead:
        try:
            value = await given
        except BaseException:  # CancelledError included: the body decides what it means
            given = body.throw(*sys.exc_info())
        else:
            given = body.switch(value)
    return cast(T, given)


def aio_await(coroutine: Coroutine[Any, Any, T]) -> T:
    """Awaits `coroutine` from a task body, on the pool's loop. Raises RuntimeError anywhere else."""
    body = greenlet.getcurrent()
    if not isinstance(body, _Body) or body.parent is None:
        coroutine.close()
        raise RuntimeError("aio_await works only in a task that runs in workers.celery_host.pool.TaskPool")
    return cast(T, body.parent.switch(coroutine))
