"""Every field of a TypedDict of the openai package, recursively, and whether a server heeds what is sent in it.

A body is made for each field: the least that its type asks for, and the field with each of its values. A server that
takes several of them, and makes the same of all, ignores the field.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import NoneType, UnionType
from typing import Any, Literal, Required, Union, get_args, get_origin, get_type_hints

from typing_extensions import is_typeddict

Json = dict[str, Any]
Make = Callable[[Any], Json]
"""Puts a value into its place in a body."""


class Refused(Exception):
    """The server refuses a body."""

    def __init__(self, code: str | None, where: str | None) -> None:
        super().__init__(f"{code} at {where}")
        self.code = code
        self.where = where


NAMED = ("unsupported_parameter", "unknown_parameter")
"""The codes of a field, or of a value, that is refused as such, whatever else is sent."""


@dataclass
class Walk:
    """`heed` returns what a server makes of a body, as something that compares; it raises Refused.

    `around`: what else a body may need; each is tried in turn, lists in front of the body's. `samples`: values of
    fields whose names say more than their types, by the end of their paths. `needs`: what objects must have beside what
    their types ask for, by the names of these.
    """

    heed: Callable[[Json], Hashable]
    around: Sequence[Json]
    samples: Mapping[str, Sequence[Any]]
    needs: Mapping[str, Json]
    silent: set[str] = field(default_factory=set)
    """The paths of fields that are taken and ignored, and `path: value = value` of values that are taken as one."""
    unknown: dict[str, str] = field(default_factory=dict)
    """The paths that no sample came through, nor was refused as such, and why: they need better samples."""
    seen: set[str] = field(default_factory=set)
    """All paths."""

    def walk(self, kind: Any, path: str = "", make: Make = lambda value: value) -> None:
        """Walks the fields of a TypedDict; `make` puts an object of it into a body."""
        least = self._least(kind, path)
        for name, (annotation, is_required) in fields_of(kind).items():
            where = f"{path}.{name}" if path else name
            self.seen.add(where)
            others = {key: value for key, value in least.items() if key != name}
            is_needed = is_required or name in self.needs.get(kind.__name__, {})
            self._field(where, annotation, _placing(make, others, name), None if is_needed else make(others))

    def _field(self, where: str, annotation: Any, place: Make, absent: Json | None) -> None:
        members = alternatives(annotation)
        made: dict[str, Hashable] = {}
        refused: list[Refused] = []
        for member in members:
            nested, found = nested_in(member), []
            for value in self._values(member, where):
                try:
                    found = self._together([place(value)] if absent is None else [absent, place(value)])
                except Refused as error:
                    refused.append(error)
                    self._explain(_labelled(where, members, member), error, member)
                    continue
                if value not in ({}, [{}]):  # an object that says nothing may change nothing
                    made |= {"": found[0], repr(value): found[-1]} if absent is not None else {repr(value): found[-1]}
            if nested is not None and found:
                kind, is_list = nested
                inner: Make = (lambda value: place([value])) if is_list else place
                self.walk(kind, _labelled(where, members, member), inner)
        self._judge(where, members, made, refused)

    def _explain(self, where: str, error: Refused, member: Any) -> None:
        """Notes a refusal that may be our sample's fault: another value might be taken, and ignored."""
        field_name = where.rsplit(".", 1)[-1].partition("[")[0]
        named = re.sub(r"\[\d+\]$", "", error.where or "").rpartition(".")[2]
        is_object = nested_in(member) is not None
        is_refused = error.code in NAMED and named in ((field_name, "type", "role") if is_object else (named,))
        is_complete = (get_origin(member) is Literal or member is bool) and named == field_name
        if not is_refused and not is_complete:
            self.unknown[where] = str(error)

    def _judge(self, where: str, members: Sequence[Any], made: Mapping[str, Hashable], refused: Sequence[Any]) -> None:
        if made:
            self.unknown.pop(where, None)
        is_tag = all(get_origin(member) is Literal and len(get_args(member)) == 1 for member in members)
        if len(made) > 1 and len(set(made.values())) == 1 and not refused and not is_tag:
            self.silent.add(where)
            return
        chosen = {repr(value) for member in members for value in plain_values(member) if get_origin(member) is Literal}
        taken = sorted((value for value in made if value in chosen), key=lambda value: hash(made[value]))
        for _, group in itertools.groupby(taken, key=made.__getitem__):
            if len(values := sorted(group)) > 1:
                self.silent.add(f"{where}: {' = '.join(values)}")

    def _together(self, bodies: Sequence[Json]) -> list[Hashable]:
        """What is made of all these bodies in the first surroundings that take them. Raises Refused, the first one."""
        first: Refused | None = None
        for more in self.around:
            try:
                return [self.heed(within(more, body)) for body in bodies]
            except Refused as refused:
                first = first or refused
        assert first is not None
        raise first

    def _values(self, annotation: Any, where: str) -> Sequence[Any]:
        if (nested := nested_in(annotation)) is not None:
            least = self._least(nested[0], where)
            return [[least] if nested[1] else least]
        return self._sampled(where) or plain_values(annotation)

    def _least(self, kind: Any, path: str) -> Json:
        """The least object of that type."""
        made = dict(self.needs.get(kind.__name__, {}))
        for name, (annotation, is_required) in fields_of(kind).items():
            if is_required and name not in made:
                made[name] = self._values(alternatives(annotation)[0], f"{path}.{name}")[0]
        return made

    def _sampled(self, where: str) -> Sequence[Any]:
        """The samples of the longest end of a path that has some."""
        ends = [key for key in self.samples if f".{where}".endswith(f".{key}")]
        return self.samples[max(ends, key=len)] if ends else ()


def _placing(make: Make, others: Json, name: str) -> Make:
    return lambda value: make({**others, name: value})


def _labelled(where: str, members: Sequence[Any], member: Any) -> str:
    """The path of what is in a field: with the label of its type, if there are several."""
    if (nested := nested_in(member)) is None:
        return where
    several = sum(nested_in(each) is not None for each in members) > 1
    return f"{where}[{label_of(nested[0]) if several else ''}]" if several or nested[1] else where


def fields_of(kind: Any) -> dict[str, tuple[Any, bool]]:
    """The fields of a TypedDict: the type of each, and whether it must be there.

    `__required_keys__` does not tell: the package's annotations are strings.
    """
    hints = get_type_hints(kind, include_extras=True)
    inherited = [fields_of(base) for base in getattr(kind, "__orig_bases__", ()) if is_typeddict(base)]
    found = {
        name: (get_args(hint)[0], True) if get_origin(hint) is Required else (hint, kind.__total__)
        for name, hint in hints.items()
    }
    return {
        **found,
        **{name: each for fields in inherited for name, each in fields.items() if each[0] == found[name][0]},
    }


def alternatives(annotation: Any) -> list[Any]:
    """The members of a union, without null; a type alone is one."""
    if get_origin(annotation) in (Union, UnionType):
        return [each for member in get_args(annotation) for each in alternatives(member) if each is not NoneType]
    if get_origin(annotation) is not None and _is_list(annotation):
        return [list[member] for member in alternatives(get_args(annotation)[0])]  # type: ignore[valid-type]
    return [annotation]


def nested_in(annotation: Any) -> tuple[Any, bool] | None:
    """The TypedDict that a type is, or is a list of, and whether it is a list."""
    if is_typeddict(annotation):
        return annotation, False
    if _is_list(annotation) and is_typeddict(get_args(annotation)[0]):
        return get_args(annotation)[0], True
    return None


def _is_list(annotation: Any) -> bool:
    origin = get_origin(annotation)
    return isinstance(origin, type) and issubclass(origin, Iterable) and not issubclass(origin, Mapping)


def plain_values(annotation: Any) -> list[Any]:
    """Some values of a type without fields."""
    if get_origin(annotation) is Literal:
        return list(get_args(annotation))
    if annotation in (bool, str, int, float):
        return {bool: [True, False], str: ["x", "y"], int: [1, 2], float: [0.5, 1.0]}[annotation]
    if _is_list(annotation):
        return [[value] for value in plain_values(get_args(annotation)[0])]
    if get_origin(annotation) is dict:
        return [{"x": value} for value in plain_values(get_args(annotation)[1])]
    return [{"x": "y"}, {"x": "z"}]


def label_of(kind: Any) -> str:
    """What tells an object of that type from others: its `type` or `role`, or the type's name."""
    for name in ("type", "role"):
        values = get_args(fields_of(kind).get(name, (None, False))[0])
        if len(values) == 1:
            return str(values[0])
    return str(kind.__name__)


def within(more: Json, body: Json) -> Json:
    """The body with more around it: lists in front of its own, other fields where it has none."""
    made = {**more, **body}
    for name in more.keys() & body.keys():
        if isinstance(more[name], list) and isinstance(body[name], list):
            made[name] = [*more[name], *body[name]]
    return made
