"""No decision hangs on the wall clock of a process, which may be wrong or jump.

Postgres' `now()` decides about leases, deadlines and retention; clocks that only go forward (`monotonic`, the loop's)
measure pauses. Each other use is listed here with what it is for.
"""

from __future__ import annotations

import re

from config.settings import CHECKOUT

WALL_CLOCK = re.compile(
    r"\btime\.(?:time|time_ns|localtime|gmtime)\b|from time import .*\btime\b"
    r"|\bdatetime\.(?:now|utcnow|today)\b|\bdate\.today\b"
)
USES = {
    "app/api/routes/organization/usage.py": "where a page of usage ends, if its caller does not say",
    "app/main.py": "the `created` of models, for clients",
    "app/local/commands/responses/filters.py": "what `2h` means to an operator",
    "app/responses/create/retried.py": "a response's `created_at`, for clients",
    "app/responses/create/acceptor.py": "a response's `created_at`, for clients and the order of lists",
    "app/responses/conversations.py": "a conversation's `created_at`, for clients",
    "app/ids.py": "ids that are neighbours in an index",
    "app/webhooks/sender.py": "a `Retry-After` that is a date",
    "app/queue/message_template.py": "when a task was sent, for Flower",
    "config/chat_template.py": "the date in a probe of a chat template",
    "app/local/console.py": "the time of a log line",
    "app/local/commands/views.py": "the time on an operator's screen",
    "config/logging/lines.py": "the time of a log line",
    "app/local/commands/doctor/finding.py": "what the clocks of servers are compared with",
}


def test_every_use_of_a_wall_clock_is_known_and_decides_nothing() -> None:
    found = {
        str(path.relative_to(CHECKOUT))
        for room in ("app", "config", "workers")
        for path in (CHECKOUT / room).rglob("*.py")
        if WALL_CLOCK.search(path.read_text(encoding="utf-8"))
    }
    assert found == set(USES)
