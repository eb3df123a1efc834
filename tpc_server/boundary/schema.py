"""Declared message types, and what a value that breaks one is told. Owner: any thread.

Types are written as short texts and compiled once at import into nested tuples of constants:

    int  float  bool  str  bytes  null  any
    [T] array of T          {T} object with string keys and values T
    'a'/'b' one of these strings          @Name an untagged struct (array of its fields)
    A|B union; at most one array and one object type in it

`conforms` is the fast check of an unpacked value. `explain` reads the bytes themselves, typed and
in order, and returns the text of the first thing wrong, in the words msgspec uses for the same
bytes, because a client is told them (whatever library unpacked the message).
"""

from __future__ import annotations

from typing import Any, NamedTuple

__all__ = ["Field", "Node", "Struct", "compile_type", "conforms", "explain"]


class Field(NamedTuple):
    """One positional field. `default` is Ellipsis for a required one."""

    name: str
    type: str
    default: Any


class Struct(NamedTuple):
    """Fields in wire order, their compiled types, and how many must be there."""

    name: str
    tag: str | None
    fields: tuple[Field, ...]
    nodes: tuple[Node, ...]
    n_required: int


class Node(NamedTuple):
    """A type. `expected` is its text; the others say what each wire kind may hold."""

    expected: str
    scalars: tuple[type, ...]
    item: Node | None
    value: Node | None
    struct: str | None
    literals: tuple[str, ...]
    is_any: bool


_SCALARS = {"int": int, "bool": bool, "str": str, "bytes": bytes, "null": type(None)}
# The order in which a union's members are named.
_ORDER = ("any", "bool", "int", "float", "bytes", "str", "array", "object", "null")


def compile_type(text: str) -> Node:
    """Compile one type text. Raises ValueError on a text outside the language."""
    scalars: list[type] = []
    item: Node | None = None
    value: Node | None = None
    struct: str | None = None
    literals: tuple[str, ...] = ()
    kinds: list[str] = []
    for part in _split_union(text):
        if part == "any":
            kinds.append("any")
        elif part == "float":
            scalars += [float, int]
            kinds.append("float")
        elif part in _SCALARS:
            scalars.append(_SCALARS[part])
            kinds.append(part)
        elif part.startswith("[") and part.endswith("]"):
            item = compile_type(part[1:-1])
            kinds.append("array")
        elif part.startswith("{") and part.endswith("}"):
            value = compile_type(part[1:-1])
            kinds.append("object")
        elif part.startswith("@"):
            struct = part[1:]
            kinds.append("array")
        elif part.startswith("'"):
            literals = tuple(word.strip("'") for word in part.split("/"))
            kinds.append("str")
        else:
            raise ValueError(f"unknown type {part!r} in {text!r}")
    expected = " | ".join(sorted(kinds, key=_ORDER.index))
    return Node(expected, tuple(scalars), item, value, struct, literals, "any" in kinds)


def _split_union(text: str) -> list[str]:
    """Split at the bars that are in no bracket."""
    parts = [""]
    depth = 0
    for char in text:
        depth += (char in "[{") - (char in "]}")
        if char == "|" and depth == 0:
            parts.append("")
        else:
            parts[-1] += char
    return parts


def conforms(value: Any, node: Node, structs: dict[str, Struct]) -> bool:
    """The unpacked value is of the type. Types are exact: a bool is no int."""
    kind = type(value)
    if node.is_any or kind in node.scalars:
        return True
    if kind is str:
        return value in node.literals
    if kind is list:
        if node.item is not None:
            for entry in value:  # noqa: SIM110 - a generator is a nested function per call
                if not conforms(entry, node.item, structs):
                    return False
            return True
        return node.struct is not None and fields_conform(
            value, structs[node.struct], structs, start=0
        )
    if kind is dict and node.value is not None:
        for key, entry in value.items():
            if type(key) is not str or not conforms(entry, node.value, structs):
                return False
        return True
    return False


def fields_conform(
    values: list[Any], struct: Struct, structs: dict[str, Struct], start: int
) -> bool:
    """Positional fields from index `start` on; fields beyond the declared ones are ignored."""
    if len(values) - start < struct.n_required:
        return False
    for node, value in zip(struct.nodes, values[start:], strict=False):
        if type(value) not in node.scalars and not conforms(value, node, structs):
            return False
    return True


class _Problem(Exception):
    pass


def explain(data: bytes, tagged: dict[str, Struct], structs: dict[str, Struct]) -> str | None:
    """What is wrong with a tagged message, first thing first; None if nothing is.

    The path counts array positions, `$[8][4]`: the caller gives the leading one its field's name.
    """
    reader = _Reader(data, structs)
    try:
        reader.message(tagged)
    except _Problem as problem:
        return str(problem)
    except RecursionError:
        return "maximum recursion depth exceeded"
    return None


# Leading byte of every msgpack value that is not a fixint, fixstr, fixarray or fixmap:
# kind and width of its length or payload.
_HEADS = {
    0xC0: ("null", 0), 0xC2: ("bool", 0), 0xC3: ("bool", 0),
    0xC4: ("bytes", 1), 0xC5: ("bytes", 2), 0xC6: ("bytes", 4),
    0xC7: ("ext", 1), 0xC8: ("ext", 2), 0xC9: ("ext", 4),
    0xCA: ("float", 4), 0xCB: ("float", 8),
    0xCC: ("int", 1), 0xCD: ("int", 2), 0xCE: ("int", 4), 0xCF: ("int", 8),
    0xD0: ("int", 1), 0xD1: ("int", 2), 0xD2: ("int", 4), 0xD3: ("int", 8),
    0xD4: ("ext", 0), 0xD5: ("ext", 0), 0xD6: ("ext", 0), 0xD7: ("ext", 0), 0xD8: ("ext", 0),
    0xD9: ("str", 1), 0xDA: ("str", 2), 0xDB: ("str", 4),
    0xDC: ("array", 2), 0xDD: ("array", 4), 0xDE: ("object", 2), 0xDF: ("object", 4),
}  # fmt: skip
_FIXEXT = {0xD4: 1, 0xD5: 2, 0xD6: 4, 0xD7: 8, 0xD8: 16}
_KIND_OF = {int: "int", float: "float", bool: "bool", str: "str", bytes: "bytes"}


# Bits of the leading byte that hold the size of a short value.
_SHORT = {"object": 0x0F, "array": 0x0F, "str": 0x1F}


def _kind(lead: int) -> str:
    """What kind of value a leading byte (not 0xC1) begins."""
    if lead <= 0x7F or lead >= 0xE0:
        return "int"
    if lead <= 0x8F:
        return "object"
    if lead <= 0x9F:
        return "array"
    return "str" if lead <= 0xBF else _HEADS[lead][0]


class _Reader:
    """A typed msgpack reader, slow and exact; it runs on messages that were already refused."""

    def __init__(self, data: bytes, structs: dict[str, Struct]) -> None:
        self.data = data
        self.at = 0
        self.structs = structs

    def message(self, tagged: dict[str, Struct]) -> None:
        kind, size = self.head()
        if kind != "array":
            self.wrong("array", kind, size, "")
        if size == 0:
            raise _Problem("Expected `array` of at least length 1, got 0")
        lead = self.data[self.at : self.at + 1]
        if lead and not (0xA0 <= lead[0] <= 0xBF or lead[0] in (0xD9, 0xDA, 0xDB)):
            # The tag is judged by its first byte alone, and here null has its own name.
            kind = "unknown" if lead == b"\xc1" else _kind(lead[0])
            raise _Problem(f"Expected `str`, got `{kind}` - at `$[0]`")
        _, length = self.head()
        tag = self.text(length)
        struct = tagged.get(tag)
        if struct is None:
            raise _Problem(f"Invalid value '{tag}' - at `$[0]`")
        self.fields(struct, size, 1, "$")
        if self.at != len(self.data):
            raise _Problem(f"MessagePack data is malformed: trailing characters (byte {self.at})")

    def fields(self, struct: Struct, size: int, start: int, path: str) -> None:
        if size < struct.n_required + start:
            where = "" if path == "$" else f" - at `{path}`"
            raise _Problem(
                f"Expected `array` of at least length {struct.n_required + start},"
                f" got {size}{where}"
            )
        for k in range(start, size):
            if k - start < len(struct.nodes):
                self.typed(struct.nodes[k - start], f"{path}[{k}]")
            else:
                self.skip()

    def typed(self, node: Node, path: str) -> None:
        if node.is_any:
            self.skip(read=True)
            return
        kind, size = self.head()
        if kind == "str":
            if str not in node.scalars and not node.literals:
                self.wrong(node.expected, kind, size, path)
            text = self.text(size)
            if node.literals and text not in node.literals:
                raise _Problem(f"Invalid enum value {text!r} - at `{path}`")
        elif kind == "array":
            if node.item is not None:
                for k in range(size):
                    self.typed(node.item, f"{path}[{k}]")
            elif node.struct is not None:
                self.fields(self.structs[node.struct], size, 0, path)
            else:
                self.wrong(node.expected, kind, size, path)
        elif kind == "object":
            if node.value is None:
                self.wrong(node.expected, kind, size, path)
            else:
                for _ in range(size):
                    self.key(path)
                    self.typed(node.value, f"{path}[...]")
        else:
            self.scalar(node, kind, size, path)

    def scalar(self, node: Node, kind: str, size: int, path: str) -> None:
        for scalar in node.scalars:
            if kind == _KIND_OF.get(scalar, "null"):
                self.take(size)
                return
        self.wrong(node.expected, kind, size, path)

    def key(self, path: str) -> None:
        kind, size = self.head()
        if kind != "str":
            if kind != "array" and kind != "object":
                self.take(size)
            shown = "None" if kind == "null" else kind
            raise _Problem(f"Expected `str`, got `{shown}` - at `key` in `{path}`")
        self.text(size)

    def wrong(self, expected: str, kind: str, size: int, path: str) -> None:
        if kind != "array" and kind != "object":
            self.take(size)  # a value that is not whole is truncated before it is wrong
        shown = "None" if kind == "null" else kind
        where = f" - at `{path}`" if path else ""
        raise _Problem(f"Expected `{expected}`, got `{shown}`{where}")

    def head(self) -> tuple[str, int]:
        """(kind, size) of the next value: elements, pairs or payload bytes still to come."""
        lead = self.take(1)[0]
        if lead == 0xC1:
            raise _Problem(
                "MessagePack data is malformed:"
                f" invalid opcode '\\x{lead:02x}' (byte {self.at - 1})"
            )
        kind = _kind(lead)
        if lead <= 0xBF or lead >= 0xE0:
            return kind, _SHORT.get(kind, 0) & lead
        width = _HEADS[lead][1]
        if kind in ("int", "float", "null", "bool"):
            return kind, width
        if lead in _FIXEXT:
            return kind, _FIXEXT[lead] + 1
        size = int.from_bytes(self.take(width), "big")
        return kind, size + 1 if kind == "ext" else size

    def text(self, size: int) -> str:
        raw = self.take(size)
        try:
            return str(raw, "utf-8")
        except UnicodeDecodeError:
            raise _Problem("Invalid UTF-8 encoded string") from None

    def take(self, size: int) -> bytes:
        end = self.at + size
        if end > len(self.data):
            raise _Problem("Input data was truncated")
        raw = self.data[self.at : end]
        self.at = end
        return raw

    def skip(self, read: bool = False) -> None:
        """Step over one value of any type; with `read` its strings must be valid."""
        kind, size = self.head()
        if kind == "array" or kind == "object":
            for _ in range(size if kind == "array" else 2 * size):
                self.skip(read)
        elif read and kind == "str":
            self.text(size)
        else:
            self.take(size)
