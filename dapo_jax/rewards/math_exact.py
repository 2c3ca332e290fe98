"""Exact rational value of a tree, with bounds on every intermediate number.

Whatever is not rational (a root, a logarithm, pi) can be given as an opaque
indeterminate, so that identities between expressions become identities of
rational functions; those are decided at random points (Schwartz and Zippel).
"""

from collections.abc import Callable
from fractions import Fraction
import math

MAX_TERMS = 3000


class Undefined(ValueError):
  """No value: a division by zero, infinity minus infinity."""


class Inexact(ValueError):
  """The value is not rational, or not known to be."""


class TooBig(ValueError):
  """The value exceeds what this evaluation may spend."""


class Exact:
  """Evaluates trees in rational numbers.

  Args:
    values: Values of the variables.
    opaque: Called with a node that is not rational; gives a value for it or
      raises Inexact.
    max_bits: Bound on the size of every numerator and denominator.
  """

  def __init__(
    self,
    values: dict | None = None,
    opaque: Callable | None = None,
    max_bits: int = 1 << 15,
  ):
    self.values = values or {}
    self.opaque = opaque
    self.max_bits = max_bits
    self.budget = max_bits * 128

  def __call__(self, node: tuple):
    """The value of `node` as an int or a Fraction."""
    value = getattr(self, "_" + node[0], self._other)(node)
    if isinstance(value, Fraction):
      bits = value.numerator.bit_length() + value.denominator.bit_length()
      if value.denominator == 1:
        value = value.numerator
    else:
      bits = value.bit_length()
    self.budget -= bits + 256
    if bits > self.max_bits or self.budget < 0:
      raise TooBig
    return value

  def _other(self, node):
    if self.opaque is None:
      raise Inexact(node[0])
    return self.opaque(node)

  def _num(self, node):
    return node[1]

  _dec = _num

  def _var(self, node):
    if node[1] not in self.values:
      return self._other(node)
    return self.values[node[1]]

  def _add(self, node):
    total = 0
    for term in node[1]:
      total += self(term)
    return total

  def _mul(self, node):
    total = 1
    for factor in node[1]:
      total *= self(factor)
      self._check(total)
    return total

  def _check(self, value) -> None:
    if value.numerator.bit_length() > self.max_bits * 2:
      raise TooBig

  def _neg(self, node):
    return -self(node[1])

  def _div(self, node):
    top, bottom = self(node[1]), self(node[2])
    if bottom == 0:
      raise Undefined
    return Fraction(top) / bottom

  def _pow(self, node):
    return self._power(node, self(node[1]), self(node[2]))

  def _root(self, node):
    order = self(node[2])
    if order == 0:
      raise Undefined
    return self._power(node, self(node[1]), Fraction(1) / order)

  def _power(self, node, base, exponent):
    if isinstance(exponent, Fraction) and exponent.denominator != 1:
      if self.opaque is not None:
        return self._constant(node)
      if exponent.denominator > 64:
        return self._other(node)
      root = _rational_root(base, exponent.denominator)
      if root is None:
        return self._other(node)
      return self._power(node, root, exponent.numerator)
    exponent = int(exponent)
    if base == 0 and exponent <= 0:
      raise Undefined
    if base in (0, 1):
      return base
    if base == -1:
      return 1 if exponent % 2 == 0 else -1
    bits = max(base.numerator.bit_length(), base.denominator.bit_length())
    if bits * abs(exponent) > self.max_bits * 2:
      raise TooBig
    return Fraction(base) ** exponent

  def _call(self, node):
    function = getattr(self, "_call_" + node[1], None)
    if function is None:
      return self._other(node)
    if self.opaque is not None:
      # |v| and floor v are no rational functions of what v depends on.
      return self._constant(node)
    return function(*[self(a) for a in node[2]])

  def _constant(self, node):
    """The value of a node which depends on nothing, else opaque."""
    try:
      return Exact(max_bits=self.max_bits)(node)
    except Inexact:
      return self.opaque(node)

  def _integer(self, *values):
    for value in values:
      if isinstance(value, Fraction):
        raise Inexact("an integer expected")
    return values

  def _call_factorial(self, n):
    self._integer(n)
    if n < 0:
      raise Undefined
    if n > 2 and n * n.bit_length() > self.max_bits * 2:
      raise TooBig
    return math.factorial(n)

  def _call_factorial2(self, n):
    self._integer(n)
    if n < 0:
      raise Undefined
    if n > 2 and n * n.bit_length() > self.max_bits * 2:
      raise TooBig
    return math.prod(range(n, 0, -2))

  def _call_binom(self, n, k):
    self._integer(n, k)
    if n < 0:
      raise Inexact("a negative binomial")
    if not 0 <= k <= n:
      return 0
    if min(k, n - k) * n.bit_length() > self.max_bits * 2:
      raise TooBig
    return math.comb(n, k)

  def _call_abs(self, value):
    return abs(value)

  def _call_floor(self, value):
    return math.floor(value)

  def _call_ceil(self, value):
    return math.ceil(value)

  def _call_mod(self, a, b):
    if b == 0:
      raise Undefined
    return a % b

  def _call_gcd(self, *values):
    return math.gcd(*self._integer(*values))

  def _call_lcm(self, *values):
    return math.lcm(*self._integer(*values))

  def _call_max(self, *values):
    return max(values)

  def _call_min(self, *values):
    return min(values)

  def _big(self, node):
    _, name, variable, low, high, body = node
    low, high = self._integer(self(low), self(high))
    if high - low >= MAX_TERMS:
      raise TooBig
    outer, total = dict(self.values), int(name == "prod")
    for index in range(low, high + 1):
      self.values[variable] = index
      total = total + self(body) if name == "sum" else total * self(body)
      self._check(total)
    self.values = outer
    return total


def _rational_root(value, order: int):
  """The exact real root of a rational number, or None."""
  negative = value < 0
  if negative and order % 2 == 0:
    return None
  value = abs(Fraction(value))
  top, bottom = (
    _integer_root(n, order) for n in (value.numerator, value.denominator)
  )
  if top is None or bottom is None:
    return None
  return Fraction(-top if negative else top, bottom)


def _integer_root(n: int, order: int) -> int | None:
  if order == 2:
    root = math.isqrt(n)
  else:
    root = 1 << -(-n.bit_length() // order)
    while root > 0:  # Newton's iteration from above falls until it arrives.
      smaller = ((order - 1) * root + n // root ** (order - 1)) // order
      if smaller >= root:
        break
      root = smaller
  return root if root**order == n else None
