"""`/v1/organization/audit_logs`: what operators did."""

from __future__ import annotations

from datetime import UTC, datetime

from pydantic import Field

from app.api.admin_objects import COMMAND_LINE_ACTOR, AuditLog, List
from app.api.dependencies import RuntimeOf
from app.api.docs.routes import error_answers
from app.api.queries import BothWaysQuery, Flag, Names, Order, OrderedQuery, Time
from app.api.routes.organization.common import organization_router
from app.api.routes.route import Asked
from app.protocol.errors import InvalidRequest
from app.store.tenants import audit
from app.store.tenants.audit import AuditFilter

router = organization_router("audit_logs")


class AuditQuery(OrderedQuery, BothWaysQuery):
    event_types: Names = Field((), description="Entries of these types only.")
    actor_ids: Names = Field((), description="What these keys did only; `command-line` stands for those without a key.")
    actor_emails: Names = Field((), description="Not supported: nobody has an email address here.")
    project_ids: Names = Field((), description="Entries of these projects only.")
    resource_ids: Names = Field((), description="Entries about these ids only.")
    order: Order = "desc"
    """Longhaul's own."""
    tenant_only: Flag = Field(False, description="Only false is supported.")
    after_time: Time | None = Field(None, alias="effective_at[gt]")
    from_time: Time | None = Field(None, alias="effective_at[gte]")
    before_time: Time | None = Field(None, alias="effective_at[lt]")
    to_time: Time | None = Field(None, alias="effective_at[lte]")

    def as_filter(self) -> AuditFilter:
        """Raises InvalidRequest."""
        if self.actor_emails:
            message = "'actor_emails' is not supported: nobody has an email address here. Use 'actor_ids'."
            raise InvalidRequest(message, self.written("actor_emails"), "unsupported_parameter")
        if self.tenant_only:
            message = "'tenant_only' is not supported yet (only false is)."
            raise InvalidRequest(message, "tenant_only", "unsupported_parameter")
        return AuditFilter(
            types=self.event_types,
            actors=tuple(actor for actor in self.actor_ids if actor != COMMAND_LINE_ACTOR),
            from_command_line=COMMAND_LINE_ACTOR in self.actor_ids,
            projects=self.project_ids,
            resources=self.resource_ids,
            since=_moment(max(_shifted(self.from_time, self.after_time), default=None)),
            until=_moment(min(_shifted(self.before_time, self.to_time), default=None)),
        )


@router.get("", summary="List what operators did, the newest first", responses=error_answers(414))
async def list_entries(query: Asked[AuditQuery], runtime: RuntimeOf) -> List[AuditLog]:
    return List.of(await audit.find_page(runtime.db, query.as_filter(), query.page), AuditLog.of)


def _shifted(at: int | None, a_second_later: int | None) -> list[int]:
    """An entry's time is shown without its fraction, so some bounds count a second later."""
    return [*([] if at is None else [at]), *([] if a_second_later is None else [a_second_later + 1])]


def _moment(seconds: int | None) -> datetime | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC)
