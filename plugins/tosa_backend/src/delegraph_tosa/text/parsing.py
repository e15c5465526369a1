"""Reads the text form of a graph (see the package)."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Iterator, Sequence
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


class Declaration(NamedTuple):
    """A declared value, ``%x: [1x4]fp32``: its type and its name as it is printed."""

    type: Type
    printed: str


def parse(text: str) -> Graph:
    """Return the graph of its text form.

    Raises FormatError, with the line, for a mistake or an elided constant.
    """
    return _Parser(list(_tokens(text))).program()


def _wrong(line: int, why: str) -> FormatError:
    return FormatError("format-invalid", f"TOSA text, line {line}: {why}")


def _tokens(text: str) -> Iterator[Token]:
    """Yield the tokens of ``text``, and then one of kind ``end``."""
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
    """A recursive descent parser. Its methods read what begins at the next token.

    A graph refers to control flow graphs that follow it, so the last graph is read
    first. ``values`` are those of the graph that is being read, by printed name.
    """

    def __init__(self, tokens: list[Token]) -> None:
        self.tokens = tokens
        self.position = 0
        self.graphs: dict[str, Graph] = {}
        self.values: dict[str, Value] = {}

    # -- tokens ------------------------------------------------------------------------

    @property
    def next(self) -> Token:
        """Return the next token."""
        return self.tokens[self.position]

    def wrong(self, why: str) -> FormatError:
        """Return an error at the last token."""
        return _wrong(self.tokens[max(self.position - 1, 0)].line, why)

    def take(self, kind: str, text: str | None = None) -> str:
        """Step over the next token and return its text.

        Raises FormatError unless it is of this kind, and has this text.
        """
        token = self.next
        if token.kind != kind or text not in (None, token.text):
            wanted = text or kind
            found = token.text or token.kind
            raise _wrong(token.line, f"expected {wanted}, found {found!r}")
        self.position += 1
        return token.text

    def accept(self, kind: str, text: str | None = None) -> bool:
        """Step over this token if it is the next one."""
        token = self.next
        if token.kind != kind or text not in (None, token.text):
            return False
        self.position += 1
        return True

    def comments(self) -> None:
        """Step over comments, which are not the source of an operator."""
        while self.accept("comment"):
            pass

    def listed(self, item: Callable[[], T], end: str) -> list[T]:
        """Return items separated by commas, up to and including the mark ``end``."""
        items: list[T] = []
        while not self.accept("mark", end):
            if items:
                self.take("mark", ",")
            items.append(item())
        return items

    def legal(self, make: Callable[[], T]) -> T:
        """Return ``make()``; its Illegal becomes an error at the last token."""
        try:
            return make()
        except Illegal as problem:
            raise self.wrong(str(problem)) from None

    # -- graphs ------------------------------------------------------------------------

    def program(self) -> Graph:
        """Return the first graph, after all others were read, the last one first."""
        starts: list[int] = []
        for position, token in enumerate(self.tokens):
            if token.kind == "word" and token.text == "graph":
                starts.append(position)
        before = self.tokens[: starts[0]] if starts else self.tokens
        if not starts or any(token.kind != "comment" for token in before):
            raise _wrong(1, "a graph begins with 'graph @name('")
        end = len(self.tokens) - 1
        for start in reversed(starts):
            self.position = start
            graph = self.graph()
            self.comments()
            if self.position != end:
                raise self.wrong("there is text after the graph")
            end = start
        return graph

    def graph(self) -> Graph:
        """Return the graph that begins at the next token."""
        self.take("word", "graph")
        name = self.unquoted(self.take("graph")[1:])
        if name in self.graphs:
            raise self.wrong(f"there are two graphs {name!r}")
        self.values = {}
        self.take("mark", "(")
        inputs = self.listed(self.input, ")")
        self.take("mark", "{")
        operators: list[Operator] = []
        while not self.accept("word", "return"):
            if not self.accept("comment"):
                self.statement(operators)
        outputs = self.listed(self.operand, "}")
        graph = Graph(inputs, outputs, operators, name)
        self.graphs[name] = graph
        return graph

    def statement(self, operators: list[Operator]) -> None:
        """Read a constant, or an operator, which is added to ``operators``."""
        declared: list[Declaration] = []
        if self.next.kind == "value":
            declared = self.listed(self.declaration, "=")
        if self.accept("word", "const"):
            self.constant(declared)
        else:
            operators.append(self.operator(declared))

    def input(self) -> Value:
        """Return an input of a graph."""
        declared = self.declaration()
        return self.define(Value(declared.type), declared.printed)

    # -- values ------------------------------------------------------------------------

    def declaration(self) -> Declaration:
        """Return a declared type and name. Unknown sizes are symbols of this name."""
        printed = self.take("value")
        self.take("mark", ":")
        type = self.declared_type().named(printed[1:])
        return Declaration(type, printed)

    def declared_type(self) -> Type:
        """Return a type such as ``[1x4]fp32``; ``?`` is an unknown size."""
        text = self.take("type")
        sizes, _, name = text[1:].partition("]")
        dtype = DType.__members__.get(name.upper())
        if dtype is None or dtype not in ARRAY_DTYPES:
            raise self.wrong(f"{name!r} is no element type")
        shape = [UNKNOWN if s == "?" else int(s) for s in sizes.split("x") if s]
        type = Type(tuple(shape), dtype)
        why = why_not_blocks(type)
        if why:
            raise self.wrong(why)
        return type

    def define(self, value: Value, printed: str) -> Value:
        """Bind the printed name; a number is no name of the value itself."""
        if printed in self.values:
            raise self.wrong(f"{printed} is defined twice")
        name = printed[1:]
        value.name = "" if name.isdigit() else self.unquoted(name)
        self.values[printed] = value
        return value

    def operand(self) -> Value:
        """Return the value of a printed name."""
        name = self.take("value")
        if name not in self.values:
            raise self.wrong(f"{name} is used before it is defined")
        return self.values[name]

    def constant(self, declared: list[Declaration]) -> None:
        """Define a constant from its elements."""
        if len(declared) != 1:
            raise self.wrong(f"a constant defines one value, not {len(declared)}")
        type, printed = declared[0]
        if type.is_dynamic:
            raise self.wrong(f"a constant must have fixed sizes, not {type}")
        self.define(Value(type, self.constant_elements(type)), printed)

    def constant_elements(self, type: Type) -> Constant:
        """Return the elements of a constant.

        A block-scaled constant has values, the word ``scales``, and scales.
        """
        if type.dtype not in BLOCK_SCALED:
            return Literal(self.elements(type))
        values_type, scales_type = stored_types(type)
        values = self.elements(values_type)
        self.take("word", "scales")
        scales = self.elements(scales_type)
        return Scaled(values, scales, type)

    def elements(self, type: Type) -> Array:
        """Return a list of numbers, ``splat`` of one, or ``base64`` of their bytes."""
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
        """Return a number, or 1 or 0 for ``true`` or ``false``."""
        if self.next.text in ("true", "false"):
            return int(self.take("word") == "true")
        return self.number()

    def number(self) -> float | int:
        """Return a number."""
        text = self.take("number")
        return self.legal(lambda: number_of(text))

    def string(self) -> str:
        """Return a string without its quotes."""
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

    def operator(self, declared: list[Declaration]) -> Operator:
        """Return an operator with the results ``declared``."""
        name = self.take("word")
        if name not in OPERATORS:
            raise self.wrong(f"{name!r} is no operator of TOSA")
        kind = OPERATORS[name]
        self.take("mark", "(")
        operands = self.listed(self.operand, ")")
        needed = len(kind.operands)
        # a list of operands may be empty
        fewest = needed - 1 if kind.variadic else needed
        if len(operands) < fewest or (len(operands) > needed and not kind.variadic):
            raise self.wrong(f"{name} has {len(operands)} operands, needs {needed}")
        attributes = self.attributes(kind)
        attributes |= self.implied(kind, [result.type for result in declared])
        missing = kind.attributes.keys() - attributes.keys()
        if missing:
            raise self.wrong(f"{name} has no {', '.join(sorted(missing))}")
        source = None
        if self.next.kind == "comment":
            source = self.take("comment").strip()
        operator = kind(operands, source, **attributes)
        self.results(operator, declared)
        return operator

    def results(self, operator: Operator, declared: list[Declaration]) -> None:
        """Define the results of an operator.

        Their inferred types get known sizes from the declared ones.
        """
        inferred = self.legal(operator.infer)
        if len(inferred) != len(declared):
            raise self.other_results(operator, inferred)
        outputs: list[Value] = []
        for own, (type, printed) in zip(inferred, declared, strict=True):
            agreed = own.reconciled(type)
            if agreed is None:
                raise self.other_results(operator, inferred)
            outputs.append(self.define(Value(agreed, producer=operator), printed))
        operator.outputs = tuple(outputs)

    def other_results(self, operator: Operator, types: Sequence[Type]) -> FormatError:
        """Return an error for declared results that are not those of ``operator``."""
        text = ", ".join(map(str, types)) or "nothing"
        return self.wrong(f"{operator.name} gives {text}")

    def implied(self, kind: type[Operator], types: list[Type]) -> dict[str, Any]:
        """Return the attributes that follow from the types of the results."""
        implied: dict[str, Any] = {}
        for name, form in kind.attributes.items():
            if form not in ("ResultDType", "ResultTypes"):
                continue
            if not types:
                raise self.wrong(f"{kind.__name__} has no result")
            implied[name] = types[0].dtype if form == "ResultDType" else tuple(types)
        return implied

    def attributes(self, kind: type[Operator]) -> dict[str, Any]:
        """Return the attributes in braces; there may be none."""
        attributes: dict[str, Any] = {}
        if not self.accept("mark", "{"):
            return attributes
        pairs = self.listed(lambda: self.attribute(kind), "}")
        attributes.update(pairs)
        if len(attributes) != len(pairs):
            raise self.wrong(f"{kind.__name__} has an attribute twice")
        return attributes

    def attribute(self, kind: type[Operator]) -> tuple[str, Any]:
        """Return the name and the value of an attribute."""
        name = self.take("word")
        if name not in kind.attributes:
            raise self.wrong(f"{kind.__name__} has no attribute {name!r}")
        self.take("mark", "=")
        return name, self.attribute_value(kind.attributes[name])

    def attribute_value(self, kind: str) -> Any:
        """Return the value of an attribute of this kind."""
        if kind in _ENUMERATIONS:
            return self.member(kind)
        if kind == "Graph":
            return self.body()
        if kind == "Ints":
            self.take("mark", "[")
            return tuple(self.listed(self.integer, "]"))
        if kind == "str":
            return self.string()
        if kind == "bytes":
            return self.decoded()
        if kind == "int":
            return self.integer()
        return self.number()

    def member(self, kind: str) -> Any:
        """Return a member of an enumeration."""
        word = self.take("word")
        try:
            return _ENUMERATIONS[kind](word)
        except KeyError:
            raise self.wrong(f"{word!r} is no {kind}") from None

    def body(self) -> Graph:
        """Return a control flow graph, which was read before."""
        name = self.unquoted(self.take("graph")[1:])
        if name not in self.graphs:
            raise self.wrong(f"there is no graph {name!r} below")
        return self.graphs[name]

    def integer(self) -> int:
        """Return a number without fraction."""
        number = self.number()
        if not isinstance(number, int):
            raise self.wrong(f"{number} is no integer")
        return number

    def decoded(self) -> bytes:
        """Return the bytes of a string of base64."""
        try:
            return base64.b64decode(self.string(), validate=True)
        except ValueError:
            raise self.wrong("this is not base64") from None
