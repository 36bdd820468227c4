"""A bound on the bytes that many requests hold together."""

from __future__ import annotations

FREE_BYTES = 64 * 1024
"""What each holder has for nothing by default, so that small requests pass while large ones use the budget up."""


class OverBudget(Exception):
    """The process holds as many bytes as it may. The same request may succeed later."""


class Budget:
    """At most `max_bytes` at once, over all leases. What a lease has for nothing is not counted."""

    def __init__(self, max_bytes: int, free: int = FREE_BYTES) -> None:
        self._max_bytes = max_bytes
        self.free = free
        self.held = 0

    def lease(self) -> Lease:
        return Lease(self)

    def resize(self, before: int, after: int) -> None:
        """Counts `after` bytes in place of `before`. Raises OverBudget, and counts nothing then.

        A single holder may exceed the budget: otherwise it could never go on.
        """
        others = self.held - before
        if after > before and others and others + after > self._max_bytes:
            raise OverBudget
        self.held += after - before


class Lease:
    """The bytes that one request holds."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._counted = 0

    def hold(self, size: int) -> None:
        """Holds `size` bytes in all. Raises OverBudget; then the lease is as before."""
        counted = max(0, size - self._budget.free)
        if counted != self._counted:
            self._budget.resize(self._counted, counted)
            self._counted = counted

    def release(self) -> None:
        if self._counted:
            self._budget.resize(self._counted, 0)
            self._counted = 0
