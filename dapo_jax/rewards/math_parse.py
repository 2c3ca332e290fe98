"""A grammar of mathematical answers: cleaned text to a small tree.

Recursive descent with a bounded depth over `math_token` tokens; nothing is
ever evaluated as code. A node is a tuple whose first item names its kind:

  scalars     ('num', q)  ('dec', q, digits)  ('var', name)  ('const', name)
              ('add', terms)  ('mul', factors)  ('div', a, b)  ('neg', a)
              ('pow', a, b)  ('root', a, n)  ('call', name, args)
              ('big', 'sum' | 'prod', name, low, high, body)
  structures  ('tuple', items, brackets)  ('set', items)  ('list', items, join)
              ('matrix', rows)  ('union', parts)  ('minus', a, b)
              ('rel', operands, operators)  ('builder', relation)
  wrappers    ('unit', a, name)  ('base', digits, base)

`join` is ',', 'and', 'or', or 'pm' for the values of a plus-minus sign.
"""

from fractions import Fraction
import itertools
import re

from dapo_jax.rewards import math_token
from dapo_jax.rewards.math_atoms import Atoms
from dapo_jax.rewards.math_token import NotMath

MAX_SIGNS = 3  # Of plus-minus signs in one item, hence at most 8 values.

_RELATIONS = {
  "=": "=",
  "==": "=",
  ":=": "=",
  "<": "<",
  ">": ">",
  "<=": "<=",
  ">=": ">=",
  "!=": "!=",
  "le": "<=",
  "leq": "<=",
  "leqslant": "<=",
  "ge": ">=",
  "geq": ">=",
  "geqslant": ">=",
  "lt": "<",
  "gt": ">",
  "ne": "!=",
  "neq": "!=",
  "approx": "~",
  "in": "in",
}
_TIMES = frozenset(("*", "cdot", "times", "ast", "cdotp"))
_OVER = frozenset(("/", "div"))
_BEGIN = frozenset(
  ("frac", "pi", "infty", "binom", "sum", "prod", "lfloor", "lceil", "lvert")
)


class Parser(Atoms):
  """One pass over the tokens of one answer."""

  # Structures.

  def answer(self):
    """The whole text: one item, or several joined by commas or words."""
    node = self.items()
    if self.peek().kind != "end":
      raise NotMath("text left over")
    return node

  def items(self):
    items, joins = [self.item()], set()
    while True:
      joined = False
      while (
        self.sees_sym(",") or self.sees_sym(";") or (self.peek().kind == "join")
      ):
        joins.add(self.take().value)
        joined = True
      if not joined:
        break
      if self.peek().kind == "end" and not joins & {"and", "or"}:
        break
      items.append(self.item())
    if len(items) == 1:
      return items[0]
    join = "or" if "or" in joins else "and" if "and" in joins else ","
    return ("list", tuple(items), join)

  def item(self):
    """A relation or an expression, once for every choice of its signs."""
    if self.in_item:
      return self.relation()
    self.in_item, start = True, self.at
    self.signs, self.sign_count, self.has_minus_plus = (), 0, False
    node = self.relation()
    count = self.sign_count
    if count > MAX_SIGNS:
      raise NotMath("too many signs")
    if count:
      end, nodes = self.at, []
      choices = itertools.product((1, -1), repeat=count)
      if self.has_minus_plus:
        choices = ((1,) * count, (-1,) * count)
      for self.signs in choices:
        self.at, self.sign_count = start, 0
        nodes.append(self.relation())
      self.at = end
      node = ("list", tuple(nodes), "pm")
    self.in_item = False
    return node

  def relation(self):
    self.skip_function_head()
    operands, operators = [self.label() or self.union()], []
    while self.peek().kind in ("sym", "cmd"):
      operator = _RELATIONS.get(self.peek().value)
      if operator is None:
        break
      self.take()
      operators.append(operator)
      operands.append(self.union())
    if not operators:
      return operands[0]
    return ("rel", tuple(operands), tuple(operators))

  def skip_function_head(self) -> None:
    """`f(x) = ` names a function; what it equals is the answer."""
    kinds = [self.peek(k) for k in range(5)]
    if (
      kinds[0].kind == kinds[2].kind == "word"
      and len(kinds[0].value) == 1
      and len(kinds[2].value) == 1
      and kinds[0].value != kinds[2].value
      and [t.value for t in (kinds[1], *kinds[3:])] == ["(", ")", "="]
    ):
      del self.tokens[self.at + 1 : self.at + 4]

  def label(self):
    """Words before an equals sign: `Area = 15`."""
    ahead = 0
    while self.peek(ahead).kind in ("word", "text") and ahead < 5:
      ahead += 1
    words = [t.value for t in self.tokens[self.at : self.at + ahead]]
    name = " ".join(words).strip()
    if (
      ahead
      and self.peek(ahead)[:2] == ("sym", "=")
      and len(name) > 3
      and (re.fullmatch(r"[A-Za-z ]+", name))
    ):
      self.at += ahead
      return ("var", name)
    return None

  def union(self):
    node = self.sum()
    while self.sees("cup", "setminus", "backslash"):
      self.chained()
      operator = self.take().value
      right = self.sum()
      if operator != "cup":
        node = ("minus", node, right)
      elif node[0] == "union":
        node = ("union", node[1] + (right,))
      else:
        node = ("union", (node, right))
    return node

  # Expressions.

  def sum(self):
    terms = []
    while True:
      sign = 1
      while self.sees("+", "-", "pm", "mp"):
        sign *= self.sign(self.take().value)
      currency = self.currency()
      while currency and self.sees("-"):
        self.take()
        sign = -sign
      term = self.term()
      if currency:
        term = ("unit", term, currency)
      if sign < 0:
        term = (
          ("unit", ("neg", term[1]), term[2])
          if term[0] == "unit"
          else ("neg", term)
        )
      terms.append(term)
      if not self.sees("+", "-", "pm", "mp"):
        break
    if any(t[0] == "unit" for t in terms) and len(terms) > 1:
      raise NotMath("a sum of units")
    node = terms[0] if len(terms) == 1 else ("add", tuple(terms))
    unit = self.unit()
    if unit and node[0] == "unit":
      if unit != node[2]:
        raise NotMath("two units")
      return node
    return ("unit", node, unit) if unit else node

  def sign(self, value: str) -> int:
    if value in "+-":
      return 1 if value == "+" else -1
    self.has_minus_plus |= value == "mp"
    index = self.sign_count
    self.sign_count += 1
    chosen = self.signs[index] if index < len(self.signs) else 1
    return chosen if value == "pm" else -chosen

  def currency(self) -> str | None:
    if self.sees("dollar", "euro", "pounds", "yen"):
      return self.take().value
    return None

  def term(self):
    node = self.factor(first=True)
    while True:
      if self.sees(*_TIMES):
        self.take()
        node = _times(node, self.signed_factor())
      elif self.sees(*_OVER):
        self.take()
        self.chained()
        node = ("div", node, self.signed_factor())
      elif self.sees("bmod"):
        self.take()
        self.chained()
        node = ("call", "mod", (node, self.signed_factor()))
      elif self.peek().kind == "word" and self.peek().value in (
        math_token.SCALES
      ):
        node = _times(node, ("num", math_token.SCALES[self.take().value]))
      elif self.peek().kind == "text" and self.peek().value.strip() in (
        math_token.SCALES
      ):
        node = _times(
          node, ("num", math_token.SCALES[self.take().value.strip()])
        )
      elif self.starts_factor():
        node = _times(node, self.factor(first=False))
      else:
        return node

  def signed_factor(self):
    negative = False
    while self.sees("-", "+"):
      negative ^= self.take().value == "-"
    node = self.factor(first=True)
    return ("neg", node) if negative else node

  def starts_factor(self) -> bool:
    """Whether a factor may follow without a sign of multiplication."""
    kind, value, _ = self.peek()
    if kind == "cmd":
      return (
        value in math_token.FUNCTIONS
        or value in math_token.GREEK
        or (value in _BEGIN)
      )
    if kind == "sym":
      return (
        value in ("(", "{")
        or (value == "[" and not self.in_square)
        or (value == "|" and not self.in_abs)
      )
    return kind in ("word", "text") and self.unit_at() is None

  def factor(self, first: bool):
    start = self.at
    node = self.postfix(self.atom(first))
    if self.sees_sym("^"):
      if self.peek(1)[:2] == ("cmd", "circ") or (
        self.peek(1)[:2] == ("sym", "{") and self.peek(2)[:2] == ("cmd", "circ")
      ):
        if self.in_trig:
          self.degrees()
          return ("mul", (node, ("const", "pi"), ("num", Fraction(1, 180))))
        return node
      self.take()
      node = ("pow", node, self.exponent())
      node = self.postfix(node)
      if self.sees_sym("^"):
        raise NotMath("two exponents")
    if self.at == start:
      raise NotMath("nothing here")
    return node

  def exponent(self):
    self.enter()
    if self.sees_sym("{"):
      node = self.group()
    else:
      negative = self.sees("-") and bool(self.take())
      node = self.postfix(self.atom(first=False, bare=True))
      if self.sees_sym("^"):  # Python's power is right associative.
        self.take()
        node = ("pow", node, self.exponent())
      node = ("neg", node) if negative else node
    self.depth -= 1
    return node

  def postfix(self, node):
    while self.sees_sym("!") or self.sees_sym("'"):
      self.chained()
      if self.take().value == "'":
        raise NotMath("a prime")
      double = self.sees_sym("!") and bool(self.take())
      node = ("call", "factorial2" if double else "factorial", (node,))
    return node


def _times(left, right):
  if left[0] == "mul":
    return ("mul", left[1] + (right,))
  return ("mul", (left, right))


def parse(text: str, thousands: bool = True) -> tuple:
  """Reads a cleaned answer.

  Args:
    text: Output of `math_text.clean`.
    thousands: Whether `1,234` outside brackets is one number, not a list.

  Returns:
    The root node.

  Raises:
    NotMath: The text is outside the grammar, too long or nested too deeply.
  """
  return Parser(math_token.tokenize(text, thousands)).answer()
