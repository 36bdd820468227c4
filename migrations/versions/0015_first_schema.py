"""The first schema, of version 0.3.0: every table, view and function, and what each column is.

What must always hold is a constraint: a final status has its time, `failed` has an error, only a response in progress
has an owner, and what operators and clients make in a project names one that exists.

Databases of earlier versions, and of 0.3.0 before its release, have the revisions 0001 to 0014. Nothing upgrades them
(app/store/migrate.py).

Triggers note what happens, whoever makes it happen: a worker, a cancel, maintenance, a process of another version. One
settles: a response left the queue, or ended and used so much. The others note what a project's stored bytes gained or
lost. They run as the owner of the tables, so that no process needs the right to write notes. The notes are plain
inserts. They lock nothing that others wait for; app/store/tenants/limits.py and app/store/tenants/usage.py add them up.

The view `oldest_revision` names the oldest revision whose processes still work with the schema. A later migration that
takes something away replaces it.
"""

from __future__ import annotations

from alembic import op
from sqlalchemy import text

revision = "0015"
down_revision = None
branch_labels = None
depends_on = None

_SCHEMA = """
CREATE TABLE projects (
    id TEXT NOT NULL,
    name TEXT NOT NULL,
    -- Names of models, and labels of MCP servers, that its requests may use (`ProjectRow`).
    models TEXT[] DEFAULT '{*}' NOT NULL,
    tool_servers TEXT[] DEFAULT '{*}' NOT NULL,
    created_at TIMESTAMPTZ NOT NULL,
    archived_at TIMESTAMPTZ,
    -- The best service tier that its responses get.
    top_tier TEXT DEFAULT 'priority' NOT NULL,
    -- Its share of every queue, beside the other projects that wait there.
    weight DOUBLE PRECISION DEFAULT 1 NOT NULL,
    -- What its ended responses, its conversations and its files occupy, up to the notes in `stored_changes`.
    stored_bytes BIGINT DEFAULT 0 NOT NULL,
    -- A conversation that has not changed for so long is deleted; NULL: none is.
    conversation_days INTEGER,
    -- When maintenance begins to erase everything of the project, and when it had (tenants/erasure.py).
    erase_at TIMESTAMPTZ,
    erased_at TIMESTAMPTZ,
    CONSTRAINT projects_pkey PRIMARY KEY (id),
    CONSTRAINT projects_weight_in_bounds CHECK (weight BETWEEN 0.001 AND 1000),
    CONSTRAINT projects_conversation_days_in_bounds CHECK (conversation_days BETWEEN 1 AND 3660),
    CONSTRAINT projects_top_tier_known CHECK (top_tier IN ('flex', 'default', 'priority')),
    CONSTRAINT projects_default_stays CHECK (archived_at IS NULL OR id <> 'default')
);
CREATE INDEX projects_created_idx ON projects (created_at, id);

CREATE TABLE api_keys (
    id TEXT NOT NULL,
    -- NULL: a key of the operators, which belongs to no project.
    project TEXT,
    -- The id that it has as a service account, alone or with others, for OpenAI's clients.
    service_account TEXT,
    name TEXT NOT NULL,
    -- SHA-256 of the key, which is kept nowhere.
    hash BYTEA NOT NULL,
    -- The beginning and the end of the key, for people.
    shown TEXT NOT NULL,
    scopes TEXT[] NOT NULL,
    created_at TIMESTAMPTZ NOT NULL,
    expires_at TIMESTAMPTZ,
    -- Seconds from its beginning, as it was made (NULL: it was to last). A rotation ends it sooner, and makes one
    -- alike.
    lifetime_seconds DOUBLE PRECISION,
    last_used_at TIMESTAMPTZ,
    revoked_at TIMESTAMPTZ,
    CONSTRAINT api_keys_pkey PRIMARY KEY (id),
    CONSTRAINT api_keys_hash_is_sha256 CHECK (octet_length(hash) = 32),
    CONSTRAINT api_keys_scopes_known
        CHECK (cardinality(scopes) > 0
            AND scopes <@ ARRAY['responses', 'batches', 'files', 'read', 'operator', 'admin']),
    CONSTRAINT api_keys_operators_have_no_project
        CHECK ((project IS NULL) = (scopes && ARRAY['admin', 'operator'])),
    CONSTRAINT api_keys_accounts_are_of_projects CHECK (service_account IS NULL OR project IS NOT NULL),
    CONSTRAINT api_keys_project_fkey FOREIGN KEY (project) REFERENCES projects (id)
);
CREATE INDEX api_keys_account_idx ON api_keys (service_account) WHERE service_account IS NOT NULL;
CREATE UNIQUE INDEX api_keys_hash_idx ON api_keys (hash);
CREATE INDEX api_keys_project_idx ON api_keys (project);

-- What operators did, each in the transaction of what was done (audit.py).
CREATE TABLE audit_logs (
    id TEXT NOT NULL,
    effective_at TIMESTAMPTZ NOT NULL,
    type TEXT NOT NULL,
    -- The id of the API key; NULL: a command on a machine of the operators.
    actor TEXT,
    project TEXT,
    resource TEXT NOT NULL,
    details JSON NOT NULL,
    -- Where the request came from, and its id; NULL: a command.
    address TEXT,
    request_id TEXT,
    CONSTRAINT audit_logs_pkey PRIMARY KEY (id),
    CONSTRAINT audit_logs_project_fkey FOREIGN KEY (project) REFERENCES projects (id)
);
CREATE INDEX audit_logs_project_idx ON audit_logs (project, effective_at, id);
CREATE INDEX audit_logs_time_idx ON audit_logs (effective_at, id);

-- What operators had done to all responses that match a filter; maintenance carries it out in steps
-- (operations/actions.py).
CREATE TABLE bulk_actions (
    id TEXT NOT NULL,
    kind TEXT NOT NULL,
    filter JSON NOT NULL,
    reason TEXT NOT NULL,
    -- The id of the API key; NULL: a command on a machine of the operators.
    actor TEXT,
    state TEXT DEFAULT 'running' NOT NULL,
    -- By Postgres' clock. It acts on responses that were inserted until then.
    created_at TIMESTAMPTZ DEFAULT clock_timestamp() NOT NULL,
    finished_at TIMESTAMPTZ,
    -- How many responses matched when it was accepted.
    matched BIGINT NOT NULL,
    done BIGINT DEFAULT 0 NOT NULL,
    -- How many batches it has made `cancelling`.
    batches INTEGER DEFAULT 0 NOT NULL,
    -- How many it refused, by the code of the reason.
    refused JSON DEFAULT '{}' NOT NULL,
    -- How far it has come: the last response it looked at (NULL: none in this pass), and how many of this pass others
    -- had locked, for which it begins once more.
    cursor_at TIMESTAMPTZ,
    cursor_position BIGINT,
    passed_by BIGINT DEFAULT 0 NOT NULL,
    CONSTRAINT bulk_actions_pkey PRIMARY KEY (id),
    CONSTRAINT bulk_actions_kind_known CHECK (kind IN ('cancel', 'retry')),
    CONSTRAINT bulk_actions_state_known CHECK (state IN ('running', 'completed', 'cancelled', 'failed')),
    CONSTRAINT bulk_actions_finished_unless_running CHECK ((finished_at IS NULL) = (state = 'running')),
    CONSTRAINT bulk_actions_cursor_whole CHECK ((cursor_at IS NULL) = (cursor_position IS NULL))
);
CREATE INDEX bulk_actions_created_idx ON bulk_actions (created_at, id);
CREATE INDEX bulk_actions_running_idx ON bulk_actions (created_at) WHERE state = 'running';

-- What a project may use at most, of one model or of all ('*'), and how much of it was taken at `as_of`
-- (tenants/limits.py).
CREATE TABLE limits (
    project TEXT NOT NULL,
    model TEXT NOT NULL,
    kind TEXT NOT NULL,
    value BIGINT NOT NULL,
    -- Responses that were inserted before are not counted.
    since TIMESTAMPTZ NOT NULL,
    used DOUBLE PRECISION DEFAULT 0 NOT NULL,
    drained_per_second DOUBLE PRECISION DEFAULT 0 NOT NULL,
    as_of TIMESTAMPTZ NOT NULL,
    CONSTRAINT limits_pkey PRIMARY KEY (project, model, kind),
    CONSTRAINT limits_kind_known
        CHECK (kind IN ('requests_per_minute', 'reads_per_minute', 'tokens_per_minute', 'tokens_per_day',
            'queued_responses', 'queued_bytes', 'unfinished_responses', 'stored_bytes')),
    CONSTRAINT limits_value_in_bounds CHECK (value BETWEEN 1 AND 9007199254740990),
    CONSTRAINT limits_used_not_negative CHECK (used >= 0),
    CONSTRAINT limits_project_fkey FOREIGN KEY (project) REFERENCES projects (id)
);

-- Notes of the trigger `responses_settle`: a response with a reservation left the queue, or ended. Whoever adds them to
-- the project's limits deletes them.
CREATE TABLE settlements (
    id BIGINT GENERATED ALWAYS AS IDENTITY,
    project TEXT NOT NULL,
    model TEXT NOT NULL,
    reserved_at TIMESTAMPTZ NOT NULL,
    at TIMESTAMPTZ NOT NULL,
    left_queue BOOLEAN NOT NULL,
    ended BOOLEAN NOT NULL,
    bytes BIGINT NOT NULL,
    -- Of the reserved ones; negative: more were used.
    unused_tokens BIGINT NOT NULL,
    CONSTRAINT settlements_pkey PRIMARY KEY (id)
);
CREATE INDEX settlements_project_idx ON settlements (project);

-- Notes of triggers: what a statement added to the bytes that a project stores, or (negative) deleted. Whoever adds
-- them to `projects.stored_bytes` deletes them.
CREATE TABLE stored_changes (
    project TEXT NOT NULL,
    bytes BIGINT NOT NULL
);
CREATE INDEX stored_changes_project_idx ON stored_changes (project);

-- Notes of the same trigger: what an ended response used. Whoever adds them to `usage` deletes them.
CREATE TABLE usage_entries (
    id BIGINT GENERATED ALWAYS AS IDENTITY,
    project TEXT NOT NULL,
    key_id TEXT,
    model TEXT NOT NULL,
    tier TEXT NOT NULL,
    -- Whether the response was a line of a batch.
    batch BOOLEAN DEFAULT false NOT NULL,
    at TIMESTAMPTZ NOT NULL,
    input_tokens BIGINT NOT NULL,
    cached_tokens BIGINT NOT NULL,
    output_tokens BIGINT NOT NULL,
    reasoning_tokens BIGINT NOT NULL,
    CONSTRAINT usage_entries_pkey PRIMARY KEY (id)
);

-- The ledger, by the minute in which responses ended; `key_id` is empty where no key was asked for.
CREATE TABLE usage (
    minute TIMESTAMPTZ NOT NULL,
    project TEXT NOT NULL,
    key_id TEXT NOT NULL,
    model TEXT NOT NULL,
    tier TEXT NOT NULL,
    batch BOOLEAN DEFAULT false NOT NULL,
    requests BIGINT NOT NULL,
    input_tokens BIGINT NOT NULL,
    cached_tokens BIGINT NOT NULL,
    output_tokens BIGINT NOT NULL,
    reasoning_tokens BIGINT NOT NULL,
    CONSTRAINT usage_pkey PRIMARY KEY (minute, project, key_id, model, tier, batch)
);

CREATE TABLE responses (
    -- What no update changes is first, then what dispatches and claims change, and last what ends change: Postgres logs
    -- a row from its first change to its last. A request stands before both.

    -- Where it stands among all responses: the order in which Postgres inserted them, whatever any clock says.
    position BIGINT GENERATED ALWAYS AS IDENTITY,
    -- By the API's clock, and shown to clients: it orders nothing.
    created_at TIMESTAMPTZ NOT NULL,
    -- When Postgres inserted the row, by its own clock: erasures go by it (tenants/erasure.py).
    inserted_at TIMESTAMPTZ DEFAULT now() NOT NULL,
    context_bytes BIGINT NOT NULL,
    -- Responses in its chain, itself included, and the bytes of all before it (context/size.py).
    chain_length INTEGER NOT NULL,
    -- Bytes of JSON, so that no read unpacks it to learn its length: of the request, and of its input.
    request_bytes INTEGER GENERATED ALWAYS AS (octet_length(CAST(request AS text))) STORED NOT NULL,
    input_bytes INTEGER NOT NULL,
    -- Estimated tokens.
    cost INTEGER NOT NULL,
    priority SMALLINT NOT NULL,
    background BOOLEAN NOT NULL,
    stream BOOLEAN NOT NULL,
    store BOOLEAN NOT NULL,
    id TEXT NOT NULL,
    -- That of a key, which has a foreign key, or the default. One here would lock the project's row in every insert:
    -- about 7 % of its time with three connection pools in one process (5 of 76 us, a rough number).
    project TEXT NOT NULL,
    model TEXT NOT NULL,
    queue TEXT NOT NULL,
    -- JSON, not JSONB: a model may write U+0000, which JSONB refuses.
    request JSON NOT NULL,
    -- That of the request, for lists, which unpack no request; NULL: none.
    metadata JSON,
    -- What the request includes, for those who do not read it; NULL: nothing.
    include TEXT[],
    previous_response_id TEXT,
    conversation_id TEXT,
    -- Of the items of its input, but those that were made for it: no later request adds the same; NULL: none.
    input_ids TEXT[],
    -- The API key of its caller; NULL: no key was asked for.
    key_id TEXT,
    -- The id of the request that made it, and the trace that it belongs to (access/trace_context.py).
    request_id TEXT,
    traceparent TEXT,
    tracestate TEXT,
    -- What else has the same value begins with the same prompt; NULL: nobody knows (new_rows.py).
    affinity BIGINT,
    -- How long the response may run. A claim sets `run_deadline` from it; a yield takes back what is left.
    run_seconds FLOAT,
    queue_deadline TIMESTAMPTZ,
    -- When the window of work in windows ends. What is not final then fails (endings.py).
    due_at TIMESTAMPTZ,
    -- What goes before the position in its flow: of work in windows its deadline, in microseconds; of a continuation
    -- that of its head; NULL: the position (new_rows.py).
    rank BIGINT,
    -- The continuation that it is the head of.
    heads TEXT,
    idempotency_key TEXT,
    fingerprint BYTEA,
    -- The response whose request it repeats, because an operator said so (operations/retries.py).
    retry_of TEXT,
    -- The batch whose line it is, which one of its lines (from 1 on; blank ones do not count), and what the line calls
    -- itself; NULL: it is no line of a batch.
    batch_id TEXT,
    batch_line INTEGER,
    custom_id TEXT,
    -- What the response has reserved of its project's limits, and when; NULL: the project had none (tenants/limits.py).
    reserved_at TIMESTAMPTZ,
    reserved_input BIGINT,
    reserved_output BIGINT,
    reserved_bytes BIGINT,

    -- What dispatches and claims change.

    sent_at TIMESTAMPTZ,
    started_at TIMESTAMPTZ,
    -- When its last attempt began.
    claimed_at TIMESTAMPTZ,
    run_deadline TIMESTAMPTZ,
    attempt INTEGER DEFAULT 0 NOT NULL,
    sends INTEGER DEFAULT 0 NOT NULL,
    crashes INTEGER DEFAULT 0 NOT NULL,
    -- The tokens that its flow was charged (dispatch.py); NULL: none, because it waits, or was sent without waiting.
    charged INTEGER,
    -- Of the newest process that may have written to the row or its log (layout.py).
    layout SMALLINT NOT NULL,
    -- How often it has yielded, and whether it waits for its turn since (claims.py).
    yields SMALLINT DEFAULT 0 NOT NULL,
    yielded BOOLEAN DEFAULT false NOT NULL,
    -- Whether it takes one of the places that are kept for foreground responses (new_rows.py, dispatch.py).
    foreground_place BOOLEAN DEFAULT false NOT NULL,
    -- The node of the worker that it was sent to last, or that claimed it: there the prefix of its prompt was read.
    sent_to TEXT,
    -- The attempts, if any, that handed it over (`handed_over`).
    history JSONB,

    -- What ends change.

    worker TEXT,
    status TEXT NOT NULL,
    finished_at TIMESTAMPTZ,
    -- Of its log (`chunks.bytes`), since it has ended; before, the log grows and nobody counts it.
    log_bytes BIGINT DEFAULT 0 NOT NULL,
    -- Bytes of JSON, too: of `output` with `tool_results`, and of `messages`.
    output_bytes INTEGER GENERATED ALWAYS AS (
        coalesce(octet_length(CAST(output AS text)), 0) + coalesce(octet_length(CAST(tool_results AS text)), 0)
    ) STORED NOT NULL,
    messages_bytes INTEGER GENERATED ALWAYS AS (coalesce(octet_length(CAST(messages AS text)), 0)) STORED NOT NULL,
    -- Where the events are: `live` chunks, `merged` into a row a page, or `deleted`. A log of less than 8,192 bytes
    -- counts as merged from its end on: to merge it costs more than its few rows.
    log TEXT DEFAULT 'live' NOT NULL,
    output JSON,
    -- What models are told of the hosted tools' calls in `output`; clients never see it (context/contents.py).
    tool_results JSON,
    -- `input_messages` and `output_messages`, if the request asked for them.
    messages JSON,
    usage JSON,
    error JSON,
    -- That of the error, for lists: Postgres cannot look into JSON with U+0000.
    error_code TEXT,
    incomplete_details JSON,
    -- What later requests answer in its input and output; NULL: nothing (protocol/answerable.py).
    call_ids TEXT[],
    approvals TEXT[],
    CONSTRAINT responses_pkey PRIMARY KEY (id),
    CONSTRAINT responses_priority_known CHECK (priority IN (1, 2, 3, 6, 8, 9, 10)),
    CONSTRAINT responses_due_in_window
        CHECK ((priority = 10) = (due_at IS NOT NULL) AND (due_at IS NULL OR rank IS NOT NULL)),
    CONSTRAINT responses_status_known
        CHECK (status IN ('cancelled', 'completed', 'failed', 'in_progress', 'incomplete', 'queued')),
    CONSTRAINT responses_finished_when_final
        CHECK ((finished_at IS NOT NULL) = (status IN ('cancelled', 'completed', 'failed', 'incomplete'))),
    CONSTRAINT responses_output_when_final
        CHECK ((output IS NOT NULL) = (status IN ('cancelled', 'completed', 'failed', 'incomplete'))),
    CONSTRAINT responses_error_when_failed CHECK ((error IS NOT NULL) = (status = 'failed')),
    CONSTRAINT responses_incomplete_details_when_incomplete
        CHECK ((incomplete_details IS NOT NULL) = (status = 'incomplete')),
    CONSTRAINT responses_queued_never_started
        CHECK (status <> 'queued' OR (started_at IS NULL AND attempt = 0)),
    CONSTRAINT responses_in_progress_started
        CHECK (status <> 'in_progress' OR (started_at IS NOT NULL AND attempt > 0)),
    CONSTRAINT responses_worker_while_in_progress CHECK (worker IS NULL OR status = 'in_progress'),
    CONSTRAINT responses_worker_was_sent
        CHECK (worker IS NULL OR (sent_to IS NOT NULL AND sent_at IS NOT NULL)),
    CONSTRAINT responses_yields_within_attempts CHECK (yields >= 0 AND yields <= attempt),
    CONSTRAINT responses_crashes_within_attempts CHECK (crashes >= 0 AND crashes <= attempt),
    CONSTRAINT responses_log_known CHECK (log IN ('live', 'merged', 'deleted')),
    CONSTRAINT responses_log_live_while_unfinished CHECK (log = 'live' OR finished_at IS NOT NULL),
    CONSTRAINT responses_fingerprint_of_idempotent
        CHECK ((idempotency_key IS NULL) = (fingerprint IS NULL)),
    CONSTRAINT responses_place_in_chain CHECK (chain_length > 0 AND context_bytes >= 0),
    CONSTRAINT responses_cost_not_negative CHECK (cost >= 0 AND charged >= 0),
    -- Half a reservation would make the settling trigger fail, and the response could never end.
    CONSTRAINT responses_reserved_all_or_none
        CHECK (num_nulls(reserved_at, reserved_input, reserved_output, reserved_bytes) IN (0, 4)),
    CONSTRAINT responses_batch_all_or_none CHECK (num_nulls(batch_id, batch_line, custom_id) IN (0, 3))
) WITH (
    -- Room in its page for a row's next version: of that Postgres logs only what has changed (docs/scaling.md).
    fillfactor = 50,
    -- What is counted is read from indexes alone where Postgres has vacuumed: by default it would, once a fifth of the
    -- table is new, or dead (docs/internals/decisions/read-model.md).
    autovacuum_vacuum_insert_scale_factor = 0,
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_analyze_scale_factor = 0.02
);
CREATE UNIQUE INDEX responses_idempotency_key_idx ON responses (project, idempotency_key)
    WHERE idempotency_key IS NOT NULL;
-- A line is inserted once.
CREATE UNIQUE INDEX responses_batch_idx ON responses (batch_id, batch_line) WHERE batch_id IS NOT NULL;
-- Unfinished responses in conversations: retention keeps those.
CREATE INDEX responses_conversation_idx ON responses (conversation_id)
    WHERE conversation_id IS NOT NULL AND finished_at IS NULL;
-- What is due, and how much that is by queue and project (queue/windows.py).
CREATE INDEX responses_due_idx ON responses (due_at) INCLUDE (queue, project, cost, batch_id)
    WHERE due_at IS NOT NULL AND finished_at IS NULL;
CREATE INDEX responses_error_idx ON responses (error_code, inserted_at) WHERE error_code IS NOT NULL;
CREATE INDEX responses_foreground_waiting_idx ON responses (queue)
    WHERE (status = 'queued' OR status = 'in_progress' AND yielded AND worker IS NULL) AND sent_at IS NULL
    AND priority IN (1, 3, 8);
CREATE INDEX responses_heads_idx ON responses (project, heads, position) WHERE heads IS NOT NULL;
CREATE INDEX responses_lines_idx ON responses (batch_id, status, inserted_at) WHERE batch_id IS NOT NULL;
CREATE INDEX responses_live_log_idx ON responses (finished_at) WHERE finished_at IS NOT NULL AND log = 'live';
CREATE INDEX responses_merged_log_idx ON responses (finished_at) WHERE log = 'merged';
CREATE INDEX responses_project_idx ON responses (project, status, inserted_at);
CREATE INDEX responses_queue_deadline_idx ON responses (queue_deadline)
    WHERE status = 'queued' AND queue_deadline IS NOT NULL;
CREATE INDEX responses_released_idx ON responses (position) WHERE status = 'in_progress' AND worker IS NULL;
CREATE UNIQUE INDEX responses_retry_idx ON responses (retry_of) WHERE retry_of IS NOT NULL;
CREATE INDEX responses_run_deadline_idx ON responses (run_deadline)
    WHERE status = 'in_progress' AND run_deadline IS NOT NULL;
CREATE INDEX responses_sent_idx ON responses (sent_to) WHERE sent_at IS NOT NULL AND finished_at IS NULL;
-- Lists (operations/filters.py): of all projects, of one, and of a batch; and failures by their codes.
CREATE INDEX responses_status_idx ON responses (status, inserted_at);
CREATE INDEX responses_stored_idx ON responses (finished_at) WHERE finished_at IS NOT NULL AND store;
CREATE INDEX responses_unstored_idx ON responses (finished_at) WHERE finished_at IS NOT NULL AND NOT store;
-- Those that wait here, by flow and rank, and what each worker has (queue/facts.py).
-- INCLUDE is for operators who ask whose they are, and how many are before one: Postgres uses no index alone of which
-- it needs an expression, unless the columns of that are there, too (operations/snapshot.py, operations/known.py).
CREATE INDEX responses_waiting_idx ON responses
    (queue, project, priority, (coalesce(rank, position)), position) INCLUDE (key_id, rank)
    WHERE (status = 'queued' OR status = 'in_progress' AND yielded AND worker IS NULL) AND sent_at IS NULL;

CREATE TABLE chunks (
    response_id TEXT NOT NULL,
    first INTEGER NOT NULL,
    last INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    final BOOLEAN NOT NULL,
    -- Token ids as little-endian unsigned 32-bit integers.
    tokens BYTEA NOT NULL,
    -- Packed (app/store/packing.py), and how many bytes they are unpacked.
    frames BYTEA NOT NULL,
    size INTEGER NOT NULL,
    -- What it counts with in the bytes that its project stores.
    bytes INTEGER GENERATED ALWAYS AS (
        octet_length(frames) + octet_length(tokens) + coalesce(octet_length(CAST(steps AS text)), 0)
    ) STORED NOT NULL,
    -- What the next attempt must know besides the events: ends of turns, results of calls (generation/history.py).
    steps JSON,
    -- Of prompts, counted by the first chunk after the engine was given them; so a response that is cut has a usage.
    input_tokens INTEGER DEFAULT 0 NOT NULL,
    cached_tokens INTEGER DEFAULT 0 NOT NULL,
    CONSTRAINT chunks_pkey PRIMARY KEY (response_id, first),
    CONSTRAINT chunks_numbers_in_order CHECK (first >= 0 AND last >= first),
    CONSTRAINT chunks_response_id_fkey FOREIGN KEY (response_id) REFERENCES responses (id) ON DELETE CASCADE
) WITH (
    -- Each row is deleted soon after its response's end.
    autovacuum_vacuum_scale_factor = 0.02
);
CREATE UNIQUE INDEX chunks_final_idx ON chunks (response_id) WHERE final;

CREATE TABLE conversations (
    id TEXT NOT NULL,
    project TEXT NOT NULL,
    metadata JSON NOT NULL,
    -- By the API's clock, as that of a response.
    created_at TIMESTAMPTZ NOT NULL,
    inserted_at TIMESTAMPTZ DEFAULT now() NOT NULL,
    -- But for items that were added later: adding one writes nothing here (retention.py).
    changed_at TIMESTAMPTZ DEFAULT now() NOT NULL,
    CONSTRAINT conversations_pkey PRIMARY KEY (id),
    CONSTRAINT conversations_project_fkey FOREIGN KEY (project) REFERENCES projects (id)
);

CREATE INDEX conversations_project_idx ON conversations (project, changed_at);

CREATE TABLE conversation_items (
    conversation_id TEXT NOT NULL,
    -- That of the conversation, for the trigger that counts its bytes: in a cascade the conversation is gone before.
    project TEXT NOT NULL,
    id TEXT NOT NULL,
    position BIGINT GENERATED ALWAYS AS IDENTITY,
    item JSON NOT NULL,
    tool_results JSON,
    -- Of both.
    bytes INTEGER NOT NULL,
    added_at TIMESTAMPTZ DEFAULT now() NOT NULL,
    -- What later requests answer in the item; NULL: nothing.
    call_id TEXT,
    approval TEXT,
    CONSTRAINT conversation_items_pkey PRIMARY KEY (conversation_id, id),
    CONSTRAINT conversation_items_conversation_id_fkey
        FOREIGN KEY (conversation_id) REFERENCES conversations (id) ON DELETE CASCADE
);
CREATE INDEX conversation_items_approval_idx ON conversation_items (conversation_id, position)
    WHERE approval IS NOT NULL;
CREATE INDEX conversation_items_call_idx ON conversation_items (conversation_id, call_id) WHERE call_id IS NOT NULL;
CREATE INDEX conversation_items_id_idx ON conversation_items (id);
CREATE UNIQUE INDEX conversation_items_position_idx ON conversation_items (conversation_id, position);

-- A file is there once it is complete. Until then there are parts alone, which nobody sees (store/files).
CREATE TABLE files (
    id TEXT NOT NULL,
    project TEXT NOT NULL,
    filename TEXT NOT NULL,
    purpose TEXT NOT NULL,
    bytes BIGINT NOT NULL,
    created_at TIMESTAMPTZ DEFAULT now() NOT NULL,
    expires_at TIMESTAMPTZ,
    CONSTRAINT files_pkey PRIMARY KEY (id),
    CONSTRAINT files_purpose_known CHECK (purpose IN ('batch', 'batch_output', 'user_data', 'vision')),
    CONSTRAINT files_bytes_not_negative CHECK (bytes >= 0),
    CONSTRAINT files_project_fkey FOREIGN KEY (project) REFERENCES projects (id)
);
CREATE INDEX files_expires_idx ON files (expires_at) WHERE expires_at IS NOT NULL;
CREATE INDEX files_project_idx ON files (project, created_at, id);

-- A file that a request brings has one part; one that a batch writes may have several. While a part is `open` its bytes
-- are reserved; what was `dropped` counts no more, and maintenance deletes it.
CREATE TABLE file_parts (
    id TEXT NOT NULL,
    project TEXT NOT NULL,
    state TEXT DEFAULT 'open' NOT NULL,
    -- The file that it belongs to, and where in it the part begins.
    file_id TEXT,
    start BIGINT,
    bytes BIGINT NOT NULL,
    created_at TIMESTAMPTZ DEFAULT now() NOT NULL,
    -- When it got its last block.
    touched_at TIMESTAMPTZ DEFAULT now() NOT NULL,
    CONSTRAINT file_parts_pkey PRIMARY KEY (id),
    CONSTRAINT file_parts_state_known CHECK (state IN ('open', 'finished', 'dropped')),
    CONSTRAINT file_parts_place_in_file CHECK ((file_id IS NULL) = (start IS NULL)),
    CONSTRAINT file_parts_finished_in_file CHECK (file_id IS NULL OR state = 'finished'),
    CONSTRAINT file_parts_dropped_counts_no_more CHECK (state <> 'dropped' OR bytes = 0),
    CONSTRAINT file_parts_bytes_not_negative CHECK (bytes >= 0),
    CONSTRAINT file_parts_project_fkey FOREIGN KEY (project) REFERENCES projects (id),
    CONSTRAINT file_parts_file_id_fkey FOREIGN KEY (file_id) REFERENCES files (id)
);
CREATE INDEX file_parts_file_idx ON file_parts (file_id, start) WHERE file_id IS NOT NULL;
CREATE INDEX file_parts_unfinished_idx ON file_parts (state, touched_at) WHERE state <> 'finished';

-- The bytes of a part, 1 MiB in each block but the last.
CREATE TABLE file_blocks (
    part_id TEXT NOT NULL,
    number INTEGER NOT NULL,
    data BYTEA NOT NULL,
    CONSTRAINT file_blocks_pkey PRIMARY KEY (part_id, number),
    CONSTRAINT file_blocks_part_id_fkey FOREIGN KEY (part_id) REFERENCES file_parts (id) ON DELETE CASCADE
);
ALTER TABLE file_blocks ALTER COLUMN data SET STORAGE EXTERNAL;

CREATE TABLE workers (
    id TEXT NOT NULL,
    model TEXT NOT NULL,
    queue TEXT NOT NULL,
    -- The name of its process (app/queue/node.py), whose list in Redis has what is sent to it. A lease that is lost
    -- ends the row, not the process: `id` is the node, with the number of the lease from the second one on.
    node TEXT NOT NULL,
    host TEXT NOT NULL,
    pid INTEGER NOT NULL,
    started_at TIMESTAMPTZ NOT NULL,
    lease_until TIMESTAMPTZ NOT NULL,
    -- When maintenance first found the lock missing, or the lease in its second half; NULL while neither is so.
    absent_since TIMESTAMPTZ,
    -- Tokens of prompt and output together, as the engine says.
    context_length INTEGER NOT NULL,
    -- The layout that the worker knows (layout.py).
    layout SMALLINT NOT NULL,
    -- How many responses it runs at once; 0: it takes none now, because it stops, or has no connection to Redis.
    slots INTEGER NOT NULL,
    -- How many of its responses wait for their tools, and need no slot: without a foreground place, and with one.
    away INTEGER DEFAULT 0 NOT NULL,
    foreground_away INTEGER DEFAULT 0 NOT NULL,
    -- How its model's prompts are written, which of vLLM's parsers read the answers (NULL: none), and the sampling of
    -- requests without parameters.
    format TEXT NOT NULL,
    tool_parser TEXT,
    reasoning_parser TEXT,
    default_sampling JSON DEFAULT '{}' NOT NULL,
    -- What becomes of each `reasoning.effort` (NULL: not known).
    efforts JSON,
    -- What it refuses, and why, for GET /v1/models.
    refusals JSON DEFAULT '{}' NOT NULL,
    -- For operators: what restarts the process (a unit, a pod), CUDA_VISIBLE_DEVICES, the name of its devices, and
    -- Longhaul's version; NULL: not known.
    unit TEXT,
    devices TEXT,
    device TEXT,
    version TEXT DEFAULT '' NOT NULL,
    CONSTRAINT workers_pkey PRIMARY KEY (id),
    CONSTRAINT workers_format_known CHECK (format IN ('chat', 'harmony')),
    CONSTRAINT workers_engine_has_room CHECK (context_length > 0 AND slots >= 0)
);

-- The workers that operators drain, by node. They take nothing; a lease that is lost changes nothing about it.
CREATE TABLE drains (
    node TEXT NOT NULL,
    since TIMESTAMPTZ DEFAULT now() NOT NULL,
    reason TEXT,
    -- The id of the operator's API key; NULL: a command on a machine of the operators.
    actor TEXT,
    -- When maintenance first found no worker of that node (drains.py).
    absent_since TIMESTAMPTZ,
    CONSTRAINT drains_pkey PRIMARY KEY (node)
);

-- What operators pause: a queue, or what one project has in it. It stays in line until they resume it.
CREATE TABLE pauses (
    queue TEXT NOT NULL,
    project TEXT,
    model TEXT NOT NULL,
    since TIMESTAMPTZ DEFAULT now() NOT NULL,
    reason TEXT,
    actor TEXT,
    CONSTRAINT pauses_project_fkey FOREIGN KEY (project) REFERENCES projects (id)
);
CREATE UNIQUE INDEX pauses_queue_project_idx ON pauses (queue, project) NULLS NOT DISTINCT;

-- One row for each queue that was dispatched from: its lock, and its virtual time (dispatch.py).
CREATE TABLE queues (
    name TEXT NOT NULL,
    virtual_time DOUBLE PRECISION NOT NULL,
    CONSTRAINT queues_pkey PRIMARY KEY (name)
);

-- The finish tag of what was sent last of each flow. A flow without a row is like one whose tag is not ahead.
CREATE TABLE flows (
    queue TEXT NOT NULL,
    project TEXT NOT NULL,
    priority SMALLINT NOT NULL,
    tag DOUBLE PRECISION NOT NULL,
    -- What its responses took of late, divided by their costs.
    scale DOUBLE PRECISION DEFAULT 1 NOT NULL,
    -- How far a token moved its tag when it was charged last.
    step DOUBLE PRECISION NOT NULL,
    -- The mean seconds and tokens of its responses of late; NULL: none has ended.
    run_seconds DOUBLE PRECISION,
    run_tokens DOUBLE PRECISION,
    -- How far its work in windows has risen (queue/windows.py).
    part DOUBLE PRECISION DEFAULT 0 NOT NULL,
    CONSTRAINT flows_pkey PRIMARY KEY (queue, project, priority)
);

CREATE TABLE batches (
    id TEXT NOT NULL,
    project TEXT NOT NULL,
    -- The API key of its caller; NULL: no key was asked for.
    key_id TEXT,
    endpoint TEXT NOT NULL,
    input_file TEXT NOT NULL,
    completion_window TEXT NOT NULL,
    metadata JSON,
    -- How long its files are kept; NULL: until somebody deletes them.
    output_seconds INTEGER,
    status TEXT NOT NULL,
    -- The batch whose failed lines these are; NULL: a client made the file.
    retry_of TEXT,
    -- The places in the file of a retry's lines; NULL: all lines of the file are the batch's.
    lines INTEGER[],
    idempotency_key TEXT,
    -- Until when a process has it to itself that validates it; NULL: none has begun.
    validating_until TIMESTAMPTZ,
    -- Since when none of its lines becomes a response any more, because operators cancelled all that waits; NULL: not.
    lines_cancelled_at TIMESTAMPTZ,
    -- That of all its lines; NULL: they have several, or nobody has read them.
    model TEXT,
    -- Where its lines go, until the first is a response.
    queue TEXT,
    -- Why it failed, or what its lines failed with (openai's Batch.errors).
    errors JSON,
    -- Its lines, once they are known to be good.
    total INTEGER DEFAULT 0 NOT NULL,
    -- The first lines, which are responses, or will never be; and where in the file the next one begins.
    expanded INTEGER DEFAULT 0 NOT NULL,
    expanded_bytes BIGINT DEFAULT 0 NOT NULL,
    -- Its results that have a number, and what they add up to.
    numbered INTEGER DEFAULT 0 NOT NULL,
    completed INTEGER DEFAULT 0 NOT NULL,
    failed INTEGER DEFAULT 0 NOT NULL,
    input_tokens BIGINT DEFAULT 0 NOT NULL,
    cached_tokens BIGINT DEFAULT 0 NOT NULL,
    output_tokens BIGINT DEFAULT 0 NOT NULL,
    reasoning_tokens BIGINT DEFAULT 0 NOT NULL,
    -- The first lines, whose results are in its files.
    written INTEGER DEFAULT 0 NOT NULL,
    -- Of which parts its files are to be made, in order; then the files.
    output_parts TEXT[] DEFAULT '{}' NOT NULL,
    error_parts TEXT[] DEFAULT '{}' NOT NULL,
    output_file TEXT,
    error_file TEXT,
    created_at TIMESTAMPTZ NOT NULL,
    due_at TIMESTAMPTZ NOT NULL,
    in_progress_at TIMESTAMPTZ,
    finalizing_at TIMESTAMPTZ,
    completed_at TIMESTAMPTZ,
    failed_at TIMESTAMPTZ,
    expired_at TIMESTAMPTZ,
    cancelling_at TIMESTAMPTZ,
    cancelled_at TIMESTAMPTZ,
    CONSTRAINT batches_pkey PRIMARY KEY (id),
    CONSTRAINT batches_status_known
        CHECK (status IN ('validating', 'failed', 'in_progress', 'finalizing', 'completed', 'expired', 'cancelling',
            'cancelled')),
    CONSTRAINT batches_in_order CHECK (numbered <= expanded AND written <= expanded AND expanded <= total),
    CONSTRAINT batches_project_fkey FOREIGN KEY (project) REFERENCES projects (id)
);
CREATE INDEX batches_project_idx ON batches (project, created_at, id);
CREATE UNIQUE INDEX batches_idempotency_key_idx ON batches (project, idempotency_key)
    WHERE idempotency_key IS NOT NULL;
CREATE INDEX batches_unfinished_idx ON batches (created_at)
    WHERE status IN ('validating', 'in_progress', 'finalizing', 'cancelling');

-- What lines came to: notes of the trigger `responses_batch`, and of lines that never became responses, with an error.
-- They stay as long as their batch.
CREATE TABLE batch_results (
    -- Without a foreign key: whatever became of the batch, a response can end.
    batch_id TEXT NOT NULL,
    line INTEGER NOT NULL,
    custom_id TEXT NOT NULL,
    status TEXT NOT NULL,
    response_id TEXT,
    error JSON,
    input_tokens BIGINT DEFAULT 0 NOT NULL,
    cached_tokens BIGINT DEFAULT 0 NOT NULL,
    output_tokens BIGINT DEFAULT 0 NOT NULL,
    reasoning_tokens BIGINT DEFAULT 0 NOT NULL,
    -- In the order in which results were seen to end, from 1 on, without gaps (batches/results.py); NULL: not yet.
    number INTEGER,
    CONSTRAINT batch_results_pkey PRIMARY KEY (batch_id, line),
    CONSTRAINT batch_results_response_or_error CHECK ((response_id IS NULL) = (error IS NOT NULL))
);
CREATE INDEX batch_results_new_idx ON batch_results (batch_id, line) WHERE number IS NULL;
CREATE UNIQUE INDEX batch_results_number_idx ON batch_results (batch_id, number) WHERE number IS NOT NULL;

-- The secret keys of the deployment (keys.py).
CREATE TABLE keys (
    name TEXT NOT NULL,
    value BYTEA NOT NULL,
    CONSTRAINT keys_pkey PRIMARY KEY (name)
);
"""

# With the path of the migration, and temporary tables last: nobody else's table is taken for one of these.
_AS_OWNER = "SECURITY DEFINER SET search_path = {schema}, pg_temp"

# Tokens of a response that ran and ended without a usage are counted in its log (those of its output have four bytes
# each), for its limits and for the ledger: a client that leaves before the end evades neither.
_SETTLE = f"""
    CREATE FUNCTION settle_response() RETURNS trigger LANGUAGE plpgsql {_AS_OWNER} AS $$
    DECLARE
        has_ended boolean := NEW.finished_at IS NOT NULL;
        input bigint := coalesce(CAST(NEW.usage->>'input_tokens' AS bigint), 0);
        cached bigint := coalesce(CAST(NEW.usage->'input_tokens_details'->>'cached_tokens' AS bigint), 0);
        output bigint := coalesce(CAST(NEW.usage->>'output_tokens' AS bigint), 0);
        unused bigint := 0;
    BEGIN
        IF has_ended AND NEW.usage IS NULL AND OLD.status <> 'queued' THEN
            SELECT coalesce(sum(input_tokens), 0), coalesce(sum(cached_tokens), 0),
                coalesce(sum(octet_length(tokens)), 0) / 4 INTO input, cached, output
            FROM chunks WHERE response_id = NEW.id;
        END IF;
        IF NEW.reserved_at IS NOT NULL THEN
            IF has_ended THEN
                unused := NEW.reserved_input + NEW.reserved_output - input - output;
            END IF;
            INSERT INTO settlements
                (project, model, reserved_at, at, left_queue, ended, bytes, unused_tokens)
            VALUES (NEW.project, NEW.model, NEW.reserved_at, clock_timestamp(), OLD.status = 'queued', has_ended,
                NEW.reserved_bytes, unused);
        END IF;
        IF has_ended AND (NEW.usage IS NOT NULL OR OLD.status <> 'queued') THEN
            INSERT INTO usage_entries
                (project, key_id, model, tier, batch, at,
                input_tokens, cached_tokens, output_tokens, reasoning_tokens)
            VALUES (NEW.project, NEW.key_id, NEW.model,
                CASE WHEN NEW.priority IN (1, 2) THEN 'priority' WHEN NEW.priority IN (8, 9) THEN 'flex'
                    ELSE 'default' END,
                NEW.batch_id IS NOT NULL, clock_timestamp(), input, cached, output,
                coalesce(CAST(NEW.usage->'output_tokens_details'->>'reasoning_tokens' AS bigint), 0));
        END IF;
        RETURN NULL;
    END $$
"""
_TRIGGER = """
    CREATE TRIGGER responses_settle AFTER UPDATE OF status ON responses FOR EACH ROW
    WHEN (OLD.finished_at IS NULL AND (NEW.finished_at IS NOT NULL AND
            (NEW.usage IS NOT NULL OR NEW.reserved_at IS NOT NULL OR OLD.status <> 'queued')
        OR OLD.status = 'queued' AND NEW.status <> 'queued' AND NEW.reserved_at IS NOT NULL))
    EXECUTE FUNCTION settle_response()
"""

# What a line of a batch came to, in the transaction that ends it.
_BATCH = (
    f"""
    CREATE FUNCTION note_batch_result() RETURNS trigger LANGUAGE plpgsql {_AS_OWNER} AS $$
    BEGIN
        INSERT INTO batch_results
            (batch_id, line, response_id, custom_id, status,
            input_tokens, cached_tokens, output_tokens, reasoning_tokens)
        VALUES (NEW.batch_id, NEW.batch_line, NEW.id, NEW.custom_id,
            CASE WHEN NEW.error_code = 'completion_window_expired' THEN 'cancelled' ELSE NEW.status END,
            coalesce(CAST(NEW.usage->>'input_tokens' AS bigint), 0),
            coalesce(CAST(NEW.usage->'input_tokens_details'->>'cached_tokens' AS bigint), 0),
            coalesce(CAST(NEW.usage->>'output_tokens' AS bigint), 0),
            coalesce(CAST(NEW.usage->'output_tokens_details'->>'reasoning_tokens' AS bigint), 0));
        RETURN NULL;
    END $$
    """,
    """
    CREATE TRIGGER responses_batch AFTER UPDATE OF status ON responses FOR EACH ROW
    WHEN (NEW.batch_id IS NOT NULL AND OLD.finished_at IS NULL AND NEW.finished_at IS NOT NULL)
    EXECUTE FUNCTION note_batch_result()
    """,
)

# Once it has ended, a response counts with all that it occupies. Until then its request is reserved where there is a
# limit, and its log grows: a trigger on chunks would make each flush dearer.
_RESPONSE_BYTES = "{0}.request_bytes + {0}.output_bytes + {0}.messages_bytes + {0}.log_bytes"
_NEW, _OLD = _RESPONSE_BYTES.format("NEW"), _RESPONSE_BYTES.format("OLD")
_METADATA_BYTES = "octet_length(CAST({}.metadata AS text))"
# A file's row counts as well: a million empty files are to be kept, too. A batch counts with what its lines come to as
# soon as their number is known: their rows, and their places in its files, are made while it runs.
_FILE_BYTES = "500 + octet_length(filename)"
_BATCH_BYTES = (
    "(1000 + 1000 * {0}.total + coalesce(octet_length(CAST({0}.metadata AS text)), 0)"
    " + coalesce(octet_length(CAST({0}.errors AS text)), 0))"
)
_STORED = (
    f"""
    CREATE FUNCTION note_stored_response() RETURNS trigger LANGUAGE plpgsql {_AS_OWNER} AS $$
    BEGIN
        INSERT INTO stored_changes (project, bytes)
        VALUES (NEW.project, {_NEW} - CASE WHEN OLD.finished_at IS NULL THEN 0 ELSE {_OLD} END);
        RETURN NULL;
    END $$
    """,
    # The condition costs other updates nothing; those of a final row are merges, and the end of a log.
    f"""
    CREATE TRIGGER responses_stored AFTER UPDATE ON responses FOR EACH ROW
    WHEN (NEW.finished_at IS NOT NULL AND (OLD.finished_at IS NULL OR {_NEW} <> {_OLD}))
    EXECUTE FUNCTION note_stored_response()
    """,
    f"""
    CREATE FUNCTION note_deleted_responses() RETURNS trigger LANGUAGE plpgsql {_AS_OWNER} AS $$
    BEGIN
        INSERT INTO stored_changes (project, bytes)
        SELECT project, -sum({_RESPONSE_BYTES.format("gone")}) FROM gone WHERE finished_at IS NOT NULL GROUP BY project;
        RETURN NULL;
    END $$
    """,
    """
    CREATE TRIGGER responses_deleted AFTER DELETE ON responses REFERENCING OLD TABLE AS gone
    FOR EACH STATEMENT EXECUTE FUNCTION note_deleted_responses()
    """,
    f"""
    CREATE FUNCTION note_stored_items() RETURNS trigger LANGUAGE plpgsql {_AS_OWNER} AS $$
    BEGIN
        INSERT INTO stored_changes (project, bytes)
        SELECT project, CASE TG_OP WHEN 'INSERT' THEN sum(bytes) ELSE -sum(bytes) END FROM changed GROUP BY project;
        RETURN NULL;
    END $$
    """,
    """
    CREATE TRIGGER conversation_items_added AFTER INSERT ON conversation_items REFERENCING NEW TABLE AS changed
    FOR EACH STATEMENT EXECUTE FUNCTION note_stored_items()
    """,
    """
    CREATE TRIGGER conversation_items_deleted AFTER DELETE ON conversation_items REFERENCING OLD TABLE AS changed
    FOR EACH STATEMENT EXECUTE FUNCTION note_stored_items()
    """,
    f"""
    CREATE FUNCTION note_stored_metadata() RETURNS trigger LANGUAGE plpgsql {_AS_OWNER} AS $$
    BEGIN
        IF TG_OP <> 'INSERT' THEN
            INSERT INTO stored_changes (project, bytes) VALUES (OLD.project, -{_METADATA_BYTES.format("OLD")});
        END IF;
        IF TG_OP <> 'DELETE' THEN
            INSERT INTO stored_changes (project, bytes) VALUES (NEW.project, {_METADATA_BYTES.format("NEW")});
        END IF;
        RETURN NULL;
    END $$
    """,
    """
    CREATE TRIGGER conversations_stored AFTER INSERT OR DELETE OR UPDATE OF metadata ON conversations
    FOR EACH ROW EXECUTE FUNCTION note_stored_metadata()
    """,
    f"""
    CREATE FUNCTION note_stored_part() RETURNS trigger LANGUAGE plpgsql {_AS_OWNER} AS $$
    BEGIN
        INSERT INTO stored_changes (project, bytes) VALUES (
            coalesce(NEW.project, OLD.project), coalesce(NEW.bytes, 0) - coalesce(OLD.bytes, 0));
        RETURN NULL;
    END $$
    """,
    """
    CREATE TRIGGER file_parts_stored AFTER INSERT OR DELETE OR UPDATE OF bytes ON file_parts
    FOR EACH ROW EXECUTE FUNCTION note_stored_part()
    """,
    f"""
    CREATE FUNCTION note_stored_files() RETURNS trigger LANGUAGE plpgsql {_AS_OWNER} AS $$
    BEGIN
        INSERT INTO stored_changes (project, bytes)
        SELECT project, CASE TG_OP WHEN 'INSERT' THEN 1 ELSE -1 END * sum({_FILE_BYTES}) FROM changed GROUP BY project;
        RETURN NULL;
    END $$
    """,
    """
    CREATE TRIGGER files_added AFTER INSERT ON files REFERENCING NEW TABLE AS changed
    FOR EACH STATEMENT EXECUTE FUNCTION note_stored_files()
    """,
    """
    CREATE TRIGGER files_deleted AFTER DELETE ON files REFERENCING OLD TABLE AS changed
    FOR EACH STATEMENT EXECUTE FUNCTION note_stored_files()
    """,
    f"""
    CREATE FUNCTION note_stored_batch() RETURNS trigger LANGUAGE plpgsql {_AS_OWNER} AS $$
    BEGIN
        INSERT INTO stored_changes (project, bytes) VALUES (
            coalesce(NEW.project, OLD.project),
            CASE TG_OP WHEN 'DELETE' THEN 0 ELSE {_BATCH_BYTES.format("NEW")} END
            - CASE TG_OP WHEN 'INSERT' THEN 0 ELSE {_BATCH_BYTES.format("OLD")} END);
        RETURN NULL;
    END $$
    """,
    """
    CREATE TRIGGER batches_stored AFTER INSERT OR DELETE OR UPDATE OF total, errors ON batches
    FOR EACH ROW EXECUTE FUNCTION note_stored_batch()
    """,
)

# Entries of the last thirty days stay, whatever the process that asks was told: whoever takes a process over cannot
# remove what shows it. Only maintenance may call it (app/store/roles/rights.py), and nobody may delete otherwise.
_DELETE_AUDIT_ENTRIES = f"""
    CREATE FUNCTION delete_audit_entries(before timestamptz, most integer) RETURNS bigint LANGUAGE sql {_AS_OWNER} AS $$
        WITH gone AS (
            DELETE FROM audit_logs WHERE ctid = ANY(ARRAY(
                SELECT ctid FROM audit_logs WHERE effective_at < least(before, now() - interval '30 days')
                ORDER BY effective_at LIMIT most FOR UPDATE SKIP LOCKED))
            RETURNING 1
        )
        SELECT count(*) FROM gone
    $$
"""

_FUNCTIONS = (
    *("settle_response()", "note_stored_response()", "note_deleted_responses()", "note_stored_items()"),
    *("note_stored_files()", "note_stored_batch()"),
    *(
        "note_batch_result()",
        "note_stored_metadata()",
        "note_stored_part()",
        "delete_audit_entries(timestamptz, integer)",
    ),
)

# Which rows a role reads: app/store/roles/rights.py (`ROWS`).
_KEYS_BY_ROLE = "ALTER TABLE keys ENABLE ROW LEVEL SECURITY"

# An attempt that hands its response over adds itself to the row's history: the last 64 of them, for their numbers show
# that some are missing. Its worker is named by the node, which outlives a lease.
_HANDED_OVER = """
    CREATE FUNCTION handed_over(r responses, how text) RETURNS jsonb LANGUAGE sql STABLE AS $$
        SELECT CASE WHEN jsonb_array_length(r.history) >= 64 THEN r.history - 0 ELSE coalesce(r.history, '[]') END
            || jsonb_build_object('attempt', r.attempt, 'worker', r.sent_to, 'from', r.claimed_at, 'to', now(),
                'how', how)
    $$
"""

# What dispatches and inserts decide by (app/scheduling). A worker is open if it may be sent responses. Its load is what
# was sent to it and has not ended, claimed or not; what waits for its tools takes no slot. Foreground responses have
# the priorities 1, 3 and 8.
_VIEWS = (
    """
    CREATE VIEW open_workers AS
    SELECT w.id, w.node, w.queue, w.layout, w.version, w.slots, w.away, w.foreground_away, w.started_at, w.lease_until
    FROM workers w WHERE w.slots > 0 AND NOT EXISTS (SELECT FROM drains d WHERE d.node = w.node)
    """,
    # A worker holds an advisory lock while its process lives (app/store/queue/workers.py). pg_locks shows a lock's
    # 64-bit key as two unsigned halves.
    """
    CREATE VIEW present_workers AS
    SELECT w.id FROM workers w WHERE EXISTS (
        SELECT FROM pg_locks l WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 1
        AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
        AND ((CAST(l.classid AS bigint) << 32) | CAST(l.objid AS bigint)) = hashtextextended(w.id, 0))
    """,
    """
    CREATE VIEW worker_loads AS
    SELECT w.queue, w.node, w.layout, w.slots, w.started_at,
        greatest(h.answers - w.away, 0) AS answers,
        greatest(h.foreground - w.foreground_away, 0) AS foreground,
        h.background
    FROM open_workers w CROSS JOIN LATERAL (
        SELECT count(*) FILTER (WHERE NOT r.foreground_place) AS answers,
            count(*) FILTER (WHERE r.foreground_place) AS foreground,
            count(*) FILTER (WHERE r.priority NOT IN (1, 3, 8)) AS background
        FROM responses r
        WHERE r.sent_to = w.node AND r.sent_at IS NOT NULL AND r.finished_at IS NULL
    ) h
    WHERE w.lease_until > now()
    """,
    """
    CREATE VIEW waiting_responses AS
    SELECT id, queue, project, priority, coalesce(rank, position) AS rank, position, due_at, cost, charged, sent_to,
        previous_response_id, affinity, key_id, status, inserted_at
    FROM responses
    WHERE (status = 'queued' OR status = 'in_progress' AND yielded AND worker IS NULL) AND sent_at IS NULL
    """,
    """
    CREATE VIEW queue_slots AS
    SELECT queue, sum(slots) AS slots FROM workers WHERE lease_until > now() GROUP BY queue
    """,
    # The last attempt of each response that committed tokens or steps.
    """
    CREATE VIEW progress AS
    SELECT DISTINCT ON (response_id) response_id, attempt FROM chunks
    WHERE octet_length(tokens) > 0 OR steps IS NOT NULL ORDER BY response_id, first DESC
    """,
)


def upgrade() -> None:
    schema = op.get_bind().execute(text("SELECT quote_ident(current_schema())")).scalar_one()
    functions = (_SETTLE, _TRIGGER, *_BATCH, *_STORED, _DELETE_AUDIT_ENTRIES, _HANDED_OVER)
    for statement in (*_SCHEMA.rstrip("\n;").split(";\n"), _KEYS_BY_ROLE, *functions):
        op.execute(statement.replace("{schema}", schema))
    op.execute(f"REVOKE ALL ON FUNCTION {', '.join(_FUNCTIONS)} FROM PUBLIC")
    op.execute("INSERT INTO projects (id, name, created_at) VALUES ('default', 'default', now())")
    for view in _VIEWS:
        op.execute(view)
    op.execute("CREATE VIEW oldest_revision AS SELECT CAST('0015' AS text) AS revision")
