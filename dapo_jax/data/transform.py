"""Answers into integers, as the paper had it done for DAPO-Math-17k.

The paper rewrote problems so that every answer is an integer, which a rule can
check without doubt: an answer 11 - 2√6 has the form k - m√n, and the problem
asks for k + m + n = 19 instead (DAPO, appendix A, arXiv:2503.14476). There a
language model did it; here it is arithmetic. An answer is brought into a form
that is unique, the question gets a sentence about that form, and the integer is
the sum of its letters. What has no such form is refused.
"""

from fractions import Fraction
import math
import re
from typing import NamedTuple

import sympy

from dapo_jax.rewards import math_parse, math_text
from dapo_jax.rewards.math_exact import Exact, Inexact, TooBig, Undefined
from dapo_jax.rewards.math_sets import settle, variables
from dapo_jax.rewards.math_token import MAX_CHARS, NotMath

MAX_DEGREE = 6  # of a polynomial
MAX_TERMS = 4  # of a sum of roots
MAX_INTEGER = 10**30  # a rule compares it, a model has to write it
_MAX_NUMBER = 10**12  # of a radicand: it has to be factored
_ALPHABET = "kmnpqrstabcduvw"
# Letters as the shape of a form suggests them; used ones are passed over.
_FRACTION, _SUM, _QUOTIENT, _TUPLE = "mn", "kmnpqr", "abcdpq", "mnpq"
_LETTER = re.compile(r"(?<![A-Za-z\\])[A-Za-z](?![A-Za-z])")
_FORMULA = re.compile(r"\$[^$]*\$|\\\(.*?\\\)|\\\[.*?\\\]", re.DOTALL)
_COMMAND = re.compile(r"\\[A-Za-z]+")
_SINGLE = re.compile(r"[A-Z]")


class Refused(ValueError):
  """The answer has no unique form with an integer in it; its text says why."""


class Rewritten(NamedTuple):
  """A problem whose answer is an integer.

  Attributes:
    problem: the question, with a sentence about the form where it needs one.
    answer: the integer.
    form: of the original answer, LaTeX; "" where that was an integer.
    letters: the value of each letter of the form; they add up to the answer.
  """

  problem: str
  answer: int
  form: str
  letters: dict[str, int]


def to_integer(problem: str, answer: str) -> Rewritten:
  """Rewrites a problem so that its answer is an integer.

  Integers stay as they are. Fractions, decimals, sums of rationals, square
  roots, multiples of π and of i over one denominator, polynomials in one
  variable, tuples and sets of integers get a form.

  Args:
    problem: the question.
    answer: its answer, in LaTeX or plain text.

  Returns:
    The rewritten problem and its integer.

  Raises:
    Refused: no unique form, or no answer at all.
  """
  node = _read(answer)
  if node[0] in ("set", "list"):
    total = _bounded(sum(_distinct_values(node)))
    told = "Give the sum of all values of the original answer."
    return Rewritten(f"{problem.rstrip()} {told}", total, "", {})
  letters = _Letters(problem)
  if node[0] == "tuple":
    form, told = _of_tuple(node, letters)
  else:
    value = sympy.expand(sympy.radsimp(sympy.expand(_expression(node))))
    if value.is_Integer:
      return Rewritten(problem, _bounded(value), "", {})
    make = _of_polynomial if value.free_symbols else _of_number
    form, told = make(value, letters)
  asked = "+".join(letters.values)
  text = (
    f"{problem.rstrip()} The original answer is in the form ${form}$, "
    f"where {told}. Find ${asked}$."
  )
  total = _bounded(sum(letters.values.values()))
  return Rewritten(text, total, form, letters.values)


def _bounded(value) -> int:
  if abs(value) > MAX_INTEGER:
    raise Refused("the integer is too large")
  return int(value)


def _read(answer: str) -> tuple:
  """The tree of an answer, without what only names it."""
  if len(answer) > MAX_CHARS:
    raise Refused(f"the answer is longer than {MAX_CHARS} characters")
  text = math_text.clean(answer)
  if not text:
    raise Refused("the answer is empty")
  if _SINGLE.fullmatch(text):
    raise Refused("the answer is a letter, such as that of a choice")
  try:
    node = settle(math_parse.parse(text))
  except NotMath as error:
    raise Refused(f"the answer cannot be read: {error}") from error
  if node[0] == "assign" and node[1][0] == "var":
    node = node[2]
    if variables(node):
      raise Refused("an equation between variables")
  if node[0] == "unit" and node[2] == "deg":
    node = node[1]
  return node


class _Letters:
  """Letters that the problem does not use, and the values they stand for.

  Letters stand for themselves where they are alone, and all of them do in a
  formula: in $ax^2+bx$ a, b and x are taken.
  """

  def __init__(self, problem: str):
    self.used = set(_LETTER.findall(problem))
    for formula in _FORMULA.findall(problem):
      self.used |= set(filter(str.isalpha, _COMMAND.sub("", formula)))
    self.values: dict[str, int] = {}

  def take(self, wanted: str, value: int) -> str:
    """The next free letter, of `wanted` if it has one, for a value."""
    for letter in wanted + _ALPHABET:
      if letter not in self.used and letter not in self.values:
        self.values[letter] = value
        return letter
    raise Refused("the problem uses every letter that a form could")


def _expression(node: tuple) -> sympy.Expr:
  """A tree of our grammar as an expression of roots, π, i and variables."""
  try:  # rational numbers, with bounds on every step
    value = Fraction(Exact()(node))
    return sympy.Rational(value.numerator, value.denominator)
  except Inexact:
    pass
  except (Undefined, TooBig) as error:
    raise Refused("the answer has no value of a sensible size") from error
  kind = node[0]
  if kind == "var":
    return sympy.Symbol(node[1])
  if kind == "const" and node[1] in ("pi", "i"):
    return sympy.pi if node[1] == "pi" else sympy.I
  if kind == "neg":
    return -_expression(node[1])
  if kind == "add":
    return sympy.Add(*map(_expression, node[1]))
  if kind == "mul":
    return sympy.Mul(*map(_expression, node[1]))
  if kind == "div":
    bottom = _expression(node[2])
    if bottom.is_zero:
      raise Refused("the answer divides by zero")
    return _expression(node[1]) / bottom
  if kind == "root" and node[2] == ("num", 2):
    return _root(_expression(node[1]))
  if kind == "pow":
    base, power = _expression(node[1]), _expression(node[2])
    if power == sympy.Rational(1, 2):
      return _root(base)
    if power.is_Integer and 0 < power <= MAX_DEGREE:
      return base**power
  raise Refused(f"no form for what is made of {kind!r}")


def _root(radicand: sympy.Expr) -> sympy.Expr:
  if not radicand.is_Rational or not (
    0 < radicand.p < _MAX_NUMBER and radicand.q < _MAX_NUMBER
  ):
    raise Refused("a root of something else than a positive number")
  return sympy.sqrt(radicand)


def _terms(value: sympy.Expr) -> dict[sympy.Expr, Fraction]:
  """1, √n, π or i -> its rational coefficient, the rational part first."""
  out = {}
  for term in sympy.Add.make_args(value):
    coefficient, rest = term.as_coeff_Mul()
    is_root = rest.is_Pow and rest.exp == sympy.Rational(1, 2)
    if not coefficient.is_Rational or not (
      rest in (sympy.S.One, sympy.pi, sympy.I)
      or (is_root and rest.base.is_Integer and rest.base > 0)
    ):
      raise Refused(f"no form for a term {term}")
    out[rest] = Fraction(int(coefficient.p), int(coefficient.q))
  if len(out) > MAX_TERMS:
    raise Refused(f"more than {MAX_TERMS} terms")
  return dict(sorted(out.items(), key=lambda kv: (kv[0] != 1, str(kv[0]))))


def _of_number(value, letters) -> tuple[str, str]:
  """(± k ± m√n ...) / d: letters are positive, signs stand in the form.

  With square-free radicands and no common divisor of d and the coefficients
  this is unique; the sum of the letters does not depend on the order of terms.
  A coefficient 1 is not shown: then there is no common divisor anyway.
  """
  terms = _terms(value)
  below = math.lcm(*(q.denominator for q in terms.values()))
  numbers = {part: int(q * below) for part, q in terms.items()}
  is_fraction = list(terms) == [sympy.S.One]
  wanted = _FRACTION if is_fraction else _QUOTIENT if below > 1 else _SUM
  form, shown, square_free = "", [], []
  for part, number in numbers.items():
    form += "-" if number < 0 else "+" if form else ""
    if part == 1 or abs(number) > 1:
      shown.append(letters.take(wanted, abs(number)))
      form += shown[-1]
    if part.is_Pow:
      square_free.append(letters.take(wanted, int(part.base)))
      form += rf"\sqrt{{{square_free[-1]}}}"
    elif part != 1:
      form += r"\pi" if part == sympy.pi else "i"
  is_reduced = len(shown) < len(numbers)
  if below > 1:
    bottom = letters.take(wanted, below)
    if len(numbers) == 1:  # the sign stands before the fraction
      sign, form = ("-", form[1:]) if form[0] == "-" else ("", form)
      form = rf"{sign}\frac{{{form}}}{{{bottom}}}"
    else:
      form = rf"\frac{{{form}}}{{{bottom}}}"
    shown.append(bottom)
  if not letters.values:
    raise Refused("nothing in the answer varies")  # π, i, and their negatives
  given = list(letters.values)
  told = [f"{_listed(given)} {'is a' if len(given) == 1 else 'are'} positive"]
  told[0] += " integer" + "s" * (len(given) > 1)
  for letter in square_free:
    told.append(f"${letter}$ is not divisible by the square of a prime")
  if below > 1 and not is_reduced:
    told.append(f"{_listed(shown)} have no common divisor greater than 1")
  return form, ", ".join(told[:-1]) + " and " * (len(told) > 1) + told[-1]


def _listed(letters) -> str:
  marked = [f"${letter}$" for letter in letters]
  return ", ".join(marked[:-1]) + " and " * (len(marked) > 1) + marked[-1]


def _of_polynomial(value, letters) -> tuple[str, str]:
  """a x^n + b x^(n-1) + ...: integer coefficients, absent powers included."""
  if len(value.free_symbols) > 1:
    raise Refused("an expression in several variables")
  x = next(iter(value.free_symbols))
  name = x.name
  if value == x or not (name in letters.used or name.startswith("\\")):
    # A choice, a name, a word that was read as a product of letters.
    raise Refused("a letter that is no variable of the problem")
  if not value.is_polynomial(x):
    raise Refused("an expression with a variable that is no polynomial")
  coefficients = sympy.Poly(value, x).all_coeffs()  # highest power first
  degree = len(coefficients) - 1
  if degree > MAX_DEGREE or not all(a.is_Integer for a in coefficients):
    raise Refused(
      f"a polynomial of degree over {MAX_DEGREE}, or whose coefficients are "
      "no integers"
    )
  powers = [
    "" if n == 0 else name if n == 1 else f"{name}^{{{n}}}"
    for n in range(degree, -1, -1)
  ]
  form = "+".join(
    letters.take("abcdpq", int(a)) + power
    for a, power in zip(coefficients, powers)
  )
  return form, f"{_listed(letters.values)} are integers"


def _integers(node) -> list[int]:
  """The items of a tuple, set or list."""
  items = [_expression(item) for item in node[1]]
  if not all(item.is_Integer for item in items):
    raise Refused("a list or tuple with an item that is no integer")
  return [int(item) for item in items]


def _of_tuple(node, letters) -> tuple[str, str]:
  """A letter an item."""
  items = _integers(node)
  if node[2] != "()" or not 2 <= len(items) <= len(_TUPLE):
    raise Refused("an interval, or a tuple of another length than 2 to 4")
  form = ", ".join(letters.take(_TUPLE, item) for item in items)
  return f"({form})", f"{_listed(letters.values)} are integers"


def _distinct_values(node) -> list[int]:
  items = _integers(node)
  if node[0] == "list" and node[2] == "or":
    raise Refused("one of several values")
  if not items or len(set(items)) < len(items):
    raise Refused("a list with repeats, or an empty set")
  return items
