"""The tables. Alembic's migrations make them; a test compares both.

What must always hold is a constraint: a final status has its time, `failed` has an error, only a response in progress
has an owner, and what operators and clients make in a project names one that exists.
"""

from __future__ import annotations

from collections.abc import Iterable

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Computed,
    DateTime,
    Double,
    Float,
    ForeignKey,
    Identity,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    PrimaryKeyConstraint,
    SmallInteger,
    Table,
    Text,
    text,
)
from sqlalchemy.dialects.postgresql import ARRAY, BOOLEAN, JSON, JSONB

from app.protocol.limits import SERVICE_TIERS, LimitKind
from app.protocol.status import BATCH_TIMES, FINAL, BatchStatus, Status
from app.queue.message import FOREGROUND, Priority
from config.settings import MAX_LIMIT

metadata = MetaData(
    naming_convention={
        "pk": "%(table_name)s_pkey",
        "fk": "%(table_name)s_%(column_0_name)s_fkey",
        "ck": "%(table_name)s_%(constraint_name)s",
        "ix": "%(table_name)s_%(column_0_name)s_idx",
    }
)


def _names(statuses: frozenset[Status]) -> str:
    return _list(sorted(status.value for status in statuses))


def _list(words: Iterable[str]) -> str:
    return ", ".join(f"'{word}'" for word in words)


def _project(nullable: bool = False) -> Column[object]:
    return Column("project", Text, ForeignKey("projects.id"), nullable=nullable)


def _time(name: str, nullable: bool = True) -> Column[object]:
    return Column(name, DateTime(timezone=True), nullable=nullable)


def _inserted_at() -> Column[object]:
    """When Postgres inserted the row, by its own clock: erasures go by it (tenants/erasure.py)."""
    return Column("inserted_at", DateTime(timezone=True), nullable=False, server_default=text("now()"))


DEFAULT_PROJECT = "default"
"""The project of callers without a key. The first migration makes it."""


IS_WAITING = (
    "({0}status = 'queued' OR {0}status = 'in_progress' AND {0}yielded AND {0}worker IS NULL) AND {0}sent_at IS NULL"
)
_WAITS = IS_WAITING.format("")
"""The condition of a response that waits for its turn, as the view `waiting_responses` has it (queue/facts.py)."""
IS_SENT = "{0}sent_at IS NOT NULL AND {0}finished_at IS NULL"
"""The condition of a response that a worker has, or is to have, as `responses_sent_idx` has it."""

LINES_QUEUE = "(SELECT r.queue FROM responses r WHERE r.batch_id = b.id ORDER BY r.batch_line DESC LIMIT 1)"
"""The queue of the batch `b`: of its last line that is a response. NULL: none is."""

TAKES = "{0}slots > 0 AND NOT EXISTS (SELECT FROM drains d WHERE d.node = {0}node)"
"""The condition of a worker that may be sent responses, as the view `worker_loads` has it."""

LIVING_SLOTS = "(SELECT sum(w.slots) FROM workers w WHERE w.queue = {} AND w.lease_until > now())"
"""The slots of a queue's living workers; NULL: it has none."""

responses = Table(
    "responses",
    metadata,
    Column("id", Text, primary_key=True),
    # That of a key, which has a foreign key, or the default. One here would lock the project's row in every insert:
    # about 7 % of its time with three connection pools in one process (5 of 76 us, a rough number).
    Column("project", Text, nullable=False),
    Column("model", Text, nullable=False),
    Column("queue", Text, nullable=False),
    Column("priority", SmallInteger, nullable=False),
    Column("status", Text, nullable=False),
    Column("background", BOOLEAN, nullable=False),
    Column("stream", BOOLEAN, nullable=False),
    Column("store", BOOLEAN, nullable=False),
    # What the request includes, for those who do not read it; NULL: nothing.
    Column("include", ARRAY(Text)),
    Column("previous_response_id", Text),
    Column("conversation_id", Text),
    # Responses in its chain, itself included, and the bytes of all before it (context/size.py).
    Column("chain_length", Integer, nullable=False),
    Column("context_bytes", BigInteger, nullable=False),
    # JSON, not JSONB: a model may write U+0000, which JSONB refuses.
    Column("request", JSON, nullable=False),
    # That of the request, for lists, which unpack no request; NULL: none.
    Column("metadata", JSON(none_as_null=True)),
    # Bytes of JSON, so that no read unpacks it to learn its length: of the request, of its input, and of `output` with
    # `tool_results`.
    Column("request_bytes", Integer, Computed("octet_length(CAST(request AS text))", persisted=True), nullable=False),
    Column("input_bytes", Integer, nullable=False),
    Column(
        "output_bytes",
        Integer,
        Computed(
            "coalesce(octet_length(CAST(output AS text)), 0) + coalesce(octet_length(CAST(tool_results AS text)), 0)",
            persisted=True,
        ),
        nullable=False,
    ),
    # What later requests answer in its input and output; NULL: nothing (protocol/answerable.py).
    Column("call_ids", ARRAY(Text)),
    Column("approvals", ARRAY(Text)),
    # Of the items of its input, but those that were made for it: no later request adds the same; NULL: none.
    Column("input_ids", ARRAY(Text)),
    Column(
        "messages_bytes",
        Integer,
        Computed("coalesce(octet_length(CAST(messages AS text)), 0)", persisted=True),
        nullable=False,
    ),
    # Of its log, since it has ended (LOG_BYTES); before, the log grows and nobody counts it.
    Column("log_bytes", BigInteger, nullable=False, server_default=text("0")),
    Column("attempt", Integer, nullable=False, server_default=text("0")),
    Column("crashes", Integer, nullable=False, server_default=text("0")),
    Column("worker", Text),
    Column("output", JSON(none_as_null=True)),
    # What models are told of the hosted tools' calls in `output`; clients never see it (context/contents.py).
    Column("tool_results", JSON(none_as_null=True)),
    # `input_messages` and `output_messages`, if the request asked for them.
    Column("messages", JSON(none_as_null=True)),
    Column("usage", JSON(none_as_null=True)),
    Column("error", JSON(none_as_null=True)),
    # That of the error, for lists: Postgres cannot look into JSON with U+0000.
    Column("error_code", Text),
    Column("incomplete_details", JSON(none_as_null=True)),
    # By the API's clock, and shown to clients: it orders nothing.
    _time("created_at", nullable=False),
    _inserted_at(),
    # Where it stands among all responses: the order in which Postgres inserted them, whatever any clock says.
    Column("position", BigInteger, Identity(always=True), nullable=False),
    _time("started_at"),
    # When its last attempt began.
    _time("claimed_at"),
    _time("finished_at"),
    _time("sent_at"),
    # The node of the worker that it was sent to last, or that claimed it: there the prefix of its prompt was read.
    Column("sent_to", Text),
    # What else has the same value begins with the same prompt; NULL: nobody knows (new_rows.py).
    Column("affinity", BigInteger),
    Column("sends", Integer, nullable=False, server_default=text("0")),
    # Estimated tokens.
    Column("cost", Integer, nullable=False),
    # The tokens that its flow was charged (dispatch.py); NULL: none, because it waits, or was sent without waiting.
    Column("charged", Integer),
    # Whether it takes one of the places that are kept for foreground responses (new_rows.py, dispatch.py).
    Column("foreground_place", BOOLEAN, nullable=False, server_default=text("false")),
    # How often it has yielded, and whether it waits for its turn since (claims.py).
    Column("yields", SmallInteger, nullable=False, server_default=text("0")),
    Column("yielded", BOOLEAN, nullable=False, server_default=text("false")),
    # How long the response may run. A claim sets `run_deadline` from it; a yield takes back what is left.
    Column("run_seconds", Float),
    _time("queue_deadline"),
    _time("run_deadline"),
    # When the window of work in windows ends. What is not final then fails (endings.py).
    _time("due_at"),
    # What goes before the position in its flow: of work in windows its deadline, in microseconds; of a continuation
    # that of its head; NULL: the position (new_rows.py).
    Column("rank", BigInteger),
    # The continuation that it is the head of.
    Column("heads", Text),
    Column("idempotency_key", Text),
    Column("fingerprint", LargeBinary),
    # Where the events are: `live` chunks, `merged` into a row a page (or so few that they stay), or `deleted`.
    Column("log", Text, nullable=False, server_default=text("'live'")),
    # Of the newest process that may have written to the row or its log (layout.py).
    Column("layout", SmallInteger, nullable=False),
    # The API key of its caller; NULL: no key was asked for.
    Column("key_id", Text),
    # The response whose request it repeats, because an operator said so (operations/retries.py).
    Column("retry_of", Text),
    # The batch whose line it is, which one of its lines (from 1 on; blank ones do not count), and what the line calls
    # itself; NULL: it is no line of a batch.
    Column("batch_id", Text),
    Column("batch_line", Integer),
    Column("custom_id", Text),
    # What the response has reserved of its project's limits, and when; NULL: the project had none (tenants/limits.py).
    _time("reserved_at"),
    Column("reserved_input", BigInteger),
    Column("reserved_output", BigInteger),
    Column("reserved_bytes", BigInteger),
    # What no update changes is last, or first: Postgres logs a row from its first change to its last.
    # The id of the request that made it, and the trace that it belongs to (access/trace_context.py).
    Column("request_id", Text),
    Column("traceparent", Text),
    Column("tracestate", Text),
    # The attempts, if any, that handed it over (HISTORY in guards.py).
    Column("history", JSONB(none_as_null=True)),
    CheckConstraint(f"priority IN ({', '.join(str(each.value) for each in Priority)})", name="priority_known"),
    CheckConstraint(
        f"(priority = {Priority.WINDOW.value}) = (due_at IS NOT NULL) AND (due_at IS NULL OR rank IS NOT NULL)",
        name="due_in_window",
    ),
    CheckConstraint(f"status IN ({_names(frozenset(Status))})", name="status_known"),
    CheckConstraint(f"(finished_at IS NOT NULL) = (status IN ({_names(FINAL)}))", name="finished_when_final"),
    CheckConstraint(f"(output IS NOT NULL) = (status IN ({_names(FINAL)}))", name="output_when_final"),
    CheckConstraint("(error IS NOT NULL) = (status = 'failed')", name="error_when_failed"),
    CheckConstraint(
        "(incomplete_details IS NOT NULL) = (status = 'incomplete')", name="incomplete_details_when_incomplete"
    ),
    CheckConstraint("status <> 'queued' OR (started_at IS NULL AND attempt = 0)", name="queued_never_started"),
    CheckConstraint("status <> 'in_progress' OR (started_at IS NOT NULL AND attempt > 0)", name="in_progress_started"),
    CheckConstraint("worker IS NULL OR status = 'in_progress'", name="worker_while_in_progress"),
    CheckConstraint("worker IS NULL OR (sent_to IS NOT NULL AND sent_at IS NOT NULL)", name="worker_was_sent"),
    CheckConstraint("yields >= 0 AND yields <= attempt", name="yields_within_attempts"),
    CheckConstraint("crashes >= 0 AND crashes <= attempt", name="crashes_within_attempts"),
    CheckConstraint("log IN ('live', 'merged', 'deleted')", name="log_known"),
    CheckConstraint("log = 'live' OR finished_at IS NOT NULL", name="log_live_while_unfinished"),
    CheckConstraint("(idempotency_key IS NULL) = (fingerprint IS NULL)", name="fingerprint_of_idempotent"),
    CheckConstraint("chain_length > 0 AND context_bytes >= 0", name="place_in_chain"),
    CheckConstraint("cost >= 0 AND charged >= 0", name="cost_not_negative"),
    # Half a reservation would make the settling trigger fail, and the response could never end.
    CheckConstraint(
        "num_nulls(reserved_at, reserved_input, reserved_output, reserved_bytes) IN (0, 4)", name="reserved_all_or_none"
    ),
    CheckConstraint("num_nulls(batch_id, batch_line, custom_id) IN (0, 3)", name="batch_all_or_none"),
    Index(
        "responses_idempotency_key_idx",
        "project",
        "idempotency_key",
        unique=True,
        postgresql_where=text("idempotency_key IS NOT NULL"),
    ),
    # A line is inserted once.
    Index("responses_batch_idx", "batch_id", "batch_line", unique=True, postgresql_where=text("batch_id IS NOT NULL")),
    Index(
        "responses_queue_deadline_idx",
        "queue_deadline",
        postgresql_where=text("status = 'queued' AND queue_deadline IS NOT NULL"),
    ),
    # What is due, and how much that is by queue and project (queue/windows.py).
    Index(
        "responses_due_idx",
        "due_at",
        postgresql_include=["queue", "project", "cost", "batch_id"],
        postgresql_where=text("due_at IS NOT NULL AND finished_at IS NULL"),
    ),
    Index("responses_heads_idx", "project", "heads", "position", postgresql_where=text("heads IS NOT NULL")),
    Index(
        "responses_run_deadline_idx",
        "run_deadline",
        postgresql_where=text("status = 'in_progress' AND run_deadline IS NOT NULL"),
    ),
    Index(
        "responses_released_idx",
        "position",
        postgresql_where=text("status = 'in_progress' AND worker IS NULL"),
    ),
    # Those that wait here, by flow and rank, and what each worker has (queue/facts.py).
    Index(
        "responses_waiting_idx",
        "queue",
        "project",
        "priority",
        text("(COALESCE(rank, position))"),
        "position",
        # For operators who ask whose they are, and how many are before one: Postgres uses no index alone of which it
        # needs an expression, unless what that is made of is there, too (operations/snapshot.py, operations/known.py).
        postgresql_include=["key_id", "rank"],
        postgresql_where=text(_WAITS),
    ),
    Index("responses_sent_idx", "sent_to", postgresql_where=text(IS_SENT.format(""))),
    Index(
        "responses_foreground_waiting_idx",
        "queue",
        postgresql_where=text(f"{_WAITS} AND priority IN ({', '.join(map(str, FOREGROUND))})"),
    ),
    # Unfinished responses in conversations: retention keeps those.
    Index(
        "responses_conversation_idx",
        "conversation_id",
        postgresql_where=text("conversation_id IS NOT NULL AND finished_at IS NULL"),
    ),
    # Lists (operations/filters.py): of all projects, of one, and of a batch; and failures by their codes.
    Index("responses_status_idx", "status", "inserted_at"),
    Index("responses_project_idx", "project", "status", "inserted_at"),
    Index("responses_lines_idx", "batch_id", "status", "inserted_at", postgresql_where=text("batch_id IS NOT NULL")),
    Index("responses_error_idx", "error_code", "inserted_at", postgresql_where=text("error_code IS NOT NULL")),
    Index("responses_retry_idx", "retry_of", unique=True, postgresql_where=text("retry_of IS NOT NULL")),
    Index("responses_stored_idx", "finished_at", postgresql_where=text("finished_at IS NOT NULL AND store")),
    Index("responses_unstored_idx", "finished_at", postgresql_where=text("finished_at IS NOT NULL AND NOT store")),
    Index("responses_live_log_idx", "finished_at", postgresql_where=text("finished_at IS NOT NULL AND log = 'live'")),
    Index("responses_merged_log_idx", "finished_at", postgresql_where=text("log = 'merged'")),
    # Room in its page for a row's next version: of that Postgres logs only what has changed (docs/scaling.md). What is
    # counted is read from indexes alone where Postgres has vacuumed: by default it would, once a fifth of the table is
    # new, or dead (docs/internals/decisions/read-model.md).
    postgresql_with={
        "fillfactor": 50,
        "autovacuum_vacuum_insert_scale_factor": 0,
        "autovacuum_vacuum_scale_factor": 0.02,
        "autovacuum_analyze_scale_factor": 0.02,
    },
)

chunks = Table(
    "chunks",
    metadata,
    Column("response_id", Text, ForeignKey("responses.id", ondelete="CASCADE"), primary_key=True),
    Column("first", Integer, primary_key=True),
    Column("last", Integer, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("final", BOOLEAN, nullable=False),
    # Token ids as little-endian unsigned 32-bit integers.
    Column("tokens", LargeBinary, nullable=False),
    # Packed (app/store/packing.py), and how many bytes they are unpacked.
    Column("frames", LargeBinary, nullable=False),
    Column("size", Integer, nullable=False),
    # What the next attempt must know besides the events: ends of turns, results of calls (generation/history.py).
    Column("steps", JSON(none_as_null=True)),
    # Of prompts, counted by the first chunk after the engine was given them; so a response that is cut has a usage.
    Column("input_tokens", Integer, nullable=False, server_default=text("0")),
    Column("cached_tokens", Integer, nullable=False, server_default=text("0")),
    CheckConstraint("first >= 0 AND last >= first", name="numbers_in_order"),
    Index("chunks_final_idx", "response_id", unique=True, postgresql_where=text("final")),
    # Each row is deleted soon after its response's end.
    postgresql_with={"autovacuum_vacuum_scale_factor": 0.02},
)

CHUNK_BYTES = "octet_length({0}frames) + octet_length({0}tokens) + coalesce(octet_length(CAST({0}steps AS text)), 0)"
"""What a chunk counts with in the bytes that its project stores."""
LOG_BYTES = f"(SELECT coalesce(sum({CHUNK_BYTES.format('')}), 0) FROM chunks WHERE response_id = responses.id)"
"""What ends a response, or merges its log, sets `log_bytes` to this."""
LOG_STATE = "CASE WHEN {} >= 8192 THEN 'live' ELSE 'merged' END"
"""And `log` to this: to merge fewer bytes costs more than their few rows."""

conversations = Table(
    "conversations",
    metadata,
    Column("id", Text, primary_key=True),
    _project(),
    Column("metadata", JSON, nullable=False),
    # By the API's clock, as that of a response.
    _time("created_at", nullable=False),
    _inserted_at(),
    # But for items that were added later: adding one writes nothing here (retention.py).
    Column("changed_at", DateTime(timezone=True), nullable=False, server_default=text("now()")),
    Index("conversations_project_idx", "project", "changed_at"),
)

conversation_items = Table(
    "conversation_items",
    metadata,
    Column("conversation_id", Text, ForeignKey("conversations.id", ondelete="CASCADE"), primary_key=True),
    # That of the conversation, for the trigger that counts its bytes: in a cascade the conversation is gone before.
    Column("project", Text, nullable=False),
    Column("id", Text, primary_key=True),
    Column("position", BigInteger, Identity(always=True), nullable=False),
    Column("item", JSON, nullable=False),
    Column("tool_results", JSON(none_as_null=True)),
    # Of both.
    Column("bytes", Integer, nullable=False),
    Column("added_at", DateTime(timezone=True), nullable=False, server_default=text("now()")),
    # What later requests answer in the item; NULL: nothing.
    Column("call_id", Text),
    Column("approval", Text),
    Index("conversation_items_call_idx", "conversation_id", "call_id", postgresql_where=text("call_id IS NOT NULL")),
    Index(
        "conversation_items_approval_idx",
        "conversation_id",
        "position",
        postgresql_where=text("approval IS NOT NULL"),
    ),
    Index("conversation_items_position_idx", "conversation_id", "position", unique=True),
    Index("conversation_items_id_idx", "id"),
)

# A file is there once it is complete. Until then there are parts alone, which nobody sees (store/files).
files = Table(
    "files",
    metadata,
    Column("id", Text, primary_key=True),
    _project(),
    Column("filename", Text, nullable=False),
    Column("purpose", Text, nullable=False),
    Column("bytes", BigInteger, nullable=False),
    Column("created_at", DateTime(timezone=True), nullable=False, server_default=text("now()")),
    _time("expires_at"),
    CheckConstraint("purpose IN ('batch', 'batch_output', 'user_data', 'vision')", name="purpose_known"),
    CheckConstraint("bytes >= 0", name="bytes_not_negative"),
    Index("files_project_idx", "project", "created_at", "id"),
    Index("files_expires_idx", "expires_at", postgresql_where=text("expires_at IS NOT NULL")),
)

# A file that a request brings has one part; one that a batch writes may have several. While a part is `open` its bytes
# are reserved; what was `dropped` counts no more, and maintenance deletes it.
file_parts = Table(
    "file_parts",
    metadata,
    Column("id", Text, primary_key=True),
    _project(),
    Column("state", Text, nullable=False, server_default=text("'open'")),
    # The file that it belongs to, and where in it the part begins.
    Column("file_id", Text, ForeignKey("files.id")),
    Column("start", BigInteger),
    Column("bytes", BigInteger, nullable=False),
    Column("created_at", DateTime(timezone=True), nullable=False, server_default=text("now()")),
    # When it got its last block.
    Column("touched_at", DateTime(timezone=True), nullable=False, server_default=text("now()")),
    CheckConstraint("state IN ('open', 'finished', 'dropped')", name="state_known"),
    CheckConstraint("(file_id IS NULL) = (start IS NULL)", name="place_in_file"),
    CheckConstraint("file_id IS NULL OR state = 'finished'", name="finished_in_file"),
    CheckConstraint("state <> 'dropped' OR bytes = 0", name="dropped_counts_no_more"),
    CheckConstraint("bytes >= 0", name="bytes_not_negative"),
    Index("file_parts_file_idx", "file_id", "start", postgresql_where=text("file_id IS NOT NULL")),
    Index("file_parts_unfinished_idx", "state", "touched_at", postgresql_where=text("state <> 'finished'")),
)

# The bytes of a part, 1 MiB in each block but the last.
file_blocks = Table(
    "file_blocks",
    metadata,
    Column("part_id", Text, ForeignKey("file_parts.id", ondelete="CASCADE"), primary_key=True),
    Column("number", Integer, primary_key=True),
    Column("data", LargeBinary, nullable=False),
)

workers = Table(
    "workers",
    metadata,
    Column("id", Text, primary_key=True),
    Column("model", Text, nullable=False),
    Column("queue", Text, nullable=False),
    # The name of its process (app/queue/node.py), whose list in Redis has what is sent to it. A lease that is lost ends
    # the row, not the process: `id` is the node, with the number of the lease from the second one on.
    Column("node", Text, nullable=False),
    Column("host", Text, nullable=False),
    Column("pid", Integer, nullable=False),
    _time("started_at", nullable=False),
    _time("lease_until", nullable=False),
    # When maintenance first found the lock missing, or the lease in its second half; NULL while neither is so.
    _time("absent_since"),
    # Tokens of prompt and output together, as the engine says.
    Column("context_length", Integer, nullable=False),
    # The layout that the worker knows (layout.py).
    Column("layout", SmallInteger, nullable=False),
    # How many responses it runs at once; 0: it takes none now, because it stops, or has no connection to Redis.
    Column("slots", Integer, nullable=False),
    # How many of its responses wait for their tools, and need no slot: without a foreground place, and with one.
    Column("away", Integer, nullable=False, server_default=text("0")),
    Column("foreground_away", Integer, nullable=False, server_default=text("0")),
    # How its model's prompts are written, which of vLLM's parsers read the answers (NULL: none), and the sampling of
    # requests without parameters.
    Column("format", Text, nullable=False),
    Column("tool_parser", Text),
    Column("reasoning_parser", Text),
    Column("default_sampling", JSON, nullable=False, server_default=text("'{}'")),
    # What becomes of each `reasoning.effort` (NULL: not known).
    Column("efforts", JSON(none_as_null=True)),
    # What it refuses, and why, for GET /v1/models.
    Column("refusals", JSON, nullable=False, server_default=text("'{}'")),
    # For operators: what restarts the process (a unit, a pod), CUDA_VISIBLE_DEVICES, the name of its devices, and
    # Longhaul's version; NULL: not known.
    Column("unit", Text),
    Column("devices", Text),
    Column("device", Text),
    Column("version", Text, nullable=False, server_default=text("''")),
    CheckConstraint("context_length > 0 AND slots >= 0", name="engine_has_room"),
    CheckConstraint("format IN ('chat', 'harmony')", name="format_known"),
)

# The workers that operators drain, by node. They take nothing; a lease that is lost changes nothing about it.
drains = Table(
    "drains",
    metadata,
    Column("node", Text, primary_key=True),
    Column("since", DateTime(timezone=True), nullable=False, server_default=text("now()")),
    Column("reason", Text),
    # The id of the operator's API key; NULL: a command on a machine of the operators.
    Column("actor", Text),
    # When maintenance first found no worker of that node (drains.py).
    _time("absent_since"),
)

# What operators pause: a queue, or what one project has in it. It stays in line until they resume it.
pauses = Table(
    "pauses",
    metadata,
    Column("queue", Text, nullable=False),
    _project(nullable=True),
    Column("model", Text, nullable=False),
    Column("since", DateTime(timezone=True), nullable=False, server_default=text("now()")),
    Column("reason", Text),
    Column("actor", Text),
    Index("pauses_queue_project_idx", "queue", "project", unique=True, postgresql_nulls_not_distinct=True),
)

# One row for each queue that was dispatched from: its lock, and its virtual time (dispatch.py).
queues = Table(
    "queues",
    metadata,
    Column("name", Text, primary_key=True),
    Column("virtual_time", Double, nullable=False),
)

# The finish tag of what was sent last of each flow. A flow without a row is like one whose tag is not ahead.
flows = Table(
    "flows",
    metadata,
    Column("queue", Text, primary_key=True),
    Column("project", Text, primary_key=True),
    Column("priority", SmallInteger, primary_key=True),
    Column("tag", Double, nullable=False),
    # What its responses took of late, divided by their costs.
    Column("scale", Double, nullable=False, server_default=text("1")),
    # How far a token moved its tag when it was charged last.
    Column("step", Double, nullable=False),
    # The mean seconds and tokens of its responses of late; NULL: none has ended.
    Column("run_seconds", Double),
    Column("run_tokens", Double),
    # How far its work in windows has risen (queue/windows.py).
    Column("part", Double, nullable=False, server_default=text("0")),
)

# The secret keys of the deployment (keys.py).
keys = Table(
    "keys",
    metadata,
    Column("name", Text, primary_key=True),
    Column("value", LargeBinary, nullable=False),
)

projects = Table(
    "projects",
    metadata,
    Column("id", Text, primary_key=True),
    Column("name", Text, nullable=False),
    # Names of models, and labels of MCP servers, that its requests may use (`ProjectRow`).
    Column("models", ARRAY(Text), nullable=False, server_default=text("'{*}'")),
    Column("tool_servers", ARRAY(Text), nullable=False, server_default=text("'{*}'")),
    _time("created_at", nullable=False),
    _time("archived_at"),
    # The best service tier that its responses get.
    Column("top_tier", Text, nullable=False, server_default="priority"),
    # Its share of every queue, beside the other projects that wait there.
    Column("weight", Double, nullable=False, server_default=text("1")),
    # What its ended responses, its conversations and its files occupy, up to the notes in `stored_changes`.
    Column("stored_bytes", BigInteger, nullable=False, server_default=text("0")),
    # A conversation that has not changed for so long is deleted; NULL: none is.
    Column("conversation_days", Integer),
    # When maintenance begins to erase everything of the project, and when it had (tenants/erasure.py).
    _time("erase_at"),
    _time("erased_at"),
    CheckConstraint("conversation_days BETWEEN 1 AND 3660", name="conversation_days_in_bounds"),
    CheckConstraint("weight BETWEEN 0.001 AND 1000", name="weight_in_bounds"),
    CheckConstraint(f"top_tier IN ({_list(SERVICE_TIERS)})", name="top_tier_known"),
    CheckConstraint("archived_at IS NULL OR id <> 'default'", name="default_stays"),
    Index("projects_created_idx", "created_at", "id"),
)

api_keys = Table(
    "api_keys",
    metadata,
    Column("id", Text, primary_key=True),
    # NULL: a key of the operators, which belongs to no project.
    _project(nullable=True),
    # The id that it has as a service account, alone or with others, for OpenAI's clients.
    Column("service_account", Text),
    Column("name", Text, nullable=False),
    # SHA-256 of the key, which is kept nowhere.
    Column("hash", LargeBinary, nullable=False),
    # The beginning and the end of the key, for people.
    Column("shown", Text, nullable=False),
    Column("scopes", ARRAY(Text), nullable=False),
    _time("created_at", nullable=False),
    _time("expires_at"),
    # Seconds from its beginning, as it was made (NULL: it was to last): a rotation ends it sooner, and makes one alike.
    Column("lifetime_seconds", Double),
    _time("last_used_at"),
    _time("revoked_at"),
    CheckConstraint("octet_length(hash) = 32", name="hash_is_sha256"),
    CheckConstraint(
        "cardinality(scopes) > 0 AND scopes <@ ARRAY['responses', 'batches', 'files', 'read', 'operator', 'admin']",
        name="scopes_known",
    ),
    CheckConstraint("(project IS NULL) = (scopes && ARRAY['admin', 'operator'])", name="operators_have_no_project"),
    CheckConstraint("service_account IS NULL OR project IS NOT NULL", name="accounts_are_of_projects"),
    Index("api_keys_hash_idx", "hash", unique=True),
    Index("api_keys_project_idx", "project"),
    Index("api_keys_account_idx", "service_account", postgresql_where=text("service_account IS NOT NULL")),
)

# What operators did, each in the transaction of what was done (audit.py).
audit_logs = Table(
    "audit_logs",
    metadata,
    Column("id", Text, primary_key=True),
    _time("effective_at", nullable=False),
    Column("type", Text, nullable=False),
    # The id of the API key; NULL: a command on a machine of the operators.
    Column("actor", Text),
    _project(nullable=True),
    Column("resource", Text, nullable=False),
    Column("details", JSON, nullable=False),
    # Where the request came from, and its id; NULL: a command.
    Column("address", Text),
    Column("request_id", Text),
    Index("audit_logs_time_idx", "effective_at", "id"),
    Index("audit_logs_project_idx", "project", "effective_at", "id"),
)

# What operators had done to all responses that match a filter; maintenance carries it out in steps
# (operations/actions.py).
bulk_actions = Table(
    "bulk_actions",
    metadata,
    Column("id", Text, primary_key=True),
    Column("kind", Text, nullable=False),
    Column("filter", JSON, nullable=False),
    Column("reason", Text, nullable=False),
    # The id of the API key; NULL: a command on a machine of the operators.
    Column("actor", Text),
    Column("state", Text, nullable=False, server_default=text("'running'")),
    # By Postgres' clock. It acts on responses that were inserted until then.
    Column("created_at", DateTime(timezone=True), nullable=False, server_default=text("clock_timestamp()")),
    _time("finished_at"),
    # How many responses matched when it was accepted.
    Column("matched", BigInteger, nullable=False),
    Column("done", BigInteger, nullable=False, server_default=text("0")),
    # How many batches it has made `cancelling`.
    Column("batches", Integer, nullable=False, server_default=text("0")),
    # How many it refused, by the code of the reason.
    Column("refused", JSON, nullable=False, server_default=text("'{}'")),
    # How far it has come: the last response it looked at (NULL: none in this pass), and how many of this pass others
    # had locked, for which it begins once more.
    _time("cursor_at"),
    Column("cursor_position", BigInteger),
    Column("passed_by", BigInteger, nullable=False, server_default=text("0")),
    CheckConstraint("kind IN ('cancel', 'retry')", name="kind_known"),
    CheckConstraint("state IN ('running', 'completed', 'cancelled', 'failed')", name="state_known"),
    CheckConstraint("(finished_at IS NULL) = (state = 'running')", name="finished_unless_running"),
    CheckConstraint("(cursor_at IS NULL) = (cursor_position IS NULL)", name="cursor_whole"),
    Index("bulk_actions_running_idx", "created_at", postgresql_where=text("state = 'running'")),
    Index("bulk_actions_created_idx", "created_at", "id"),
)

# What a project may use at most, of one model or of all ('*'), and how much of it was taken at `as_of`
# (tenants/limits.py).
limits = Table(
    "limits",
    metadata,
    Column("project", Text, ForeignKey("projects.id"), primary_key=True),
    Column("model", Text, primary_key=True),
    Column("kind", Text, primary_key=True),
    Column("value", BigInteger, nullable=False),
    # Responses that were inserted before are not counted.
    _time("since", nullable=False),
    Column("used", Double, nullable=False, server_default=text("0")),
    Column("drained_per_second", Double, nullable=False, server_default=text("0")),
    _time("as_of", nullable=False),
    CheckConstraint(f"kind IN ({_list(kind.value for kind in LimitKind)})", name="kind_known"),
    CheckConstraint(f"value BETWEEN 1 AND {MAX_LIMIT}", name="value_in_bounds"),
    CheckConstraint("used >= 0", name="used_not_negative"),
)

# Notes of the trigger `responses_settle`: a response with a reservation left the queue, or ended. Whoever adds them to
# the project's limits deletes them.
settlements = Table(
    "settlements",
    metadata,
    Column("id", BigInteger, Identity(always=True), primary_key=True),
    Column("project", Text, nullable=False),
    Column("model", Text, nullable=False),
    _time("reserved_at", nullable=False),
    _time("at", nullable=False),
    Column("left_queue", BOOLEAN, nullable=False),
    Column("ended", BOOLEAN, nullable=False),
    Column("bytes", BigInteger, nullable=False),
    # Of the reserved ones; negative: more were used.
    Column("unused_tokens", BigInteger, nullable=False),
    Index("settlements_project_idx", "project"),
)


# Notes of triggers: what a statement added to the bytes that a project stores, or (negative) deleted. Whoever adds them
# to `projects.stored_bytes` deletes them.
stored_changes = Table(
    "stored_changes",
    metadata,
    Column("project", Text, nullable=False),
    Column("bytes", BigInteger, nullable=False),
    Index("stored_changes_project_idx", "project"),
)


USAGE_COUNTS = ("input_tokens", "cached_tokens", "output_tokens", "reasoning_tokens")


def _usage_counts() -> list[Column[object]]:
    return [Column(name, BigInteger, nullable=False) for name in USAGE_COUNTS]


# Notes of the same trigger: what an ended response used. Whoever adds them to `usage` deletes them.
usage_entries = Table(
    "usage_entries",
    metadata,
    Column("id", BigInteger, Identity(always=True), primary_key=True),
    Column("project", Text, nullable=False),
    Column("key_id", Text),
    Column("model", Text, nullable=False),
    Column("tier", Text, nullable=False),
    # Whether the response was a line of a batch.
    Column("batch", Boolean, nullable=False, server_default=text("false")),
    _time("at", nullable=False),
    *_usage_counts(),
)

# The ledger, by the minute in which responses ended; `key_id` is empty where no key was asked for.
usage = Table(
    "usage",
    metadata,
    _time("minute", nullable=False),
    Column("project", Text, nullable=False),
    Column("key_id", Text, nullable=False),
    Column("model", Text, nullable=False),
    Column("tier", Text, nullable=False),
    Column("batch", Boolean, nullable=False, server_default=text("false")),
    Column("requests", BigInteger, nullable=False),
    *_usage_counts(),
    PrimaryKeyConstraint("minute", "project", "key_id", "model", "tier", "batch"),
)


UNFINISHED_BATCHES = _list(each.value for each in BatchStatus if not each.final)

batches = Table(
    "batches",
    metadata,
    Column("id", Text, primary_key=True),
    _project(),
    # The API key of its caller; NULL: no key was asked for.
    Column("key_id", Text),
    Column("endpoint", Text, nullable=False),
    Column("input_file", Text, nullable=False),
    Column("completion_window", Text, nullable=False),
    Column("metadata", JSON(none_as_null=True)),
    # How long its files are kept; NULL: until somebody deletes them.
    Column("output_seconds", Integer),
    Column("status", Text, nullable=False),
    # The batch whose failed lines these are; NULL: a client made the file.
    Column("retry_of", Text),
    # The places in the file of a retry's lines; NULL: all lines of the file are the batch's.
    Column("lines", ARRAY(Integer)),
    Column("idempotency_key", Text),
    # Until when a process has it to itself that validates it; NULL: none has begun.
    _time("validating_until"),
    # Since when none of its lines becomes a response any more, because operators cancelled all that waits; NULL: not.
    _time("lines_cancelled_at"),
    # That of all its lines; NULL: they have several, or nobody has read them.
    Column("model", Text),
    # Where its lines go, until the first is a response.
    Column("queue", Text),
    # Why it failed, or what its lines failed with (openai's Batch.errors).
    Column("errors", JSON(none_as_null=True)),
    # Its lines, once they are known to be good.
    Column("total", Integer, nullable=False, server_default=text("0")),
    # The first lines, which are responses, or will never be; and where in the file the next one begins.
    Column("expanded", Integer, nullable=False, server_default=text("0")),
    Column("expanded_bytes", BigInteger, nullable=False, server_default=text("0")),
    # Its results that have a number, and what they add up to.
    Column("numbered", Integer, nullable=False, server_default=text("0")),
    Column("completed", Integer, nullable=False, server_default=text("0")),
    Column("failed", Integer, nullable=False, server_default=text("0")),
    *(Column(name, BigInteger, nullable=False, server_default=text("0")) for name in USAGE_COUNTS),
    # The first lines, whose results are in its files.
    Column("written", Integer, nullable=False, server_default=text("0")),
    # Of which parts its files are to be made, in order; then the files.
    Column("output_parts", ARRAY(Text), nullable=False, server_default=text("'{}'")),
    Column("error_parts", ARRAY(Text), nullable=False, server_default=text("'{}'")),
    Column("output_file", Text),
    Column("error_file", Text),
    _time("created_at", nullable=False),
    _time("due_at", nullable=False),
    *(_time(f"{status}_at") for status in BATCH_TIMES),
    CheckConstraint(f"status IN ({_list(each.value for each in BatchStatus)})", name="status_known"),
    CheckConstraint("numbered <= expanded AND written <= expanded AND expanded <= total", name="in_order"),
    Index("batches_project_idx", "project", "created_at", "id"),
    Index(
        "batches_idempotency_key_idx",
        "project",
        "idempotency_key",
        unique=True,
        postgresql_where=text("idempotency_key IS NOT NULL"),
    ),
    Index("batches_unfinished_idx", "created_at", postgresql_where=text(f"status IN ({UNFINISHED_BATCHES})")),
)

# What lines came to: notes of the trigger `responses_batch`, and of lines that never became responses, with an error.
# They stay as long as their batch.
batch_results = Table(
    "batch_results",
    metadata,
    # Without a foreign key: whatever became of the batch, a response can end.
    Column("batch_id", Text, primary_key=True),
    Column("line", Integer, primary_key=True, autoincrement=False),
    Column("custom_id", Text, nullable=False),
    Column("status", Text, nullable=False),
    Column("response_id", Text),
    Column("error", JSON(none_as_null=True)),
    *(Column(name, BigInteger, nullable=False, server_default=text("0")) for name in USAGE_COUNTS),
    CheckConstraint("(response_id IS NULL) = (error IS NOT NULL)", name="response_or_error"),
    # In the order in which results were seen to end, from 1 on, without gaps (batches/results.py); NULL: not yet.
    Column("number", Integer),
    Index("batch_results_new_idx", "batch_id", "line", postgresql_where=text("number IS NULL")),
    Index("batch_results_number_idx", "batch_id", "number", unique=True, postgresql_where=text("number IS NOT NULL")),
)
