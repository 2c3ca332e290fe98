"""The lower half of the grammar: numbers, names and calls.

`math_parse` builds sums, relations and lists on top and lists the kinds of
node.
"""

from fractions import Fraction
import re

from dapo_jax.rewards import math_token
from dapo_jax.rewards.math_number import number
from dapo_jax.rewards.math_token import NotMath, Token
from dapo_jax.rewards.math_units import UNITS, Units

_TRIG = frozenset("sin cos tan cot sec csc".split())
_SYNONYMS = {
  "asin": "arcsin",
  "acos": "arccos",
  "atan": "arctan",
  "asinh": "arcsinh",
  "acosh": "arccosh",
  "atanh": "arctanh",
}
_INVERSES = {
  n: "arc" + n for n in "sin cos tan cot sec csc sinh cosh tanh".split()
}
_MANY = frozenset(("gcd", "lcm", "max", "min", "binom"))
_FENCES = {
  "lfloor": ("rfloor", "floor"),
  "lceil": ("rceil", "ceil"),
  "lvert": ("rvert", "abs"),
  "vert": ("vert", "abs"),
}
_CONSTANTS = {
  "pi": "pi",
  "infty": "inf",
  "infinity": "inf",
  "inf": "inf",
  "Infinity": "inf",
  "oo": "inf",
}
_STOPS = frozenset(
  "is are not the of to in at as by no on an so it if we be do us me my he "
  "yes for but was has had his her its any all new one two six ten day way "
  "may off you our who why how nor yet than can dne nan per".split()
)
INFINITY = ("const", "inf")
REALS = ("tuple", (("neg", INFINITY), INFINITY), "()")


class Atoms(Units):
  """What stands between two operators."""

  def atom(self, first: bool, bare: bool = False):
    """A number, a name, a call or a bracket.

    Args:
      first: Whether a mixed number may begin here.
      bare: Whether this is an exponent or an argument without braces.
    """
    kind, value, _ = self.peek()
    if kind == "num":
      return self.number(first and not bare)
    if kind == "word":
      return self.word()
    if kind == "text":
      return self.text_atom()
    if kind == "cmd":
      return self.command()
    if kind == "sym":
      if value == "{":
        return self.group()
      if value in ("(", "[", "]"):
        return self.bracket()
      if value == "|" and not self.in_abs:
        return self.absolute()
    raise NotMath(f"unexpected {value!r}")

  def number(self, first: bool):
    value = self.take().value
    if "." in value and "e" not in value.lower():
      repeating = self.repeating(value)
      if repeating is not None:
        return repeating
    if self.sees_sym("_"):
      self.take()
      base = self.subscript()
      if (
        not base.isdigit()
        or len(base) > 2
        or not value.isdigit()
        or (int(max(value)) >= int(base))
      ):
        raise NotMath("a subscript on a number")
      return ("base", value, int(base))
    if not value.isdigit():
      return number(value)
    node = number(value)
    return self.mixed(node) if first else node

  def mixed(self, whole):
    """`2\\frac{1}{2}` and `2 1/2` are sums."""
    start = self.at
    if self.sees("frac"):
      tokens = list(self.tokens)
      part = self.command()
      if part[0] == "div" and part[1][0] == part[2][0] == "num":
        return ("add", (whole, part))
      self.tokens, self.at = tokens, start
    elif (
      [self.peek(k).kind for k in range(3)] == ["num", "sym", "num"]
      and (self.peek(1).value == "/")
      and self.peek().value.isdigit()
      and (self.peek(2).value.isdigit())
    ):
      top = number(self.take().value)
      self.take()
      return ("add", (whole, ("div", top, number(self.take().value))))
    return whole

  def repeating(self, value: str):
    """`0.1\\overline{6}`, `0.1(6)`, `0.\\dot{3}` and `0.333\\ldots`."""
    block = None
    if self.sees("overline", "bar"):
      self.take()
      block = self.digits()
    elif self.sees("dot"):
      self.take()
      block = self.digits()
      if self.peek().kind == "num" or self.sees("dot"):
        if self.peek().kind == "num":
          block += self.take().value
        self.expect("cmd", "dot")
        block += self.digits()
    elif (
      self.sees_sym("(")
      and not self.peek().spaced
      and (self.peek(1).kind == "num" and self.peek(2)[:2] == ("sym", ")"))
    ):
      self.take()
      block = self.take().value
      self.take()
    elif self.sees("ldots", "dots", "cdots") or [
      self.peek(k).value for k in range(3)
    ] == [".", ".", "."]:
      self.at += 1 if self.peek().kind == "cmd" else 3
      tail = re.search(r"(\d+?)\1{2,}$", value.partition(".")[2][-60:])
      if tail is None:
        raise NotMath("an unfinished decimal")
      block = tail.group(1)
    if block is None:
      return None
    if not block.isdigit() or len(block) > 200:
      raise NotMath("a repeating part of digits expected")
    lead = value.partition(".")[2]
    q = Fraction(value + "0") + Fraction(
      int(block), (10 ** len(block) - 1) * 10 ** len(lead)
    )
    return ("num", q)

  def digits(self) -> str:
    if self.sees_sym("{"):
      self.take()
      value = self.take().value
      self.expect("sym", "}")
      return value
    self.split_first()
    return self.take().value

  def word(self):
    value = self.peek().value
    if value in _CONSTANTS:
      self.take()
      return ("const", _CONSTANTS[value])
    if value in math_token.FUNCTIONS:
      return self.function(self.take().value)
    head = next(
      (
        f
        for f in ("sqrt", "sin", "cos", "tan", "log", "ln", "pi")
        if value.startswith(f)
      ),
      None,
    )
    if head and len(value) - len(head) <= 2:
      self.tokens[self.at : self.at + 1] = [
        Token("word", head, self.peek().spaced),
        Token("word", value[len(head) :], False),
      ]
      return self.word()
    if len(value) > 1 and (
      len(value) > 3 or value.lower() in _STOPS or value.lower() in UNITS
    ):
      raise NotMath("a word")
    self.split_first()
    return self.name(self.take().value)

  def name(self, name: str):
    if self.sees_sym("_"):
      self.take()
      return ("var", f"{name}_{self.subscript()}")
    return ("const", name) if name in ("e", "i") else ("var", name)

  def text_atom(self):
    value = self.take().value.strip()
    if len(value) == 1 and value.isalpha():
      return self.name(value)
    if value in math_token.FUNCTIONS:
      return self.function(value)
    raise NotMath("text")

  def command(self):
    value = self.take().value
    if value == "frac":
      return ("div", self.argument(), self.argument())
    if value == "binom":
      return ("call", "binom", (self.argument(), self.argument()))
    if value in _CONSTANTS:
      return ("const", _CONSTANTS[value])
    if value in math_token.FUNCTIONS:
      return self.function(value)
    if value in math_token.GREEK:
      return self.name("\\" + value)
    if value in ("emptyset", "varnothing"):
      return ("set", ())
    if value == "mathbb":
      letter = self.subscript()
      return REALS if letter == "R" else ("var", "\\" + letter)
    if value == "{":
      return self.set()
    if value == "langle":
      return self.bracket_items("()", ("cmd", "rangle"))
    if value in _FENCES:
      close, name = _FENCES[value]
      return self.fenced(close, name)
    if value == "begin":
      return self.matrix()
    if value in ("sum", "prod"):
      return self.big(value)
    raise NotMath(f"\\{value}")

  def argument(self):
    """What a command such as `\\frac` takes: a group or one character."""
    self.enter()
    if self.sees_sym("{"):
      node = self.group()
    else:
      if self.peek().kind in ("num", "word"):
        self.split_first()
      node = self.atom(first=False)
    self.depth -= 1
    return node

  def function(self, name: str):
    self.enter()
    name = _SYNONYMS.get(name, name)
    power, base = None, None
    if name in ("log", "ln", "lg") and self.sees_sym("_"):
      base = self.log_base()
    if self.sees_sym("^") and name not in ("sqrt", "cbrt"):
      self.take()
      power = self.exponent()
      if power == ("neg", ("num", 1)) and name in _INVERSES:
        name, power = _INVERSES[name], None
    if name == "log" and base is None and self.sees_sym("_"):
      base = self.log_base()
    if name in ("sqrt", "cbrt"):
      node = self.root(3 if name == "cbrt" else 2)
    elif name in _MANY:
      node = self.many(name)
    else:
      outer, self.in_trig = self.in_trig, name in _TRIG
      argument = self.operand()
      self.in_trig = outer
      node = (
        ("call", "logb", (argument, base))
        if base
        else ("call", name, (argument,))
      )
    self.depth -= 1
    return ("pow", node, power) if power else node

  def log_base(self):
    self.take()
    if (
      self.peek().kind == "num"
      and self.peek(1).value not in ("(", "{")
      and (not self.peek(1).spaced)
    ):
      self.split_first()
    return self.group() if self.sees_sym("{") else self.atom(first=False)

  def root(self, order: int):
    n = ("num", order)
    if self.sees_sym("["):
      self.take()
      outer, self.in_square = self.in_square, True
      n = self.sum()
      self.in_square = outer
      self.expect("sym", "]")
    return ("root", self.atom(first=False), n)

  def many(self, name: str):
    node = self.atom(first=False)
    if node[0] not in ("tuple", "set"):
      raise NotMath("several arguments expected")
    return ("call", name, node[1])

  def operand(self):
    """`\\sin 2x` takes the product, `\\sin(x) y` only the bracket."""
    if self.sees("(", "[", "{", "|"):
      node = self.atom(first=False)
      if node[0] in ("tuple", "set", "list", "rel"):
        raise NotMath("one argument expected")
      return node
    factors = [self.factor(first=False)]
    while (
      self.starts_factor()
      and not self.sees("(", "[", "|")
      and not (
        self.peek().value in math_token.FUNCTIONS and not self.sees("sqrt")
      )
    ):
      factors.append(self.factor(first=False))
    return factors[0] if len(factors) == 1 else ("mul", tuple(factors))

  def big(self, name: str):
    """`\\sum_{k=1}^{n} body`; bounds are checked when it is evaluated."""
    self.expect("sym", "_")
    self.expect("sym", "{")
    variable = self.take()
    if variable.kind != "word" or len(variable.value) != 1:
      raise NotMath("an index expected")
    self.expect("sym", "=")
    low = self.inner(self.union)
    self.expect("sym", "}")
    self.expect("sym", "^")
    high = self.argument()
    self.enter()
    body = self.term()
    self.depth -= 1
    if variable.value in ("e", "i"):  # Constants outside, an index here.
      body = _replace(body, ("const", variable.value), ("var", variable.value))
    return ("big", name, variable.value, low, high, body)


def _replace(node, old: tuple, new: tuple):
  if node == old:
    return new
  if isinstance(node, tuple):
    return tuple(_replace(part, old, new) for part in node)
  return node
