"""Bulk actions, as operators ask for them: counted first, then accepted as a job, with its entry in the audit log."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace

from app.access.changes import AdministrationError, AuditType, Changes, NothingThere
from app.ids import new_id
from app.operations.whom import resolved
from app.protocol.status import UNFINISHED, Status
from app.protocol.text import shortened
from app.store.operations import actions, cancels, listing
from app.store.operations.actions import ActionKind, ActionRow, ActionState, NewAction
from app.store.operations.cancels import BatchCount
from app.store.operations.filters import ResponseFilter
from app.store.operations.listing import MatchCount
from app.store.operations.retries import RETRYABLE
from app.store.paging import Page

_FIELD = "filter."
MAX_RUNNING = 100
"""Actions that are not at their end. They are counted under the lock of all changes of operators."""

_ALLOWED = {ActionKind.CANCEL: UNFINISHED, ActionKind.RETRY: RETRYABLE}
_TYPES = {ActionKind.CANCEL: AuditType.RESPONSES_CANCELLED, ActionKind.RETRY: AuditType.RESPONSES_RETRIED}


@dataclass(frozen=True, slots=True)
class Reach:
    """The responses that an action would act on now."""

    responses: MatchCount
    of_batches: BatchCount


class BulkActions:
    """The operators' actions on many responses. Every method raises AdministrationError and StoreUnavailable."""

    def __init__(self, changes: Changes) -> None:
        self._changes = changes
        self._db = changes.db

    async def count(self, kind: ActionKind, only: ResponseFilter) -> Reach:
        wanted = _applicable(kind, await resolved(self._db, only, _FIELD))
        responses = await listing.count(self._db, wanted, wanted.status)
        is_cancel = kind is ActionKind.CANCEL
        return Reach(responses, await cancels.count_batches(self._db, wanted) if is_cancel else BatchCount())

    async def start(self, kind: ActionKind, only: ResponseFilter, reason: str, *, on_all: bool = False) -> ActionRow:
        """Accepts an action on all responses that match now; maintenance carries it out.

        `on_all` permits a filter that says nothing.
        """
        only = await resolved(self._db, only, _FIELD)
        wanted = _applicable(kind, only)
        if only.is_empty and not on_all:
            message = (
                f"the filter matches everything that can be {_DONE[kind]}; name what you mean, or send 'all': true"
            )
            raise AdministrationError(message, "all")
        matched = (await listing.count(self._db, wanted, wanted.status)).matching
        async with self._changes.begin() as change:
            if await actions.count_running(change.connection) >= MAX_RUNNING:
                raise AdministrationError(f"{MAX_RUNNING} actions are running, the limit; wait for one, or cancel it")
            actor = change.operator.key_id
            is_cancel = kind is ActionKind.CANCEL
            of_batches = await cancels.cancel_batches(change.connection, wanted) if is_cancel else BatchCount()
            new = NewAction(new_id("action"), kind, wanted, reason, actor, matched, of_batches.batches)
            row = await actions.add(change.connection, new)
            details = {"filter": only.as_json(), "matched": matched, "reason": reason}
            if of_batches != BatchCount():
                details |= asdict(of_batches)
            await change.note(_TYPES[kind], row.id, only.project, details)
        return row

    async def find(self, action_id: str) -> ActionRow:
        row = await actions.find(self._db, action_id)
        if row is None:
            raise NothingThere(f"there is no action '{shortened(action_id)}'", "action_id")
        return row

    async def find_page(self, page: Page) -> tuple[list[ActionRow], bool]:
        """A page of actions, and whether there are more."""
        return await actions.find_page(self._db, page)

    async def cancel(self, action_id: str) -> ActionRow:
        """Stops an action: no further step of it begins. What it has done stays."""
        await self.find(action_id)
        async with self._changes.begin() as change:
            if await actions.cancel(change.connection, action_id):
                await change.note(AuditType.BULK_ACTION_CANCELLED, action_id, None)
        row = await self.find(action_id)
        if row.state is ActionState.COMPLETED:
            raise AdministrationError(f"the action '{action_id}' has come to its end already", "action_id")
        return row


_DONE = {ActionKind.CANCEL: "cancelled", ActionKind.RETRY: "retried"}


def _applicable(kind: ActionKind, only: ResponseFilter) -> ResponseFilter:
    """The filter with the statuses that it has for this kind of action."""
    for status in only.status:
        if status not in _ALLOWED[kind]:
            names = " and ".join(f"'{each.value}'" for each in _ALLOWED[kind])
            message = f"responses that are '{status.value}' cannot be {_DONE[kind]}, only those that are {names}"
            raise AdministrationError(message, "filter.status")
    if kind is ActionKind.RETRY and not only.ids:  # What was cancelled is retried if an operator names it.
        return replace(only, status=only.status or (Status.FAILED,))
    return replace(only, status=only.status or _ALLOWED[kind])
