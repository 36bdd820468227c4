"""Attacks of one tenant by grammars that are costly to compile. They mean something with `--model demo`: on vLLM."""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable, Iterator

from tests.attacks.attack import Attack
from tests.attacks.memory import WALLED
from tests.attacks.projects import UNTRUSTED
from tests.attacks.target import Json, Target

AT_ONCE = 6
_numbers = itertools.count()
"""No schema is sent twice: what was compiled or refused once may be remembered."""


def _quadratic() -> Iterator[Json]:
    """Schemas of one property whose compilation takes from 5 to 45 seconds."""
    for number in _numbers:
        pattern = f"^[a-z]{{0,{(10_000, 20_000)[number % 2] + number}}}$"
        yield {"type": "object", "properties": {"a": {"type": "string", "pattern": pattern}}, "required": ["a"]}


def _form(schema: Json) -> Json:
    return {"text": {"format": {"type": "json_schema", "name": "s", "schema": schema, "strict": True}}}


async def burning_schemas(target: Target, count: int) -> None:
    """Six at once, in the foreground."""
    schemas = _quadratic()
    await target.repeat(count, lambda _: target.create(**_form(next(schemas))), parallel=AT_ONCE)


async def burning_tools(target: Target, count: int) -> None:
    """The same as the parameters of functions that must be called, each in a small structural tag."""

    async def one(_: int) -> None:
        tool = {"type": "function", "name": f"f{next(_numbers)}", "strict": True}
        await target.create(tools=[{**tool, "parameters": next(schemas)}], tool_choice="required")

    schemas = _quadratic()
    await target.repeat(count, one, parallel=AT_ONCE)


async def cancelled_schemas(target: Target, count: int) -> None:
    """In the background, and cancelled at once: what nobody waits for any more must not be compiled."""
    schemas = _quadratic()

    async def one(_: int) -> None:
        created = await target.create(background=True, **_form(next(schemas)))
        if "id" in created:
            await target.send("POST", f"/v1/responses/{created['id']}/cancel")

    await target.repeat(count, one, parallel=AT_ONCE)


async def burning_grammars(target: Target, count: int) -> None:
    """Lark and regular expressions that unroll."""

    async def one(number: int) -> None:
        size = 10_000 + next(_numbers)
        syntax, definition = (
            ("lark", f"start: /[a-z]{{0,{size}}}/"),
            ("regex", f"[a-z]{{0,{size}}}"),
            ("lark", "\n".join([f"start: r{size}_0", *_doubling(size, 40)])),
            ("lark", f'start: "a"~1..{size * 100}'),
        )[number % 4]
        grammar = {"type": "grammar", "syntax": syntax, "definition": definition}
        await target.create(tools=[{"type": "custom", "name": "c", "format": grammar}], tool_choice="required")

    await target.repeat(count, one, parallel=AT_ONCE)


def _doubling(name: int, count: int) -> Iterator[str]:
    """Rules of which each one is the next one twice."""
    for number in range(count):
        yield f"r{name}_{number}: r{name}_{number + 1} r{name}_{number + 1}"
    yield f'r{name}_{count}: "a"'


def _attack(name: str, run: Callable[[Target, int], Awaitable[None]]) -> Attack:
    return Attack(
        name,
        "K: grammars that burn the worker",
        run,
        30,
        AT_ONCE,
        {"200"},
        demand=WALLED,
        limits=UNTRUSTED,
    )


ATTACKS = (
    _attack("burning-schemas", burning_schemas),
    _attack("burning-tools", burning_tools),
    _attack("cancelled-schemas", cancelled_schemas),
    _attack("burning-grammars", burning_grammars),
)
