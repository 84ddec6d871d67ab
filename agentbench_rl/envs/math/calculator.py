"""A calculator that is safe to hand to an agent: exact fractions, + - * / // % **, parentheses; no names, no calls.

The text is parsed by `ast` and evaluated by this module alone; nothing is ever executed.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable
from fractions import Fraction

MAX_CHARACTERS = 200
#: Of the numerator and of the denominator of every result on the way.
MAX_BITS = 512
#: A decimal is written out up to so many digits behind the point; other results are fractions.
MAX_DECIMALS = 12
_ALPHABET = re.compile(r"[0-9+\-*/%(). ]+", re.ASCII)
_NUMBER = re.compile(r"[0-9]+(\.[0-9]*)?|\.[0-9]+", re.ASCII)

_OPERATORS: dict[type[ast.operator], Callable[[Fraction, Fraction], Fraction]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: lambda a, b: Fraction(a // b),
    ast.Mod: operator.mod,
}
_SYMBOLS: dict[type[ast.operator], str] = {
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.Div: "/",
    ast.FloorDiv: "//",
    ast.Mod: "%",
    ast.Pow: "**",
}


class MalformedExpressionError(Exception):
    """The text is no expression of the calculator's grammar."""


class CalculatorError(Exception):
    """The expression has no value here: a division by zero, or a number that is too large."""


def evaluate(expression: str) -> Fraction:
    """The exact value; raises MalformedExpressionError or CalculatorError."""
    return _value(parse(expression), [])


def steps(expression: str) -> list[str]:
    """One operation each, in the order in which they are done, with the values of what was done before.

    `4 * 3 - 2` gives `4 * 3`, `12 - 2`. Raises MalformedExpressionError or CalculatorError.
    """
    done: list[str] = []
    _value(parse(expression), done)
    return done


def parse(expression: str) -> ast.expr:
    """The syntax tree of an expression of the grammar; raises MalformedExpressionError."""
    if len(expression) > MAX_CHARACTERS:
        raise MalformedExpressionError(f"longer than {MAX_CHARACTERS} characters")
    if not _ALPHABET.fullmatch(expression):
        raise MalformedExpressionError("only numbers, + - * / // % ** and parentheses are known")
    try:
        return ast.parse(expression.strip(), mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        raise MalformedExpressionError("not an expression") from None


def has_operation(expression: str) -> bool:
    """Whether a well-formed expression computes anything, rather than repeat a number."""
    return any(isinstance(node, ast.BinOp) for node in ast.walk(parse(expression)))


def display(value: Fraction) -> str:
    """Integers and terminating decimals of few digits as such, anything else as a fraction `a/b`."""
    scaled = value * 10**MAX_DECIMALS
    if value.denominator == 1 or scaled.denominator != 1:
        return str(value)
    whole, decimals = divmod(abs(scaled.numerator), 10**MAX_DECIMALS)
    sign = "-" if value < 0 else ""
    return f"{sign}{whole}." + str(decimals).zfill(MAX_DECIMALS).rstrip("0")


def _value(node: ast.expr, done: list[str]) -> Fraction:
    match node:
        case ast.Constant(value=int() | float() as number):
            return _constant(number)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value(operand, done)
        case ast.UnaryOp(op=ast.UAdd(), operand=operand):
            return _value(operand, done)
        case ast.BinOp(left=left, op=sign, right=right) if type(sign) in _SYMBOLS:
            a, b = _value(left, done), _value(right, done)
            done.append(f"{_operand(a)} {_SYMBOLS[type(sign)]} {_operand(b)}")
            return _apply(sign, a, b)
        case _:
            raise MalformedExpressionError("only numbers, + - * / // % ** and parentheses are known")


def _constant(number: int | float) -> Fraction:
    try:
        return _bounded(Fraction(str(number)))
    except (ValueError, OverflowError):
        raise CalculatorError("a number is too large") from None


def _apply(sign: ast.operator, a: Fraction, b: Fraction) -> Fraction:
    try:
        return _bounded(_power(a, b) if isinstance(sign, ast.Pow) else _OPERATORS[type(sign)](a, b))
    except ZeroDivisionError:
        raise CalculatorError("division by zero") from None


def _power(base: Fraction, exponent: Fraction) -> Fraction:
    if exponent.denominator != 1:
        raise CalculatorError("an exponent must be a whole number")
    bits = max(base.numerator.bit_length(), base.denominator.bit_length())
    if abs(exponent) > MAX_BITS or bits * abs(exponent) > 2 * MAX_BITS:
        raise CalculatorError("a number is too large")
    return Fraction(base ** int(exponent))


def _bounded(value: Fraction) -> Fraction:
    if max(value.numerator.bit_length(), value.denominator.bit_length()) > MAX_BITS:
        raise CalculatorError("a number is too large")
    return value


def _operand(value: Fraction) -> str:
    """A value as part of an expression: what is no plain number stands in parentheses."""
    text = display(value)
    return text if _NUMBER.fullmatch(text) else f"({text})"
