"""Literals to exact numbers, of any length and without Python's limit."""

from fractions import Fraction

# int() refuses more than 4300 digits by default and takes quadratic time.
_CHUNK = 2000
_MAX_EXPONENT = 5000


def big_int(digits: str) -> int:
  """Decimal digits of any number as an int, in less than quadratic time."""
  if len(digits) <= _CHUNK:
    return int(digits or "0")
  half = len(digits) // 2
  return big_int(digits[:-half]) * 10**half + big_int(digits[-half:])


def number(literal: str) -> tuple:
  """The node of a literal such as `12`, `0.50`, `.5` or `6.02e23`.

  Args:
    literal: Digits with at most one point and at most one exponent.

  Returns:
    A 'num' node, a 'dec' node which remembers its significant digits, or,
    where the exponent is large, an unevaluated product.
  """
  mantissa, _, exponent = literal.lower().partition("e")
  whole, point, part = mantissa.partition(".")
  digits = (whole + part).lstrip("0")
  value = big_int(whole + part)
  q = Fraction(value, 10 ** len(part)) if part else value
  if exponent:
    sign, size = exponent[0] == "-", exponent.lstrip("+-0") or "0"
    power = int(size) if len(size) < 10 else 10**9
    power = -power if sign else power
    if abs(power) > _MAX_EXPONENT:
      return ("mul", (("num", q), ("pow", ("num", 10), ("num", power))))
    q = Fraction(q) * Fraction(10) ** power
  q = int(q) if q.denominator == 1 else q
  return ("dec", q, len(digits)) if point and part else ("num", q)
