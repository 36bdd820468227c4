"""What requests cost of their project's limits on a minute, taken before anything else is done for them."""

from __future__ import annotations

from contextvars import ContextVar

from app.access.directory import Directory
from app.protocol.errors import LimitReached
from app.protocol.limits import ALL_MODELS, Allowance, LimitKind, Shortage
from app.store.database import Database
from app.store.tenants.charges import Charge, Charger

_LEFT: ContextVar[Allowance | None] = ContextVar("left", default=None)


def left() -> Allowance | None:
    """Returns what the tightest of the limits leaves that this request was charged to; None: it was charged to none.

    A response that reserves nothing has no other limits to tell of.
    """
    return _LEFT.get()


class Charges:
    """Charges requests to limits. Without a directory nobody is asked for a key, and no limit holds."""

    def __init__(self, db: Database, directory: Directory | None) -> None:
        self._directory = directory
        self._charger = Charger(db)

    async def close(self) -> None:
        await self._charger.close()

    async def take(self, project: str, kind: LimitKind, model: str = ALL_MODELS) -> Allowance | None:
        """Takes one request from the project's limit on that model, and returns what is left, or None without a limit.

        That on all models together is the first that a request is charged to. A project that has none costs no query.
        Raises LimitReached and StoreUnavailable.
        """
        if self._directory is None:
            return None
        allowance = await self._take(self._directory, project, kind, model)
        earlier = None if model == ALL_MODELS else _LEFT.get()
        states = [each.requests for each in (earlier, allowance) if each is not None and each.requests is not None]
        _LEFT.set(Allowance.of(states) if states else None)
        return allowance

    async def _take(self, directory: Directory, project: str, kind: LimitKind, model: str) -> Allowance | None:
        if (row := await directory.project(project)) is None:
            return None
        if f"{kind.value}:{model}" not in row.charged:
            return None
        result = await self._charger.take(Charge(project, model, kind))
        if isinstance(result, Shortage):
            raise LimitReached(result)
        return None if result is None else Allowance(result, None)
