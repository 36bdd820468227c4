"""What the code of each kind of process can reach: read from the source, from the process's entry points on.

A name that reached code mentions is reached, and so is each method of a reached class whose name it mentions. That is
more than what runs, and never less: dependencies are passed to constructors, so nothing is reached by an annotation.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from functools import cache

from config.process import CHECKOUT

PACKAGES = ("app", "workers")

Name = tuple[str, str]
"""A module, and what it defines there: a function, a class, a method (`Class.method`) or a constant."""


class _Module:
    def __init__(self, name: str, tree: ast.Module) -> None:
        self.name = name
        self.defined: dict[str, list[ast.AST]] = {}
        """What a mention of each name mentions in turn."""
        self.methods: dict[str, dict[str, ast.AST]] = {}
        """Class -> its methods."""
        self.imported: dict[str, Name] = {}
        for each in ast.walk(tree):
            if isinstance(each, ast.ImportFrom) and each.module:
                self.imported |= {alias.asname or alias.name: (each.module, alias.name) for alias in each.names}
            elif isinstance(each, ast.Import):
                self.imported |= {alias.asname: (alias.name, "") for alias in each.names if alias.asname}
        for statement in tree.body:
            self._add(statement)

    def _add(self, statement: ast.stmt) -> None:
        match statement:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                self.defined.setdefault(statement.name, []).append(statement)
                for decorator in statement.decorator_list:  # a router reaches its routes
                    for name in ast.walk(decorator):
                        if isinstance(name, ast.Name):
                            self.defined.setdefault(name.id, []).append(ast.Name(statement.name))
            case ast.ClassDef():
                own = [each for each in statement.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)]
                self.methods[statement.name] = {each.name: each for each in own}
                rest = [each for each in statement.body if each not in own]
                self.defined[statement.name] = [*statement.bases, *statement.decorator_list, *rest]
            case ast.Assign() | ast.AnnAssign() | ast.AugAssign():
                targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
                for target in targets:
                    for name in ast.walk(target):
                        if isinstance(name, ast.Name) and statement.value is not None:
                            self.defined.setdefault(name.id, []).append(statement.value)


def _mentioned(node: ast.AST) -> Iterator[ast.Name | ast.Attribute]:
    """The names and attributes in the code of a definition, without its annotations."""
    waiting = [node]
    while waiting:
        each = waiting.pop()
        if isinstance(each, ast.Name | ast.Attribute):
            yield each
        for field, value in ast.iter_fields(each):
            if field not in ("annotation", "returns"):
                waiting += [
                    child for child in (value if isinstance(value, list) else [value]) if isinstance(child, ast.AST)
                ]


@cache
def _modules() -> Mapping[str, _Module]:
    found = {}
    for package in PACKAGES:
        for path in (CHECKOUT / package).rglob("*.py"):
            name = ".".join(path.relative_to(CHECKOUT).with_suffix("").parts).removesuffix(".__init__")
            found[name] = _Module(name, ast.parse(path.read_text(encoding="utf-8")))
    return found


class _Reach:
    def __init__(self) -> None:
        self.names: set[Name] = set()
        self._classes: set[Name] = set()
        self._attributes: set[str] = set()
        self._waiting: list[tuple[str, ast.AST]] = []

    def from_(self, *entries: str) -> frozenset[Name]:
        for entry in entries:
            module, _, name = entry.partition(":")
            for each in [name] if name else [*_modules()[module].defined]:
                self._name(module, each)
            for method in _modules()[module].methods.get(name, ()):
                self._method(module, name, method)
        while self._waiting:
            module, node = self._waiting.pop()
            for each in _mentioned(node):
                self._mention(_modules()[module], each)
        return frozenset(self.names)

    def _mention(self, module: _Module, node: ast.Name | ast.Attribute) -> None:
        if isinstance(node, ast.Name):
            self._name(module.name, node.id)
            return
        if isinstance(node.value, ast.Name) and node.value.id in module.imported:
            of, name = module.imported[node.value.id]
            if (whole := f"{of}.{name}".rstrip(".")) in _modules():
                self._name(whole, node.attr)
                return
        if node.attr not in self._attributes:
            self._attributes.add(node.attr)
            for of, class_ in self._classes:
                self._method(of, class_, node.attr)

    def _name(self, module: str, name: str) -> None:
        followed = set()
        while (module, name) not in followed and module in _modules() and name in _modules()[module].imported:
            followed.add((module, name))
            module, name = _modules()[module].imported[name]
        if module not in _modules() or (module, name) in self.names or name not in _modules()[module].defined:
            return
        self.names.add((module, name))
        self._waiting += [(module, node) for node in _modules()[module].defined[name]]
        if name in _modules()[module].methods:
            self._classes.add((module, name))
            for method in _modules()[module].methods[name]:
                if method.startswith("__") or method in self._attributes:
                    self._method(module, name, method)

    def _method(self, module: str, class_: str, method: str) -> None:
        node, name = _modules()[module].methods[class_].get(method), (module, f"{class_}.{method}")
        if node is not None and name not in self.names:
            self.names.add(name)
            self._waiting.append((module, node))


@cache
def reached(*entries: str) -> frozenset[Name]:
    """What is reached from modules (`app.main`), or from single definitions in them (`app.maintenance.fleet:Name`)."""
    return _Reach().from_(*entries)
