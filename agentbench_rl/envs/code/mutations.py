"""Faults as small changes of a program's syntax tree, written back as changes of its text.

A mutation names the function it lies in and replaces one span of the source; what stands around it, comments and
layout included, stays as it is.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

_COMPARISONS: dict[type[ast.cmpop], str] = {
    ast.Lt: "<=",
    ast.LtE: "<",
    ast.Gt: ">=",
    ast.GtE: ">",
    ast.Eq: "!=",
    ast.NotEq: "==",
    ast.In: "not in",
    ast.NotIn: "in",
    ast.Is: "is not",
    ast.IsNot: "is",
}
_OPERATORS: dict[type[ast.operator], str] = {
    ast.Add: "-",
    ast.Sub: "+",
    ast.Mult: "+",
    ast.Div: "//",
    ast.FloorDiv: "%",
    ast.Mod: "//",
}
_FUNCTIONS = {"min": "max", "max": "min", "any": "all", "all": "any", "upper": "lower", "lower": "upper"}
_FUNCTIONS |= {"startswith": "endswith", "endswith": "startswith", "isalnum": "isalpha", "sorted": "list"}
_Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class Mutation:
    """Replace `source[start:end]` by `new`; `function` is the qualified name of the function around it."""

    kind: str
    function: str
    start: int
    end: int
    new: str

    def apply(self, source: str) -> str:
        """The source with the fault."""
        return source[: self.start] + self.new + source[self.end :]


def mutations(source: str) -> list[Mutation]:
    """All mutations of the functions in a source text, in the order of the text; a few do not parse."""
    tree = ast.parse(source)
    found: dict[str, Mutation] = {}
    text = _Text(source)
    for name, function in _functions(tree):
        for kind, node, new in _changes(function, text):
            start, end = text.span(node)
            mutation = Mutation(kind, name, start, end, new)
            changed = mutation.apply(source)
            if new != source[start:end] and changed not in found:
                found[changed] = mutation
    return sorted(found.values(), key=lambda mutation: (mutation.start, mutation.end, mutation.kind, mutation.new))


class _Text:
    """Source text by node; columns of syntax trees count bytes."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._starts = [0]
        self._lines = source.splitlines(keepends=True)
        for line in self._lines:
            self._starts.append(self._starts[-1] + len(line))

    def span(self, node: ast.AST) -> tuple[int, int]:
        first, column, last, end = (getattr(node, a) for a in ("lineno", "col_offset", "end_lineno", "end_col_offset"))
        return self._offset(first, column), self._offset(last, end)

    def of(self, node: ast.AST) -> str:
        start, end = self.span(node)
        return self._source[start:end]

    def _offset(self, line: int, column: int) -> int:
        encoded = self._lines[line - 1].encode()
        return self._starts[line - 1] + len(encoded[:column].decode())


def _functions(tree: ast.Module) -> Iterator[tuple[str, _Function]]:
    """(qualified name, node) of functions and methods; one inside another function belongs to that one."""

    def visit(body: list[ast.stmt], prefix: str) -> Iterator[tuple[str, _Function]]:
        for node in body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield prefix + node.name, node
            elif isinstance(node, ast.ClassDef):
                yield from visit(node.body, f"{prefix}{node.name}.")

    return visit(tree.body, "")


def _changes(function: _Function, text: _Text) -> Iterator[tuple[str, ast.AST, str]]:
    """(kind, node to replace, new text) of everything that can be changed in a function."""
    arguments = function.args
    for default in [*arguments.defaults, *(d for d in arguments.kw_defaults if d is not None)]:
        for new in _other_constants(default, text):
            yield "wrong_default", default, new
    names = _local_names(function)
    for statement in function.body:
        for node in ast.walk(statement):
            yield from _expression_changes(node, text, names)
            yield from _statement_changes(node, text)


def _expression_changes(node: ast.AST, text: _Text, names: list[str]) -> Iterator[tuple[str, ast.AST, str]]:
    match node:
        case ast.Compare(left=left, ops=[op], comparators=[right]):
            yield "comparison", node, f"{text.of(left)} {_COMPARISONS[type(op)]} {text.of(right)}"
        case ast.BinOp(left=left, op=operator, right=right) if type(operator) in _OPERATORS:
            yield "operator", node, f"{text.of(left)} {_OPERATORS[type(operator)]} {text.of(right)}"
        case ast.BoolOp(op=op, values=values):
            other = " or " if isinstance(op, ast.And) else " and "
            yield "boolean", node, other.join(text.of(value) for value in values)
            same = " and " if isinstance(op, ast.And) else " or "
            for left_out in values:
                rest = same.join(text.of(value) for value in values if value is not left_out)
                yield "dropped_condition", node, rest
        case ast.UnaryOp(op=ast.Not() | ast.USub(), operand=operand):
            yield "negated_condition" if isinstance(node.op, ast.Not) else "operator", node, text.of(operand)
        case ast.Call(func=called, args=arguments, keywords=[]):
            if len(arguments) >= 2 and not any(isinstance(argument, ast.Starred) for argument in arguments):
                shown = [text.of(argument) for argument in arguments]
                shown[0], shown[1] = shown[1], shown[0]
                yield "swapped_arguments", node, f"{text.of(called)}({', '.join(shown)})"
            yield from _other_functions(node, text)
        case ast.Name(id=name, ctx=ast.Load()) if name in names:
            for other in names:
                yield "wrong_variable", node, other
        case ast.Slice(lower=lower, upper=upper, step=None) if lower is not None and upper is not None:
            yield "slice", node, f"{text.of(lower)}:"
            yield "slice", node, f":{text.of(upper)}"
        case ast.Constant():
            kind = "off_by_one" if type(node.value) is int else "constant"
            for new in _other_constants(node, text):
                yield kind, node, new


def _statement_changes(node: ast.AST, text: _Text) -> Iterator[tuple[str, ast.AST, str]]:
    match node:
        case ast.If(test=test) | ast.While(test=test) | ast.IfExp(test=test) if not isinstance(test, ast.UnaryOp):
            yield "negated_condition", test, f"not ({text.of(test)})"
    match node:
        case ast.If(orelse=[]):
            yield "dropped_branch", node.test, "False"
        case ast.Return(value=value) if value is not None and not isinstance(value, ast.Constant):
            yield "dropped_return", node, text.of(value)
        case ast.AugAssign(target=target, op=operator, value=value) if type(operator) in _OPERATORS:
            yield "operator", node, f"{text.of(target)} {_OPERATORS[type(operator)]}= {text.of(value)}"
            yield "dropped_statement", node, "pass"
        case ast.Expr(value=ast.Call()):
            yield "dropped_statement", node, "pass"
        case ast.Break():
            yield "dropped_statement", node, "pass"
        case ast.Continue():
            yield "dropped_statement", node, "pass"


def _other_functions(node: ast.Call, text: _Text) -> Iterator[tuple[str, ast.AST, str]]:
    match node.func:
        case ast.Name(id=name) if name in _FUNCTIONS:
            yield "wrong_function", node.func, _FUNCTIONS[name]
        case ast.Attribute(value=value, attr=name) if name in _FUNCTIONS:
            yield "wrong_function", node.func, f"{text.of(value)}.{_FUNCTIONS[name]}"


def _other_constants(node: ast.expr, text: _Text) -> Iterator[str]:
    if not isinstance(node, ast.Constant):
        return
    value = node.value
    if isinstance(value, bool):
        yield str(not value)
    elif isinstance(value, int):
        yield str(value + 1)
        if value > 0:
            yield str(value - 1)
    elif isinstance(value, str) and text.of(node)[:1] in "'\"":
        yield '""' if value else '" "'


def _local_names(function: _Function) -> list[str]:
    """Parameters and assigned names, in alphabetical order."""
    arguments = function.args
    names = {argument.arg for argument in [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]}
    names |= {n.id for n in ast.walk(function) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    return sorted(names - {"self", "cls"})


def parses(source: str) -> bool:
    """Whether a text is a program at all."""
    try:
        ast.parse(source)
    except SyntaxError:
        return False
    return True


def function_around(source: str, position: int) -> str:
    """Name of the function or method that a position of a source text lies in; empty outside of all."""
    text = _Text(source)
    for name, function in _functions(ast.parse(source)):
        start, end = text.span(function)
        if start <= position < end:
            return name.rpartition(".")[2]
    return ""
