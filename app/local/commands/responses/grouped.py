"""Options that several commands have, declared once: as the fields of a dataclass."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Collection, Iterator
from functools import wraps
from typing import Any, get_type_hints


def grouped(*, without: Collection[str] = ()) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Gives a command the fields of each parameter that is a dataclass as options, and the parameter its values.

    Fields that `without` names keep their defaults.
    """

    def decorated(command: Callable[..., None]) -> Callable[..., None]:
        parameters = inspect.signature(command, eval_str=True).parameters.values()
        groups: dict[str, Any] = {
            each.name: each.annotation for each in parameters if dataclasses.is_dataclass(each.annotation)
        }
        options = {name: list(_options(kind, without)) for name, kind in groups.items()}

        @wraps(command)
        def run(**given: Any) -> None:
            made = {
                name: kind(**{each.name: given.pop(each.name) for each in options[name]})
                for name, kind in groups.items()
            }
            command(**made, **given)

        shown = [option for each in parameters for option in options.get(each.name, [each])]
        signature = inspect.Signature([each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in shown])
        run.__signature__ = signature  # type: ignore[attr-defined]
        run.__annotations__ = {each.name: each.annotation for each in shown}
        return run

    return decorated


def _options(kind: Any, without: Collection[str]) -> Iterator[inspect.Parameter]:
    hints = get_type_hints(kind, include_extras=True)
    for field in dataclasses.fields(kind):
        if field.name not in without:
            yield inspect.Parameter(
                field.name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=hints[field.name]
            )
