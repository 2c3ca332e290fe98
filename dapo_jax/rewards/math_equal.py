"""Whether two answers state the same mathematics.

The answers are read by a grammar of our own (`math_parse`), turned into
statements (`math_sets`) and compared; no text ever reaches an evaluator of
code. Integers, fractions, polynomials and identities between rational
functions are decided here and now; what needs multiple precision arithmetic
raises NeedsWorker unless `heavy`, so that the caller can put it in a process
with a deadline.
"""

import re

from dapo_jax.rewards import math_number, math_parse, math_text
from dapo_jax.rewards.math_exact import Exact
from dapo_jax.rewards.math_sets import (
  NO_VALUE,
  as_set,
  is_interval,
  settle,
  variables,
)
from dapo_jax.rewards.math_token import MAX_CHARS, NotMath
from dapo_jax.rewards.math_values import NeedsWorker, proportional, values_equal

MAX_ITEMS = 200  # Of a list; more of them is no answer.
MAX_CALLS = 500  # Comparisons of parts outside a worker.

_INTEGER = re.compile(r"([+-]?)(\d+)", re.ASCII)
_COMMAS = re.compile(r"\d,\d{3}")
_OPTION = re.compile(
  r"(?:(?:option|choice)\s+)?(?:\\(?:text|textbf|mathrm|textrm|mbox)\s*\{\s*"
  r"[(\[]?([A-J])[)\]]?[.:]?\s*\}|[(\[]([A-J])[)\]]|([A-J])(?:[.:)]|$))"
  r"\s*(.*)",
  re.IGNORECASE | re.DOTALL,
)
# A second choice behind the first.
_OTHER = re.compile(r"(?<![A-Za-z])(?:or|and|OR|AND|[A-J])(?![A-Za-z])|^[,/;&]")
_TEXT = re.compile(
  r'\\(?:text|textbf|textit|textrm|mathrm|mbox|rm|quad)(?![a-z])|[\s{}$"*]+'
)
_BLANK = re.compile(r"(?<!\w) | (?!\w)")  # White space between no words.
_EMPTY = re.compile(r"[^\w]*")


def integer(text: str) -> int | str | None:
  """A plain integer without leading zeros, as a string, or None."""
  match = _INTEGER.fullmatch(text)
  if not match:
    return None
  digits = match.group(2).lstrip("0") or "0"
  return "-" + digits if match.group(1) == "-" and digits != "0" else digits


def equal_texts(prediction: str, answer: str, heavy: bool) -> bool:
  """Decides two answers which have already been extracted.

  Args:
    prediction: The model's answer.
    answer: The gold answer.
    heavy: Whether multiple precision arithmetic may be used here.

  Returns:
    True only if both state the same mathematics.

  Raises:
    NeedsWorker: It takes heavy arithmetic, which is not allowed here.
  """
  p, g = integer(prediction.strip()), integer(answer.strip())
  if p is not None and g is not None:
    return p == g
  if max(len(prediction), len(answer)) > MAX_CHARS:
    return False
  p, g = math_text.clean(prediction), math_text.clean(answer)
  if not p or not g:
    return False
  chosen = _options(p, g)
  if chosen is not None:
    return chosen
  readings_p, readings_g = _readings(p), _readings(g)
  if not readings_p or not readings_g:
    return not readings_p and not readings_g and _same_text(p, g)
  compare = Comparison(heavy)
  for a in readings_p:
    for b in readings_g:
      if compare(a, b):
        return True
      if _has_log(a) or _has_log(b):
        if Comparison(heavy, log_base=10)(a, b):
          return True
  return False


def _options(p: str, g: str) -> bool | None:
  """Compares choices by their letter, when the gold answer is one."""
  gold = _OPTION.fullmatch(g)
  if not gold or gold.group(4) or g.islower():
    return None
  letter = (gold.group(1) or gold.group(2) or gold.group(3)).upper()
  found = _OPTION.fullmatch(p)
  if not found:
    return False
  other = found.group(1) or found.group(2) or found.group(3)
  if other.islower() and found.group(3):
    return False  # A bare small letter is a variable.
  return other.upper() == letter and not _OTHER.search(found.group(4))


def _readings(text: str) -> list:
  """The statements a text can be read as; none when it is not mathematics."""
  nodes = []
  for thousands in (True, False):
    try:
      node = math_parse.parse(text, thousands)
      # 5 = 5 and 0 = 0 say nothing, whatever they are compared with.
      node = settle(node)
      if node not in nodes:
        nodes.append(node)
    except NotMath:
      pass
    if not _COMMAS.search(text):
      break
  return nodes


def _same_text(p: str, g: str) -> bool:
  p, g = (
    _BLANK.sub("", " ".join(_TEXT.sub(" ", t).split())).strip(".,;:! ")
    for t in (p, g)
  )
  if _EMPTY.fullmatch(g):
    return False
  if re.search("[A-Za-z]{2}", g):
    p, g = p.casefold(), g.casefold()
  return p == g


def _has_log(node) -> bool:
  if node[:2] == ("call", "log"):
    return True
  return any(_has_log(n) for n in node if isinstance(n, tuple) and n)


class Comparison:
  """Equality of settled nodes.

  Args:
    heavy: Whether multiple precision arithmetic may be used here.
    log_base: What `\\log` without a base means: None for e.
  """

  def __init__(self, heavy: bool, log_base: int | None = None):
    self.heavy = heavy
    self.log_base = log_base
    self.calls = 0

  def __call__(self, p, g) -> bool:
    self.calls += 1
    if self.calls > MAX_CALLS and not self.heavy:
      raise NeedsWorker
    kinds = p[0], g[0]
    if "approx" in kinds:
      return self._approx(p, g)
    if "chain" in kinds:
      return self._chain(p, g)
    if "assign" in kinds or "equation" in kinds:
      return self._equations(p, g)
    if "ineq" in kinds or is_interval(p) or is_interval(g):
      return self._sets(p, g)
    if "unit" in kinds:
      return self._units(p, g)
    if "base" in kinds:
      return self._bases(p, g)
    if kinds[0] in ("list", "set") or kinds[1] in ("list", "set"):
      return self._collections(p, g)
    if kinds == ("tuple", "tuple"):
      return self._ordered(p[1], g[1])
    if kinds == ("matrix", "matrix"):
      return len(p[1]) == len(g[1]) and all(
        self._ordered(a, b) for a, b in zip(p[1], g[1], strict=True)
      )
    if "rel" in kinds:
      return p == g and bool(variables(p))
    return values_equal(p, g, self.heavy, self.log_base)

  def _approx(self, p, g):
    """`sqrt(17), about 4.12` stands for its exact side."""
    sides = []
    for node in (p, g):
      if node[0] == "approx":
        if not _is_near(node[1], node[2]):
          return False
        node = node[1]
      sides.append(node)
    return self(*sides)

  def _chain(self, p, g):
    sides = []
    for node in (p, g):
      if node[0] == "chain":
        parts = [settle(n) for n in node[1]]
        if len(set(parts)) == 1 or not all(
          self(a, b) for a, b in zip(parts, parts[1:], strict=False)
        ):
          return False
        node = parts[-1]
      sides.append(node)
    return self(*sides)

  def _equations(self, p, g):
    if p[0] == g[0] == "assign" and p[1] == g[1]:
      return self(p[2], g[2])
    sides = []
    for node in (p, g):
      if node[0] == "assign" and variables(node[2]):
        sides.append(("equation", node[1], node[2]))
      else:
        sides.append(node)
    if all(s[0] == "equation" for s in sides):
      return proportional(*map(_difference, sides), self.heavy)
    if p[0] == g[0] == "assign":
      words = len(p[1][1]) > 3 or len(g[1][1]) > 3  # Area = 15 and A = 15.
      return words and p[1][0] == g[1][0] == "var" and self(p[2], g[2])
    if "assign" in (p[0], g[0]) and "equation" in (p[0], g[0]):
      a, b = (("equation", n[1], n[2]) for n in (p, g))
      return "list" not in (a[2][0], b[2][0]) and proportional(
        _difference(a), _difference(b), self.heavy
      )
    if p[0] == "assign":
      return self(p[2], g)
    if g[0] == "assign":
      return self(p, g[2])
    # 2 + 3 = 5 stands for 5 when it holds and says something.
    left, right = (p if p[0] == "equation" else g)[1:]
    other = g if p[0] == "equation" else p
    return left != right and self(left, right) and self(right, other)

  def _sets(self, p, g):
    a, b = as_set(p), as_set(g)
    if a[0] == b[0] == "ineq":
      return a[2] == b[2] and self._inequalities(a, b)
    if a[0] == b[0] == "union":
      return self._matched(a[1], b[1])
    if a[0] == b[0] == "minus":
      return self(a[1], b[1]) and self(a[2], b[2])
    if a[0] == b[0] == "tuple":
      if (
        p[0] == "ineq"
        and g[0] == "ineq"
        and variables(("tuple", p[1], "")) != variables(("tuple", g[1], ""))
      ):
        return False
      same = a[2] == b[2] if len(a[1]) == len(b[1]) == 2 else True
      return same and self._ordered(a[1], b[1])
    if {a[0], b[0]} == {"tuple", "list"}:
      return self._collections(a, b)
    if {a[0], b[0]} == {"union", "list"}:  # (1, 2) or (3, 4) may be points.
      return self._matched(a[1], b[1])
    return False

  def _inequalities(self, a, b):
    if self._ordered(a[1], b[1]):
      return any(map(variables, a[1])) and a[1][0] != a[1][-1]
    if len(a[1]) != 2 or len(b[1]) != 2:
      return False
    differences = [_difference(("equation", *n[1])) for n in (a, b)]
    return proportional(*differences, self.heavy, positive=a[2] != ("!=",))

  def _units(self, p, g):
    if p[0] == g[0] == "unit":
      return p[2] == g[2] and self(p[1], g[1])
    return self(p[1], g) if p[0] == "unit" else self(p, g[1])

  def _bases(self, p, g):
    if p[0] == g[0] == "base":
      return p[2] == g[2] and p[1].lstrip("0") == g[1].lstrip("0")
    base, other = (p, g) if p[0] == "base" else (g, p)
    return other == ("num", math_number.number(base[1])[1])

  def _collections(self, p, g):
    kinds = p[0], g[0]
    if "tuple" in kinds:
      named, other = (p, g) if kinds[1] == "tuple" else (g, p)
      # x = 1, y = 2 is the pair (1, 2).
      return (
        named[0] == "list"
        and all(i[0] == "assign" for i in named[1])
        and self._ordered([i[2] for i in named[1]], other[1])
      )
    items = [n[1] if n[0] in ("list", "set") else (n,) for n in (p, g)]
    if "set" in kinds:
      items = [self._distinct(i) for i in items]
    elif kinds != ("list", "list"):
      return False
    return self._matched(*items)

  def _distinct(self, items):
    kept = []
    for item in items[:MAX_ITEMS]:
      if not any(self(item, k) for k in kept):
        kept.append(item)
    return kept

  def _ordered(self, a, b):
    return len(a) == len(b) and all(
      self(x, y) for x, y in zip(a, b, strict=True)
    )

  def _matched(self, a, b):
    """Whether the items pair up in some order."""
    if len(a) != len(b) or len(a) > MAX_ITEMS:
      return False
    rest = list(b)
    for item in a:
      found = next((k for k, r in enumerate(rest) if self(item, r)), None)
      if found is None:
        return False
      del rest[found]
    return True


def _is_near(a, b) -> bool:
  """False when two rational values differ by more than a rounding."""
  try:
    x, y = Exact()(a), Exact()(b)
  except NO_VALUE:
    return True
  return abs(x - y) * 20 <= max(abs(x), abs(y))


def _difference(equation):
  return ("add", (equation[1], ("neg", equation[2])))
