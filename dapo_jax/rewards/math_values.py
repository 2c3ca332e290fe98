"""Equality of two scalar trees, with or without variables."""

from fractions import Fraction
import random
import zlib

from dapo_jax.rewards.math_exact import Exact, Inexact, TooBig, Undefined
from dapo_jax.rewards.math_sets import NO_VALUE, is_infinite, variables

# A difference of rational functions of degree d vanishes at a random point
# of this range with probability d / 2^40 (Schwartz and Zippel). |x| is x at
# positive points and floor x is x at whole ones, so the points are fractions
# of both signs.
_RANGE = 1 << 40
_DENOMINATOR = 97
_POINTS = 4
_RIGHT_DIGITS = 15
_SCALARS = frozenset(
  (
    "const",
    "pow",
    "root",
    "call",
    "big",
    "add",
    "mul",
    "div",
    "neg",
    "num",
    "dec",
    "var",
  )
)
# (low, high, both signs): the samples of a function of real variables.
_SAMPLES = (
  (0.1, 0.9, False),
  (1, 4, False),
  (5, 40, False),
  (0.2, 3, True),
  (0.2, 3, True),
  (0.1, 0.9, True),
  (1, 9, True),
  (10, 1e3, True),
  (1e3, 1e6, True),
  (0.1, 0.9, False),
  (10, 1e3, True),
  (1, 4, False),
)


class NeedsWorker(Exception):
  """The question may be expensive: it belongs in a process with a deadline."""


def _seed(*nodes) -> random.Random:
  """The same question always draws the same points."""
  try:
    text = repr(nodes)
  except ValueError:  # Python refuses numbers of thousands of decimal digits
    text = _in_hex(nodes)
  return random.Random(zlib.crc32(text.encode("utf-8", "replace")))


def _in_hex(node) -> str:
  if isinstance(node, (tuple, Fraction)):
    parts = node if isinstance(node, tuple) else node.as_integer_ratio()
    return f"({','.join(map(_in_hex, parts))})"
  return hex(node) if isinstance(node, int) else repr(node)


class _Point:
  """Exact values at one random point, the same for equal opaque parts."""

  def __init__(self, rng: random.Random, names, index: int):
    self.rng = rng
    self.seen = {}
    signs = (1,), (-1,), (1, -1), (1, -1)
    self.exact = Exact(
      {n: self._draw() * rng.choice(signs[index]) for n in sorted(names)},
      self._opaque,
      max_bits=1 << 13,
    )

  def _draw(self) -> Fraction:
    return Fraction(self.rng.randrange(_RANGE) * _DENOMINATOR + 1, _DENOMINATOR)

  def _opaque(self, node):
    if node[0] not in _SCALARS or is_infinite(node):
      raise Inexact(node[0])
    if node not in self.seen:
      self.seen[node] = self._draw()
    return self.seen[node]

  def __call__(self, node):
    return self.exact(node)


def literal_digits(node) -> int:
  """Significant digits of a decimal literal, 0 for anything else."""
  if node[0] == "neg":
    return literal_digits(node[1])
  return node[2] if node[0] == "dec" else 0


def values_equal(a, b, heavy: bool, log_base: int | None = None) -> bool:
  """Whether two scalar trees have the same value, or are the same function.

  Integers and fractions are compared exactly; a decimal with 15 right digits
  equals a value which no shorter decimal can write (sqrt(17), 1/3).

  Args:
    a: A settled scalar.
    b: Another.
    heavy: Whether multiple precision arithmetic may be used here.
    log_base: What `\\log` without a base means: None for e.

  Raises:
    NeedsWorker: It takes heavy arithmetic, which is not allowed here.
  """
  if a[0] not in _SCALARS or b[0] not in _SCALARS:
    return False
  if is_infinite(a) or is_infinite(b):
    return is_infinite(a) == is_infinite(b)
  names = variables(a)
  if names != variables(b):
    return False
  digits_a, digits_b = literal_digits(a), literal_digits(b)
  if digits_a and digits_b:
    return Exact()(a) == Exact()(b)
  try:
    if not names:
      return _rational_equal(a, b, digits_a, digits_b)
  except Undefined:
    return False
  except Inexact:
    pass
  except TooBig:
    if not heavy:
      raise NeedsWorker from None
    return _huge_equal(a, b)
  if max(digits_a, digits_b) < _RIGHT_DIGITS or names:
    known = _identical(a, b, names)
    if known is not None:
      return known
  if not heavy:
    raise NeedsWorker
  try:
    if names:
      return _functions_equal(a, b, names, log_base)
    return _constants_equal(a, b, digits_a, digits_b, log_base)
  except Inexact:
    return False
  except TooBig:
    return a == b
  except Undefined:
    return False


def _rational_equal(a, b, digits_a, digits_b) -> bool:
  x, y = Exact()(a), Exact()(b)
  if x == y:
    return True
  if max(digits_a, digits_b) < _RIGHT_DIGITS:
    return False
  other, decimal = (y, x) if digits_a else (x, y)
  rest = other.denominator
  for prime in (2, 5):
    while rest % prime == 0:
      rest //= prime
  # A terminating decimal can be written out, so a near miss is a miss.
  return rest != 1 and _same_digits(Fraction(decimal), Fraction(other))


def _same_digits(decimal: Fraction, other: Fraction) -> bool:
  """Whether 15 significant digits agree, rounded or cut off."""
  if decimal * other <= 0:
    return False
  decimal, other = abs(decimal), abs(other)
  power = 1 - _RIGHT_DIGITS
  scaled = other
  while scaled >= 10:
    scaled, power = scaled / 10, power + 1
  while scaled < 1:
    scaled, power = scaled * 10, power - 1
  unit = Fraction(10) ** power
  return abs(decimal - other) <= unit / 2 or decimal // unit == other // unit


def _huge_equal(a, b) -> bool:
  """Values beyond the bounds: exact with larger ones, else the same tree."""
  if a == b:
    return True
  try:
    x, y = (Exact(max_bits=1 << 20)(n) for n in (a, b))
    return x == y
  except NO_VALUE:
    return False


def _identical(a, b, names) -> bool | None:
  """Equality as rational functions of variables and opaque parts.

  Returns:
    True or False where that decides it, None where the opaque parts (roots,
    logarithms, pi) may be related to each other.
  """
  rng, opaque = _seed(a, b), False
  try:
    for index in range(_POINTS):
      point = _Point(rng, names, index)
      equal = point(a) == point(b)
      opaque = opaque or bool(point.seen)
      if not equal:
        return None if opaque else False
  except Undefined:
    return None if opaque else False
  except (Inexact, TooBig):
    return None
  if not opaque:
    return True
  # Equal as functions of their opaque parts, hence wherever those have a
  # value at all; a constant part such as ln 0 has none.
  return True if names or all(map(_has_value, point.seen)) else None


def _has_value(node) -> bool:
  """Whether an opaque part is of a kind which always has a value."""
  if node[0] == "const":
    return node[1] != "inf"
  if node[0] == "root":
    return all(n[0] in ("num", "dec", "var") for n in node[1:])
  if node[0] == "pow":
    return node[1][0] in ("const", "num", "var") and node[1] != ("num", 0)
  return (
    node[0] == "call"
    and node[1] in ("sin", "cos", "exp", "abs")
    and (
      node[2][0][0] in ("var", "const", "num") and not is_infinite(node[2][0])
    )
  )


def _constants_equal(a, b, digits_a, digits_b, log_base) -> bool:
  from dapo_jax.rewards import math_numeric

  (x, y), digits = math_numeric.evaluate([a, b], log_base)
  mp = math_numeric.CONTEXT
  if math_numeric.close(x, y, digits):
    return True
  if max(digits_a, digits_b) < _RIGHT_DIGITS or mp.im(x) or mp.im(y):
    return False
  other, decimal = (y, x) if digits_a else (x, y)
  if mp.isint(other) or not 1e-300 < abs(other) < 1e300:
    return False
  # Twice the digits that are compared decide every rounding.
  return _same_digits(
    *(
      Fraction(int(mp.nint(mp.ldexp(v, 1200))), 1 << 1200)
      for v in (decimal, other)
    )
  )


def samples(names, rng: random.Random, mp):
  """Values of the variables at which functions are compared."""
  for low, high, signed in _SAMPLES:
    yield {
      n: mp.mpf(rng.uniform(low, high)) * (rng.choice((1, -1)) if signed else 1)
      + mp.mpf(rng.random()) / 10**9
      for n in sorted(names)
    }


def _functions_equal(a, b, names, log_base) -> bool:
  from dapo_jax.rewards import math_numeric

  for real in (True, False):
    agreed = 0
    for (x, y), digits in math_numeric.at_samples(
      [a, b], samples, names, _seed(a, b), real, log_base
    ):
      if not math_numeric.close(x, y, digits):
        return False
      agreed += 1
    if agreed >= 3:
      return True
  return False


def proportional(f, g, heavy: bool, positive: bool = False) -> bool:
  """Whether f = c g with a constant c that is not zero, and f is not zero.

  Args:
    f: One side minus the other of a relation.
    g: The same of another.
    heavy: Whether multiple precision arithmetic may be used here.
    positive: Whether c must be positive, as between inequalities.
  """
  names = variables(f)
  if not names or names != variables(g):
    return False
  rng, opaque = _seed(f, g), False
  try:
    ratios = set()
    for index in range(_POINTS):
      point = _Point(rng, names, index)
      top, bottom = point(f), point(g)
      opaque = opaque or bool(point.seen)
      ratios.add(Fraction(top) / bottom if bottom else None)
    if ratios in ({None}, {0}):
      return False
    if len(ratios) == 1:
      return not positive or ratios.pop() > 0
    if not opaque:
      return False
  except (Undefined, Inexact, TooBig):
    pass
  if not heavy:
    raise NeedsWorker
  from dapo_jax.rewards import math_numeric

  found = []
  for (x, y), digits in math_numeric.at_samples(
    [f, g], samples, names, rng, True, None
  ):
    if x == 0 or y == 0:
      return False
    if found and not math_numeric.close(x / y, found[0], digits):
      return False
    found.append(x / y)
  return len(found) >= 3 and (not positive or found[0] > 0)
