"""Numerical value of a tree to any precision, and what agreement proves.

Two exact values are called equal when they agree to far more digits than
their sizes could hide. That is a policy, not a proof: deciding whether an
elementary constant is zero is open in general. It is a safe one because the
precision follows the *expression*: with M the largest |log10 |v|| over all
intermediate values v, the working precision is at least 4 M + 60 digits, so
that a difference which an answer smuggles in (1 + 10^-500) is seen however
small it is, and an answer whose intermediate values are too large or too
small for that is undecided, which never pays.
"""

from fractions import Fraction
import math

import mpmath

from dapo_jax.rewards.math_exact import (
  MAX_TERMS,
  Exact,
  Inexact,
  TooBig,
  Undefined,
)

FIRST_DIGITS = 60
MAX_DIGITS = 6000
_MAX_LOG10 = 2_000_000
# A context of our own: the precision of mpmath.mp belongs to the caller.
CONTEXT = mpmath.mp.clone()


class Outside(ValueError):
  """A real variable's value outside the domain of a root or a logarithm."""


class Numeric:
  """Evaluates trees in multiple precision complex numbers.

  Args:
    digits: Working precision.
    values: Values of the variables.
    real: Whether roots and logarithms of negative numbers are refused, as
      they are when the variables are real; constants take principal values.
    log_base: What `\\log` without a base means: None for e.
  """

  def __init__(
    self,
    digits: int,
    values: dict | None = None,
    real: bool = False,
    log_base: int | None = None,
  ):
    self.mp = CONTEXT
    self.mp.dps = digits
    self.tiny = self.mp.mpf(10) ** -(digits - 12)
    self.values = values or {}
    self.real = real
    self.log_base = log_base
    self.spread = 0.0

  def __call__(self, node: tuple):
    """The value of `node`; `spread` grows to its largest |log10|."""
    value = getattr(self, "_" + node[0], self._no_number)(node)
    mp = self.mp
    if mp.im(value) == 0:
      value = mp.re(value)
    elif abs(mp.im(value)) < self.tiny * abs(mp.re(value)):
      value = mp.re(value)  # Rounding, by the same policy as in _add.
    if not mp.isfinite(value):
      raise Undefined
    if value != 0:
      self.spread = max(self.spread, abs(self._log10(value)))
      if self.spread > _MAX_LOG10:
        raise TooBig
    return value

  def _no_number(self, node):
    raise Inexact(node[0])

  def _log10(self, value) -> float:
    return self.mp.mag(value) * 0.30103

  def _num(self, node):
    q = node[1]
    if q.numerator.bit_length() + q.denominator.bit_length() > 10**6:
      raise TooBig
    return self.mp.mpf(q.numerator) / q.denominator

  _dec = _num

  def _var(self, node):
    return self.values[node[1]]

  def _const(self, node):
    if node[1] == "inf":
      raise Undefined
    return {"pi": +self.mp.pi, "e": +self.mp.e, "i": self.mp.mpc(0, 1)}[node[1]]

  def _add(self, node):
    terms = [self(t) for t in node[1]]
    total = self.mp.fsum(terms)
    # What cancels to the working precision is zero: the rerun at a higher
    # precision, which `spread` asks for, would show it if it were not.
    if abs(total) < self.tiny * max(abs(t) for t in terms):
      return self.mp.mpf(0)
    return total

  def _mul(self, node):
    total = self.mp.mpf(1)
    for factor in node[1]:
      total = total * self(factor)
    return total

  def _neg(self, node):
    return -self(node[1])

  def _div(self, node):
    top, bottom = self(node[1]), self(node[2])
    if bottom == 0:
      raise Undefined
    return top / bottom

  def _pow(self, node):
    base = self(node[1])
    odd = None
    try:
      exponent = Exact(max_bits=4096)(node[2])
      if isinstance(exponent, Fraction):
        odd = exponent.denominator % 2 == 1
    except (Inexact, Undefined, TooBig):
      exponent = self(node[2])
    return self._power(base, exponent, odd)

  def _root(self, node):
    order = Exact(max_bits=4096)(node[2])
    if order == 0:
      raise Undefined
    power = Fraction(1) / order
    return self._power(self(node[1]), power, power.denominator % 2 == 1)

  def _power(self, base, exponent, odd):
    mp = self.mp
    fraction = isinstance(exponent, Fraction) and exponent.denominator != 1
    if isinstance(exponent, (int, Fraction)):
      numerator = exponent.numerator
      if numerator.bit_length() > 4096:
        raise TooBig
      exponent = mp.mpf(numerator) / exponent.denominator
    if base == 0:
      if mp.re(exponent) <= 0:
        raise Undefined
      return mp.mpf(0)
    if abs(exponent) * (abs(self._log10(base)) + 1) > 2 * _MAX_LOG10:
      raise TooBig
    negative = mp.im(base) == 0 and mp.re(base) < 0
    if fraction and negative and odd:  # The real root, as schools have it.
      size = mp.power(-base, exponent)
      return -size if numerator % 2 else size
    if negative and self.real and not mp.isint(exponent):
      raise Outside
    return mp.power(base, exponent)

  def _call(self, node):
    values = [self(a) for a in node[2]]
    return getattr(self, "_call_" + node[1], self._elementary)(
      *values, name=node[1]
    )

  def _elementary(self, value, name):
    mp = self.mp
    names = {
      "arcsin": "asin",
      "arccos": "acos",
      "arctan": "atan",
      "arccot": "acot",
      "arcsec": "asec",
      "arccsc": "acsc",
      "arcsinh": "asinh",
      "arccosh": "acosh",
      "arctanh": "atanh",
    }
    if name in ("exp", "sinh", "cosh", "tanh", "coth", "sech", "csch") or (
      mp.im(value) != 0
    ):
      if abs(value) > 2 * _MAX_LOG10:
        raise TooBig
    elif self._log10(value) > 2000:
      raise TooBig  # The argument could not be reduced to a period.
    if name in ("tan", "sec") and abs(mp.cos(value)) < self.tiny:
      raise Undefined
    if name in ("cot", "csc", "coth", "csch") and (
      abs(mp.sin(value)) < self.tiny if name in ("cot", "csc") else value == 0
    ):
      raise Undefined
    if name in ("sin", "cos", "tan", "cot"):
      value = getattr(mp, name)(value)
      return value if abs(value) > self.tiny else mp.mpf(0)
    if (
      self.real and name in ("arcsin", "arccos", "arctanh") and (abs(value) > 1)
    ):
      raise Outside
    if self.real and name == "arccosh" and value < 1:
      raise Outside
    return getattr(mp, names.get(name, name))(value)

  def _ln(self, value):
    if value == 0:
      raise Undefined
    if self.real and self.mp.re(value) < 0:
      raise Outside
    return self.mp.log(value)

  def _call_ln(self, value, name):
    return self._ln(value)

  def _call_log(self, value, name):
    return (
      self._ln(value)
      if self.log_base is None
      else self._ln(value) / self._ln(self.mp.mpf(self.log_base))
    )

  def _call_lg(self, value, name):
    return self._ln(value) / self._ln(self.mp.mpf(10))

  def _call_logb(self, value, base, name):
    bottom = self._ln(base)
    if abs(bottom) < self.tiny:
      raise Undefined
    return self._ln(value) / bottom

  def _call_abs(self, value, name):
    return abs(value)

  def _whole(self, value):
    near = self.mp.nint(self.mp.re(value))
    return near if abs(value - near) < self.tiny * (1 + abs(value)) else None

  def _call_floor(self, value, name):
    if self.mp.im(value) != 0:
      raise Undefined
    near = self._whole(value)
    return self.mp.floor(value) if near is None else near

  def _call_ceil(self, value, name):
    return -self._call_floor(-value, name)

  def _call_mod(self, a, b, name):
    if b == 0:
      raise Undefined
    return a - b * self._call_floor(a / b, name)

  def _call_factorial(self, n, name):
    if abs(n) > 3000:
      raise TooBig
    if self.mp.im(n) == 0 and n < 0 and self._whole(n) is not None:
      raise Undefined
    # Gamma(x) from Gamma(x + k): far out Stirling's series is enough, while
    # mpmath's own way starts with half a second of Taylor coefficients.
    below = self.mp.mpf(1)
    for k in range(1, self.mp.dps + 1):
      below *= n + k
    return self.mp.gamma(n + self.mp.dps + 1) / below

  def _call_factorial2(self, n, name):
    raise Inexact(name)

  def _call_binom(self, n, k, name):
    return self._call_factorial(n, name) / (
      self._call_factorial(k, name) * self._call_factorial(n - k, name)
    )

  def _call_max(self, *values, name):
    if any(self.mp.im(v) != 0 for v in values):
      raise Undefined
    return max(values) if name == "max" else min(values)

  _call_min = _call_max

  def _call_gcd(self, *values, name):
    whole = [self._whole(v) for v in values]
    if None in whole or max(map(abs, whole)) > 10**30:
      raise Inexact(name)
    function = math.gcd if name == "gcd" else math.lcm
    return self.mp.mpf(function(*map(int, whole)))

  _call_lcm = _call_gcd

  def _big(self, node):
    _, name, variable, low, high, body = node
    low, high = self._whole(self(low)), self._whole(self(high))
    if low is None or high is None:
      raise Inexact(name)
    if high - low >= MAX_TERMS:
      raise TooBig
    outer, total = dict(self.values), self.mp.mpf(int(name == "prod"))
    for index in range(int(low), int(high) + 1):
      self.values[variable] = self.mp.mpf(index)
      total = total + self(body) if name == "sum" else total * self(body)
    self.values = outer
    return total


def evaluate(nodes: list[tuple], log_base: int | None = None):
  """Values of constant trees, to a precision which their sizes cannot fool.

  Args:
    nodes: Trees without variables.
    log_base: What `\\log` without a base means.

  Returns:
    (values, digits), good to about digits / 2.

  Raises:
    Undefined, Inexact, TooBig: There is no value, or none within the bounds.
  """
  digits = FIRST_DIGITS
  while True:
    numeric = Numeric(digits, log_base=log_base)
    values = [numeric(node) for node in nodes]
    needed = int(4 * numeric.spread) + FIRST_DIGITS
    if needed <= digits:
      return values, digits
    if needed > MAX_DIGITS:
      raise TooBig
    digits = needed


def at_samples(nodes, samples, names, rng, real: bool, log_base):
  """Values of trees at the sample points where all of them are defined.

  Args:
    nodes: Trees with variables.
    samples: Gives the points, called with (names, rng, context).
    names: The variables.
    rng: Source of the points.
    real: Whether points outside a root's real domain are left out.
    log_base: What `\\log` without a base means.

  Yields:
    The values of the nodes and the digits they were computed with, for each
    point.
  """
  CONTEXT.dps = FIRST_DIGITS
  for values in samples(names, rng, CONTEXT):
    digits = FIRST_DIGITS
    while digits <= MAX_DIGITS // 8:
      numeric = Numeric(digits, values, real, log_base)
      try:
        result = [numeric(node) for node in nodes]
      except (Outside, Undefined, TooBig):
        break
      needed = int(4 * numeric.spread) + FIRST_DIGITS
      if needed <= digits:
        yield result, digits
        break
      digits = needed


def close(x, y, digits: int) -> bool:
  """Agreement to half of the digits that were computed."""
  size = max(abs(x), abs(y))
  return abs(x - y) <= size * CONTEXT.mpf(10) ** -(digits // 2)
