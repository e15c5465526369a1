"""From the text form of a graph back to the graph (see ``ir.text``)."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeVar

from delegraph.errors import FormatError

from ..ir.graph import Array, Constant, Graph, Illegal, Literal, Operator, Scaled, Value
from ..ir.operators import OPERATORS
from ..ir.types import (
    ARRAY_DTYPES,
    BLOCK_SCALED,
    UNKNOWN,
    BlockSize,
    DType,
    NanMode,
    ResizeMode,
    RoundingMode,
    Type,
    stored_types,
    why_not_blocks,
)
from .literals import from_base64, from_numbers, from_splat, number_of

T = TypeVar("T")
_STRING = r'"(?:[^"\\\n]|\\.)*"'
_NAME = rf"(?:{_STRING}|[A-Za-z0-9_.$/\-]+)"
_SIZE = r"(?:[0-9]{1,10}|\?)"
_TOKEN = re.compile(
    rf"""
    (?P<space>[ \t\r]+|(?P<newline>\n))
  | //(?P<comment>[^\n]*)
  | (?P<value>%{_NAME})
  | (?P<graph>@{_NAME})
  | (?P<string>{_STRING})
  | (?P<type>\[(?:{_SIZE}(?:x{_SIZE})*)?\][a-z][a-z0-9_]*)
  | (?P<number>[+-]?(?:[0-9][0-9.]*(?:e[+-]?[0-9]+)?|inf|nan)(?![A-Za-z0-9_]))
  | (?P<word>[A-Za-z_][A-Za-z0-9_]*)
  | (?P<mark>\.\.\.|[\[\](){{}},:=])
    """,
    re.VERBOSE,
)
_ENUMERATIONS: dict[str, Callable[[str], Any]] = {
    "DType": lambda word: DType[word.upper()],
    "NanMode": lambda word: NanMode[word],
    "ResizeMode": lambda word: ResizeMode[word],
    "RoundingMode": lambda word: RoundingMode[word],
    "BlockSize": lambda word: BlockSize[word],
    "bool": lambda word: {"true": True, "false": False}[word],
}


class Token(NamedTuple):
    """A token: its kind (a group of the pattern), text and line from 1."""

    kind: str
    text: str
    line: int


def parse(text: str) -> Graph:
    """Return the graph of its text form.

    FormatError names the line; elided constants cannot be read back.
    """
    return _Parser(list(_tokens(text))).program()


def _wrong(line: int, why: str) -> FormatError:
    return FormatError("format-invalid", f"TOSA text, line {line}: {why}")


def _tokens(text: str) -> Iterator[Token]:
    position = 0
    line = 1
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise _wrong(line, f"cannot read {text[position : position + 20]!r}")
        kind = match.lastgroup or ""
        if match["newline"]:
            line += 1
        elif not match["space"]:
            yield Token(kind, match[kind], line)
        position = match.end()
    yield Token("end", "", line)


class _Parser:
    """Recursive descent over the tokens.

    Graphs may refer to graphs that follow, so bodies are bound at the end.
    """

    def __init__(self, tokens: list[Token]) -> None:
        self.tokens = tokens
        self.position = 0
        self.graphs: dict[str, Graph] = {}
        self.values: dict[str, Value] = {}

    # -- tokens ------------------------------------------------------------------------

    @property
    def next(self) -> Token:
        return self.tokens[self.position]

    def wrong(self, why: str) -> FormatError:
        """Return an error at the last token."""
        return _wrong(self.tokens[max(self.position - 1, 0)].line, why)

    def take(self, kind: str, text: str | None = None) -> str:
        token = self.next
        if token.kind != kind or text not in (None, token.text):
            raise _wrong(
                token.line,
                f"expected {text or kind}, found {token.text or token.kind!r}",
            )
        self.position += 1
        return token.text

    def accept(self, kind: str, text: str | None = None) -> bool:
        """Step over this token if it is the next one."""
        token = self.next
        found = token.kind == kind and text in (None, token.text)
        self.position += found
        return found

    def comments(self) -> None:
        """Step over remarks, which are no operator's source."""
        while self.accept("comment"):
            pass

    def listed(self, item: Callable[[], T], end: str) -> list[T]:
        """Items separated by commas up to the mark ``end``, which is taken too."""
        items: list[T] = []
        while not self.accept("mark", end):
            if items:
                self.take("mark", ",")
            items.append(item())
        return items

    def legal(self, make: Callable[[], T]) -> T:
        try:
            return make()
        except Illegal as problem:
            raise self.wrong(str(problem)) from None

    # -- graphs ------------------------------------------------------------------------

    def program(self) -> Graph:
        """Return all graphs, last to first: a graph follows those it refers to."""
        starts = [
            i
            for i, token in enumerate(self.tokens)
            if token == ("word", "graph", token.line)
        ]
        if not starts or any(
            token.kind != "comment" for token in self.tokens[: starts[0]]
        ):
            raise _wrong(1, "a graph begins with 'graph @name('")
        ends = [*starts[1:], len(self.tokens) - 1]
        graph = None
        for start, end in zip(reversed(starts), reversed(ends), strict=True):
            self.position = start
            graph = self.graph()
            self.comments()
            if self.position != end:
                raise self.wrong("there is text behind the graph")
        assert graph is not None
        return graph

    def graph(self) -> Graph:
        self.take("word", "graph")
        name = self.unquoted(self.take("graph")[1:])
        if name in self.graphs:
            raise self.wrong(f"there are two graphs {name!r}")
        self.values = {}
        self.take("mark", "(")
        inputs = self.listed(lambda: self.define(Value(*self.declaration())), ")")
        self.take("mark", "{")
        operators: list[Operator] = []
        while not self.accept("word", "return"):
            if not self.accept("comment"):
                self.statement(operators)
        outputs = self.listed(self.operand, "}")
        graph = self.graphs[name] = Graph(inputs, outputs, operators, name)
        return graph

    def statement(self, operators: list[Operator]) -> None:
        declared: list[tuple[Type, None, str]] = []
        if self.next.kind == "value":
            declared = self.listed(self.declaration, "=")
        if self.accept("word", "const"):
            self.constant(declared)
        else:
            operators.append(self.operator(declared))

    # -- values ------------------------------------------------------------------------

    def declaration(self) -> tuple[Type, None, str]:
        """Type, no constant and printed name: the arguments of ``Value``."""
        name = self.take("value")
        self.take("mark", ":")
        return self.declared_type().named(name[1:]), None, name

    def declared_type(self) -> Type:
        text = self.take("type")
        sizes, _, dtype = text[1:].partition("]")
        if (
            dtype.upper() not in DType.__members__
            or DType[dtype.upper()] not in ARRAY_DTYPES
        ):
            raise self.wrong(f"{dtype!r} is no element type")
        type = Type(
            tuple(UNKNOWN if s == "?" else int(s) for s in sizes.split("x") if s),
            DType[dtype.upper()],
        )
        if why := why_not_blocks(type):
            raise self.wrong(why)
        return type

    def define(self, value: Value) -> Value:
        """Bind the printed name; a number is no name of the value itself."""
        printed = value.name
        if printed in self.values:
            raise self.wrong(f"{printed} is defined twice")
        value.name = "" if printed[1:].isdigit() else self.unquoted(printed[1:])
        self.values[printed] = value
        return value

    def operand(self) -> Value:
        name = self.take("value")
        if name not in self.values:
            raise self.wrong(f"{name} is used before it is defined")
        return self.values[name]

    def constant(self, declared: list[tuple[Type, None, str]]) -> None:
        if len(declared) != 1:
            raise self.wrong("a constant has one name")
        type, _, name = declared[0]
        if type.is_dynamic:
            raise self.wrong("the sizes of a constant are known")
        self.define(Value(type, self.constant_elements(type), name))

    def constant_elements(self, type: Type) -> Constant:
        """Return ``[1.0, 2.0]``.

        Of a block-scaled constant the values, then ``scales`` and the scales.
        """
        if type.dtype not in BLOCK_SCALED:
            return Literal(self.elements(type))
        values_type, scales_type = stored_types(type)
        values = self.elements(values_type)
        self.take("word", "scales")
        return Scaled(values, self.elements(scales_type), type)

    def elements(self, type: Type) -> Array:
        if self.accept("mark", "..."):
            raise self.wrong(
                "the elements of this constant were left out when it was printed"
            )
        if self.accept("word", "splat"):
            number = self.element()
            return self.legal(lambda: from_splat(number, type))
        if self.accept("word", "base64"):
            text = self.string()
            return self.legal(lambda: from_base64(text, type))
        self.take("mark", "[")
        numbers = self.listed(self.element, "]")
        return self.legal(lambda: from_numbers(numbers, type))

    def element(self) -> float | int:
        """Return a number, or a truth value, which only elements of constants are."""
        if self.next.text in ("true", "false"):
            return int(self.take("word") == "true")
        return self.number()

    def number(self) -> float | int:
        text = self.take("number")
        return self.legal(lambda: number_of(text))

    def string(self) -> str:
        return self.unquoted(self.take("string"))

    def unquoted(self, text: str) -> str:
        """Return a name or a string without its quotes."""
        if not text.startswith('"'):
            return text
        try:
            unescaped = str(json.loads(text))
            unescaped.encode()
        except ValueError:
            raise self.wrong(f"{text} is no JSON string") from None
        return unescaped

    # -- operators ---------------------------------------------------------------------

    def operator(self, declared: list[tuple[Type, None, str]]) -> Operator:
        name = self.take("word")
        if name not in OPERATORS:
            raise self.wrong(f"{name!r} is no operator of TOSA")
        kind = OPERATORS[name]
        self.take("mark", "(")
        operands = self.listed(self.operand, ")")
        if (
            len(operands) < len(kind.operands) - 1
            if kind.variadic
            else len(operands) != len(kind.operands)
        ):
            raise self.wrong(
                f"{name} has {len(operands)} operands, needs {len(kind.operands)}"
            )
        attributes = self.attributes(kind) | self.implied(
            kind, [d[0] for d in declared]
        )
        if missing := kind.attributes.keys() - attributes.keys():
            raise self.wrong(f"{name} has no {', '.join(sorted(missing))}")
        source = self.take("comment").strip() if self.next.kind == "comment" else None
        operator = kind(operands, source, **attributes)
        self.results(operator, declared)
        return operator

    def results(
        self, operator: Operator, declared: list[tuple[Type, None, str]]
    ) -> None:
        inferred = self.legal(operator.infer)
        agreed = [i.reconciled(d[0]) for i, d in zip(inferred, declared, strict=False)]
        if len(inferred) != len(declared) or None in agreed:
            raise self.wrong(
                f"{operator.name} gives {', '.join(map(str, inferred)) or 'nothing'}"
            )
        named = [
            Value(type, name=d[2], producer=operator)
            for type, d in zip(agreed, declared, strict=True)
            if type
        ]
        operator.outputs = tuple(map(self.define, named))

    def implied(self, kind: type[Operator], types: list[Type]) -> dict[str, Any]:
        """Return attributes that follow from the result types."""
        wanted = {
            name: form
            for name, form in kind.attributes.items()
            if form in ("ResultDType", "ResultTypes")
        }
        if wanted and not types:
            raise self.wrong(f"{kind.__name__} has no result")
        return {
            name: types[0].dtype if form == "ResultDType" else tuple(types)
            for name, form in wanted.items()
        }

    def attributes(self, kind: type[Operator]) -> dict[str, Any]:
        pairs = (
            self.listed(lambda: self.attribute(kind), "}")
            if self.accept("mark", "{")
            else []
        )
        attributes = dict(pairs)
        if len(attributes) != len(pairs):
            raise self.wrong(f"{kind.__name__} has an attribute twice")
        return attributes

    def attribute(self, kind: type[Operator]) -> tuple[str, Any]:
        name = self.take("word")
        if name not in kind.attributes:
            raise self.wrong(f"{kind.__name__} has no attribute {name!r}")
        self.take("mark", "=")
        return name, self.attribute_value(kind.attributes[name])

    def attribute_value(self, kind: str) -> Any:
        if kind in _ENUMERATIONS:
            return self.member(kind)
        if kind == "Graph":
            return self.body()
        if kind == "Ints":
            self.take("mark", "[")
            return tuple(self.listed(self.integer, "]"))
        if kind in ("str", "bytes"):
            return self.string() if kind == "str" else self.decoded()
        return self.integer() if kind == "int" else self.number()

    def member(self, kind: str) -> Any:
        word = self.take("word")
        try:
            return _ENUMERATIONS[kind](word)
        except KeyError:
            raise self.wrong(f"{word!r} is no {kind}") from None

    def body(self) -> Graph:
        name = self.unquoted(self.take("graph")[1:])
        if name not in self.graphs:
            raise self.wrong(f"there is no graph {name!r} below")
        return self.graphs[name]

    def integer(self) -> int:
        number = self.number()
        if not isinstance(number, int):
            raise self.wrong(f"{number} is no integer")
        return number

    def decoded(self) -> bytes:
        try:
            return base64.b64decode(self.string(), validate=True)
        except ValueError:
            raise self.wrong("this is not base64") from None
