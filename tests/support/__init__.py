"""What tests share, by module.

Services and installations
    services         Postgres and Valkey for the session; replicas: with a standby; clusters: copied data folders
    longhaul         `longhaul up` as a process; installations: those that tests share, as fixtures
    upping           one `longhaul up` of a test, and `longhaul` commands; forks: both without the time of imports
    commands         operators' commands as processes
    wheels           the wheel in an environment of its own
    next_version     the next version of this code, for upgrades
    roles            a database with the rights of one kind of process
    certificates     a certificate authority
    devices          a stand-in for the GPU driver
    read_only        a program where all is read-only; unprivileged: a program as another user
The API and its requests
    api              the API in the test's loop, and a reader of its streams; api_process: it as a process
    requests         stored requests; refusals: all requests that are refused, as tables
    pdfs             PDFs
    batches, bulk    batches; many queued responses and actions of operators on them
    tenants          projects and their keys; limited: projects with limits
    sdk              answers by openai's own types, and what these have
    pages            tables of the docs
    grammar          a second table of events, which checks streams
    deltas           random legal deltas, and their events
Workers
    worker           a worker without Celery; player: one that the test plays
    scripted         the engine whose prompts script its replies
    pool             Celery's part in unit tests of the pool
    queue_app        a worker app with a runner that pretends; celery_bench drives it; celery_processes starts it
Stored rows
    rows             responses in the database; waiting_rows: those that wait for a dispatch
    stored           what projects store, as counted and as it is
Clients
    browser          Chromium; flower_client: Flower
    codex            Codex CLI; node_clients: the clients for Node
Servers that tests play
    mcp_server       an MCP server with every fault; library_server: one for gpt-oss; tool_servers: both started
    tool_process     Longhaul's own MCP servers as processes; python_server, browser_server: each of them, and its calls
    little_web       a web of a few pages
    collector        an OTLP collector
Measuring and waiting
    waiting          waits for a condition; processes: which are alive
    costs            statements, messages and tasks of one response
    scrapes, promql  metrics as Prometheus reads them; the queries of the dashboards
    logs, log_lines  the log of a response; what this process logs
    cycles           what only the garbage collector frees
    sharing          which process runs which test
"""
