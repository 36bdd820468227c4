"""Tries a running installation as its operator and two of its tenants, and prints a line for each check.

OPENAI_BASE_URL and OPENAI_ADMIN_KEY say which installation. It makes two projects and archives them at the end. What
they used stays in the ledger.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Awaitable, Callable

from openai import AsyncOpenAI, OpenAIError

from tests.tenants.accounts import an_ended_key_is_refused, the_audit_log_has_it_all, usage_is_exact
from tests.tenants.burst import requests_a_minute_hold, tokens_a_minute_hold
from tests.tenants.tenants import CheckFailed, Trial, two_projects
from tests.tenants.work import each_does_its_work, keys_do_what_their_scopes_say, neither_sees_the_other

CHECKS: tuple[Callable[[Trial], Awaitable[str]], ...] = (
    each_does_its_work,
    neither_sees_the_other,
    keys_do_what_their_scopes_say,
    requests_a_minute_hold,
    tokens_a_minute_hold,
    usage_is_exact,
    an_ended_key_is_refused,
    the_audit_log_has_it_all,
)
"""In this order: usage is compared after all work is done."""


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.tenants", description=__doc__)
    parser.add_argument("--model", default="longhaul-demo", help="the model that both projects use")
    chosen = parser.parse_args()
    if not os.environ.get("OPENAI_BASE_URL"):
        parser.error("OPENAI_BASE_URL is not set: the client would make the projects at OpenAI")
    return chosen


async def trial(model: str) -> int:
    """Returns how many checks failed."""
    failed = 0
    async with AsyncOpenAI(api_key="", max_retries=0) as admin, two_projects(admin, model) as both:
        for check in CHECKS:
            name = check.__name__.replace("_", " ")
            try:
                say(f"ok    {name}: {await check(both)}")
            except (CheckFailed, OpenAIError) as error:
                failed += 1
                say(f"FAIL  {name}: {error}")
    return failed


def say(text: str) -> None:
    print(text, flush=True)  # noqa: T201 - a program for the terminal


def main() -> int:
    chosen = _arguments()
    try:
        failed = asyncio.run(trial(chosen.model))
    except (CheckFailed, OpenAIError) as error:
        say(f"FAIL  two projects: {error}")
        return 1
    say(f"{len(CHECKS)} checks, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
