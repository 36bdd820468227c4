"""A JSON schema as a grammar of exactly the JSON texts that it admits, or refused.

Texts have the members of objects in the schema's order, those it does not name last.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import product
from typing import Any

from app.protocol.types import Json
from workers.engine.json_grammar import quoted
from workers.engine.schemas.branches import SCALARS, Branches, scalar, text_of
from workers.engine.schemas.documents import Document, Node, Refused
from workers.engine.schemas.languages import Language, both, is_empty, literal, matches, without
from workers.engine.schemas.patterns import pattern
from workers.engine.schemas.rules import Alternative, Rules, joined

MAX_COUNTED = 4_000
"""Properties, times how many of them are counted."""
MAX_PATTERNS = 4


def schema_grammar(schema: Json | bool) -> str:
    """In xgrammar's EBNF. Raises Refused, with the path in the schema."""
    return Grammar(schema).text()


class Grammar(Rules):
    """The rules of a schema's values."""

    def __init__(self, schema: Json | bool, excludes: Iterable[str] = ()) -> None:
        super().__init__(excludes)
        self.document = Document(schema)
        self._values: dict[str, str | None] = {}

    def text(self) -> str:
        root = self.value([self.document.root])
        self.rule([joined(root)] if root else [], "root")
        return self.printed(["root"])

    def value(self, nodes: Sequence[Node]) -> str | None:
        """The rule of the values that all nodes admit; None if there are none."""
        kept = list({text_of(node): node for node in nodes if node}.values())
        if not kept:
            return "any"
        key = text_of(kept)
        if key not in self._values:
            self._values[key] = name = f"v{len(self._values)}"
            self._rules[name] = list(self._alternatives(kept))
            if not self._rules[name]:
                self._values[key] = None
        return self._values[key]

    def _alternatives(self, nodes: list[Node]) -> Iterator[Alternative]:
        for kind in SCALARS:
            try:
                yield from self.scalar(kind, scalar(self.document, nodes, kind))
            except Refused:
                raise
            except ValueError as error:
                raise Refused(nodes[0].path, str(error)) from None
        yield from self.composite("array", nodes)
        yield from self.composite("object", nodes)

    def composite(self, kind: str, nodes: list[Node]) -> Iterator[Alternative]:
        make = self._array if kind == "array" else self._object
        for branch in Branches(self.document, kind, self.possible).of(nodes):
            yield from make(branch) if branch else [joined(kind)]

    def possible(self, kind: str, nodes: list[Node]) -> bool:
        return next(self.composite(kind, nodes), None) is not None

    # -- arrays

    def _array(self, nodes: list[Node]) -> Iterator[Alternative]:
        least = max([0, *(node["minItems"] for node in nodes if "minItems" in node)])
        most = min([node["maxItems"] for node in nodes if "maxItems" in node], default=None)
        if any(node.get("uniqueItems") for node in nodes) and (most is None or most > 1):
            node = next(node for node in nodes if node.get("uniqueItems"))
            raise Refused(f"{node.path}/uniqueItems", "it cannot be held")
        if (holder := next((node for node in nodes if "contains" in node), None)) is not None:
            nodes = [
                node.made({k: v for k, v in node.items() if k != "contains" or node is not holder}) for node in nodes
            ]
            yield from self._containing(holder, nodes, least, most)
            return
        length = max(len(node.get("prefixItems", ())) for node in nodes)
        heads = [self.value([child for node in nodes for child in _at(node, index)]) for index in range(length)]
        item = self.value([node["items"] for node in nodes if "items" in node])
        if None in heads:
            length = heads.index(None)
            heads, item = heads[:length], None
        yield from self._list(heads, item, least, most)

    def _list(self, heads: list[Any], item: str | None, least: int, most: int | None) -> Iterator[Alternative]:
        """Each number of items that the heads cover is an alternative of its own."""
        for count in range(least, min(len(heads), len(heads) if most is None else most) + 1):
            yield joined('"["', "w", *_between(heads[:count]), *(["w"] if count else []), '"]"')
        least, most = max(least - len(heads), 1), None if most is None else most - len(heads)
        if item is not None and (most is None or most >= least):
            more = f'(w "," w {item}){{{least - 1},{"" if most is None else most - 1}}}'
            text, uses = joined('"["', "w", *_between([*heads, item]), "w", '"]"')
            yield text.removesuffix(' w "]"') + f' {more} w "]"', uses

    def _containing(self, holder: Node, nodes: list[Node], least: int, most: int | None) -> Iterator[Alternative]:
        low, high = holder.get("minContains", 1), holder.get("maxContains")
        odd = {"prefixItems", "contains"} & {keyword for node in nodes for keyword in node}
        if odd or most is not None or least > max(low, 1):
            raise Refused(f"{holder.path}/contains", "it cannot be held beside other bounds of the array")
        if high is None and low == 0:
            yield from self._array([*nodes, holder.made({"items": Node()})])
            return
        items = [node["items"] for node in nodes if "items" in node]
        hit = self.value([*items, holder["contains"]])
        others = [*items, *([holder.made({"not": holder["contains"]})] if high is not None else [])]
        miss = self.value(others)
        if low == 0 and least == 0:
            yield joined('"["', "w", '"]"')
        if low == 0 and miss:
            yield joined('"["', "w", f'{miss} (w "," w {miss})*', "w", '"]"', uses=[miss])
        if hit and (high is None or high >= max(low, 1)):
            before = f'({miss} w "," w)*' if miss else ""
            after = f'(w "," w {miss})*' if miss else ""
            more = f'(w "," w {before} {hit}){{{max(low, 1) - 1},{"" if high is None else high - 1}}}'
            yield joined('"["', "w", before, hit, more, after, "w", '"]"', uses=[hit, *([miss] if miss else [])])

    # -- objects

    def _object(self, nodes: list[Node]) -> Iterator[Alternative]:
        try:
            named, rest = self.members(nodes)
        except _NoValueError:
            return
        required = sum(must for _, _, must in named)
        least = max([0, *(node["minProperties"] for node in nodes if "minProperties" in node)])
        least = 0 if least <= required else least
        most = min([node["maxProperties"] for node in nodes if "maxProperties" in node], default=None)
        if least > 1 and rest:
            raise Refused(f"{nodes[0].path}/minProperties", "more than 1 cannot be held where names are free")
        if (first := self._chain(named, rest, least, most)) is not None:
            yield joined('"{"', "w", first)

    def members(
        self, nodes: list[Node], value_of: Callable[[list[Node]], Any] | None = None
    ) -> tuple[list[tuple[str, Any, bool]], list[Alternative]]:
        """The properties that are named: name, value and whether it is required; and a member of any other name."""
        value_of = value_of or self.value
        order = dict.fromkeys(name for node in nodes for name in node.get("properties", ()))
        required = {name for node in nodes for name in node.get("required", ())}
        patterns = {text: _pattern(node, text) for node in nodes for text in node.get("patternProperties", ())}
        if len(patterns) > MAX_PATTERNS:
            raise Refused(f"{nodes[0].path}/patternProperties", f"it may have {MAX_PATTERNS} patterns")
        allowed = scalar(self.document, [node["propertyNames"] for node in nodes if "propertyNames" in node], "string")
        order.update(dict.fromkeys(sorted(required)))
        values: dict[str, Any] = {}
        for name in sorted(order, key=lambda name: (name not in required, not _is_fixed(nodes, name))):
            found = {text for text, language in patterns.items() if matches(language, name)}
            fits = matches(allowed, name)
            values[name] = value_of(list(_under(nodes, name, found))) if fits else None
            if values[name] is None and name in required:
                raise _NoValueError
        named = [
            (name, values[name], name in required) for name in order if values[name] is not None or name in required
        ]
        return named, list(self._rest(nodes, patterns, [allowed, *(without(literal(name)) for name in order)]))

    def _rest(self, nodes: list[Node], patterns: dict[str, Language], names: list[Language]) -> Iterator[Alternative]:
        for chosen in product((True, False), repeat=len(patterns)):
            found = {text for text, is_chosen in zip(patterns, chosen, strict=True) if is_chosen}
            held = [language if text in found else without(language) for text, language in patterns.items()]
            key = both(*names, *held)
            if is_empty(key) or (value := self.value(list(_under(nodes, None, found)))) is None:
                continue
            for text, uses in self.scalar("string", key):
                yield f'{text} w ":" w {value}', uses | {"w", value}

    def _chain(self, named: Any, rest: list[Alternative], least: int, most: int | None) -> str | None:
        """The rule of what follows a brace: the named in their order, then others."""
        top = max(1, least, most or 0)
        if top * len(named) > MAX_COUNTED:
            raise Refused("#", f"properties, times how many are counted, may be {MAX_COUNTED}")
        base = f"o{len(self._rules)}"
        member = f"{base}m"
        self._rules[member] = rest
        following: list[str | None] = []
        for count in range(top + 1):
            left = None if most is None else most - count
            following.append(
                self.rule(_tail(member if rest else "", count, least, left), f"{base}_{len(named)}_{count}")
            )
        for index, (name, value, must) in reversed(list(enumerate(named))):
            states: list[str | None] = []
            for count in range(top + 1):
                found: list[Alternative] = []
                after = following[min(count + 1, top)] if most is None or count < most else None
                if value and after:
                    comma = ["w", '","', "w"] if count else []
                    found.append(joined(*comma, quoted(text_of(name)), "w", '":"', "w", value, after))
                if not must and (skipped := following[count]):
                    found.append(joined(skipped))
                states.append(self.rule(found, f"{base}_{index}_{count}"))
            following = states
        return following[0]


class _NoValueError(Exception):
    """A required property can have no value."""


def _tail(member: str, count: int, least: int, most: int | None) -> Iterator[Alternative]:
    """The end of an object that has `count` members and may get `most` more, of names that are free."""
    if count >= least and (most is None or most >= 0):
        yield joined(*(["w"] if count else []), '"}"')
    if member and least - count <= 1 and (most is None or most > 0):
        comma = ["w", '","', "w"] if count else []
        more = f'(w "," w {member}){{0,{"" if most is None else most - 1}}}'
        yield joined(*comma, member, more, "w", '"}"', uses=[member])


def _between(items: Sequence[str]) -> list[str]:
    return [part for item in items for part in ("w", '","', "w", item)][3:]


def _at(node: Node, index: int) -> Iterator[Node]:
    if index < len(heads := node.get("prefixItems", ())):
        yield heads[index]
    elif "items" in node:
        yield node["items"]


def _under(nodes: list[Node], name: str | None, patterns: set[str]) -> Iterator[Node]:
    """What holds for the property of this name, which these patterns match."""
    for node in nodes:
        found = [node["properties"][name]] if name in node.get("properties", ()) else []
        found += [child for text, child in node.get("patternProperties", {}).items() if text in patterns]
        yield from found or ([node["additionalProperties"]] if "additionalProperties" in node else [])


def _pattern(node: Node, text: str) -> Language:
    try:
        return pattern(text)
    except ValueError as error:
        raise Refused(f"{node.path}/patternProperties", str(error)) from None


def _is_fixed(nodes: list[Node], name: str) -> bool:
    """Whether few values can be meant: it tells early whether there are any."""
    return any({"const", "enum"} & node.get("properties", {}).get(name, {}).keys() for node in nodes)
