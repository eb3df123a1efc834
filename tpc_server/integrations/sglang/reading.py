"""How facts are read from the SGLang that is installed. Owner: its processes, at start.

Nothing here wants a module that SGLang does not import itself. None stands for what is not
there.
"""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from importlib import import_module
from typing import Any


def find(path: str) -> Any:
    module, _, names = path.partition(":")
    try:
        found: Any = import_module(module)
        for name in names.split("."):
            found = inspect.getattr_static(found, name)
    except (ImportError, AttributeError):
        return None
    return getattr(found, "__func__", found)


def parameters(path: str) -> list[str] | None:
    found = find(path)
    return None if found is None else list(inspect.signature(found).parameters)


def parsed(found: Any) -> ast.AST | None:
    try:
        return ast.parse(textwrap.dedent(inspect.getsource(found)))
    except (OSError, TypeError):
        return None


def keywords(path: str, called: str) -> list[str] | None:
    """The keywords of the calls of `called` in a function."""
    found = find(path)
    tree = None if found is None else parsed(found)
    if tree is None:
        return None
    return sorted(
        {
            keyword.arg or "**"
            for node in ast.walk(tree)
            if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] == called
            for keyword in node.keywords
        }
    )


def field_names(found: Any) -> list[str]:
    if found is None:
        return []
    names: Any = getattr(found, "__struct_fields__", None)
    return list(names or getattr(found, "__dataclass_fields__", ()))


def struct(path: str) -> list[list[Any]] | None:
    """Name, type and default of each field, in order; first the tag."""
    found = find(path)
    if found is None:
        return None
    import msgspec
    from msgspec import inspect as kinds

    described: Any = kinds.type_info(found)
    rows: list[list[Any]] = [["(tag)", getattr(described, "tag", None), described.array_like]]
    for field in described.fields:
        if field.required:
            default = "required"
        elif field.default_factory is not msgspec.NODEFAULT:
            default = f"{field.default_factory.__name__}()"
        else:
            default = repr(field.default)
        rows.append([field.name, type_name(field.type, kinds), default])
    return rows


def type_name(kind: Any, kinds: Any) -> str:
    """A type in words that no Python version changes."""
    name = type(kind).__name__.removesuffix("Type").lower()
    if isinstance(kind, kinds.UnionType):
        return "|".join(sorted(type_name(k, kinds) for k in kind.types))
    if isinstance(kind, kinds.DictType):
        return f"{{{type_name(kind.key_type, kinds)}: {type_name(kind.value_type, kinds)}}}"
    if isinstance(kind, kinds.LiteralType):
        return "/".join(map(str, kind.values))
    if hasattr(kind, "item_type"):
        return f"{name}[{type_name(kind.item_type, kinds)}]"
    if hasattr(kind, "item_types"):
        return f"{name}[{', '.join(type_name(k, kinds) for k in kind.item_types)}]"
    if hasattr(kind, "cls"):
        return str(kind.cls.__name__)
    return name


def module(name: str) -> Any:
    """A module of SGLang's."""
    try:
        return import_module(name)
    except ImportError:
        return None


def module_text(name: str) -> str:
    """The source of a module."""
    try:
        return inspect.getsource(module(name))
    except (OSError, TypeError):
        return ""


def block(text: str, name: str) -> ast.AST | None:
    """A function or class of a module's text; the first of that name. The whole of a large module
    would take ten times as long to parse."""
    begin = re.search(rf"^( *)(?:async )?(?:def|class) {name}\b", text, re.M)
    if begin is None:
        return None
    indent = len(begin[1])
    end = re.compile(rf"^ {{0,{indent}}}[^\s)]", re.M).search(text, begin.end())
    found = text[begin.start() : end.start() if end else len(text)]
    try:
        return ast.parse(textwrap.dedent(found))
    except SyntaxError:
        return None


def strings_of(tree: ast.AST | None, variable: str) -> list[str] | None:
    """The texts that a function puts into a variable: keys of a dict (those that are set later,
    too), or entries of a list."""
    if tree is None:
        return None
    found: list[str] = []
    for node in ast.walk(tree):
        if not isinstance(node, ast.Assign) or len(node.targets) != 1:
            continue
        (target,) = node.targets
        parts: list[Any] = []
        if isinstance(target, ast.Name) and target.id == variable:
            if isinstance(node.value, ast.Dict):
                parts = node.value.keys
            elif isinstance(node.value, ast.List):
                parts = node.value.elts
        elif isinstance(target, ast.Subscript) and ast.unparse(target.value) == variable:
            parts = [target.slice]
        found += [p.value for p in parts if isinstance(p, ast.Constant) and type(p.value) is str]
    return sorted(found)


def attributes_of(tree: ast.AST | None, owner: str) -> list[str] | None:
    """What is asked of a name in a function: `ext.A.B` is A.B."""
    if tree is None:
        return None
    found = set()
    for node in ast.walk(tree):
        text = ast.unparse(node) if isinstance(node, ast.Attribute) else ""
        if text.startswith(f"{owner}."):
            found.add(text.removeprefix(f"{owner}."))
    return sorted(found)


def entries_asked(tree: ast.AST | None, owner: str) -> list[str] | None:
    """Which names are looked up in a dict by `get`."""
    if tree is None:
        return None
    return sorted(
        node.args[0].value
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and ast.unparse(node.func) == f"{owner}.get"
        and isinstance(node.args[0], ast.Constant)
        and isinstance(node.args[0].value, str)
    )
