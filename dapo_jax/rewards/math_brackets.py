"""A cursor over the tokens of an answer, and the brackets it meets.

The lowest part of the grammar; `math_atoms` and `math_parse` build on it.
"""

from dapo_jax.rewards.math_token import NotMath, Token

MAX_DEPTH = 40
MAX_CHAIN = 60  # A tree's depth is at most a few times the sum of both.

_ENVIRONMENTS = frozenset(
  ("matrix", "pmatrix", "bmatrix", "Bmatrix", "smallmatrix", "array")
)


class Brackets:
  """The state of one pass, its look-ahead and everything that encloses."""

  def __init__(self, tokens: list[Token]):
    self.tokens = tokens
    self.at = 0
    self.depth = 0
    self.chain = 0
    self.in_abs = False
    self.in_trig = False
    self.in_item = False
    self.in_square = False
    self.signs: tuple[int, ...] = ()
    self.sign_count = 0
    self.has_minus_plus = False

  # Tokens.

  def peek(self, ahead: int = 0) -> Token:
    return self.tokens[min(self.at + ahead, len(self.tokens) - 1)]

  def sees(self, *values: str) -> bool:
    token = self.peek()
    return token.kind in ("sym", "cmd") and token.value in values

  def sees_sym(self, value: str) -> bool:
    return self.peek()[:2] == ("sym", value)

  def take(self) -> Token:
    token = self.peek()
    self.at += 1
    return token

  def expect(self, kind: str, value: str) -> None:
    if self.take()[:2] != (kind, value):
      raise NotMath(f"expected {value}")

  def split_first(self) -> None:
    """Makes the first character of the current token a token of its own."""
    token = self.peek()
    if len(token.value) > 1:
      self.tokens[self.at : self.at + 1] = [
        Token(token.kind, token.value[0], token.spaced),
        Token(token.kind, token.value[1:], False),
      ]

  def chained(self) -> None:
    """Counts what nests to the left without brackets: a/b/c, 5!!!."""
    self.chain += 1
    if self.chain > MAX_CHAIN:
      raise NotMath("too long a chain")

  def enter(self) -> None:
    self.depth += 1
    if self.depth > MAX_DEPTH:
      raise NotMath("nested too deeply")

  def subscript(self) -> str:
    if not self.sees_sym("{"):
      if self.peek().kind == "word":
        self.split_first()
      if self.peek().kind not in ("word", "num", "cmd", "text"):
        raise NotMath("a subscript")
      return self.take().value
    self.take()
    name = ""
    while not self.sees_sym("}"):
      if self.peek().kind == "end":
        raise NotMath("an open subscript")
      name += self.take().value
    self.take()
    return name

  def inner(self, parse, square: bool = False):
    """Runs `parse` inside a bracket, where bars and squares begin anew."""
    self.enter()
    outer = self.in_abs, self.in_square
    self.in_abs, self.in_square = False, square
    node = parse()
    self.in_abs, self.in_square = outer
    self.depth -= 1
    return node

  def group(self):
    """`{...}`, with TeX's infix `\\over` and `\\choose`."""
    self.expect("sym", "{")
    node = self.inner(self.union)
    if self.sees("over", "choose"):
      over = self.take().value == "over"
      right = self.inner(self.union)
      node = ("div", node, right) if over else ("call", "binom", (node, right))
    elif self.sees_sym(","):
      items = [node]
      while self.sees_sym(","):
        self.take()
        items.append(self.inner(self.union))
      node = ("set", tuple(items))
    self.expect("sym", "}")
    return node

  def bracket(self):
    opening = self.take().value
    square = opening != "("
    items = [self.inner(self.item, square)]
    while self.sees_sym(",") or self.sees_sym(";"):
      self.take()
      if len(items) == 1 and self.sees_sym(")") and opening == "(":
        break  # Python's one-tuple.
      items.append(self.inner(self.item, square))
    token = self.take()
    if token.kind != "sym" or token.value not in (
      (")", "]") if not square else (")", "]", "[")
    ):
      raise NotMath("an open bracket")
    # ]a, b[ is the French open interval.
    brackets = ("[" if opening == "[" else "(") + (
      "]" if token.value == "]" else ")"
    )
    if len(items) > 1:
      return ("tuple", tuple(items), brackets)
    if brackets not in ("()", "[]") or items[0][0] == "rel":
      raise NotMath("a bracket around one thing")
    return items[0]

  def bracket_items(self, brackets: str, close: tuple[str, str]):
    items = [self.inner(self.item)]
    while self.sees_sym(","):
      self.take()
      items.append(self.inner(self.item))
    self.expect(*close)
    return ("tuple", tuple(items), brackets)

  def set(self):
    if self.peek()[:2] == ("cmd", "}"):
      self.take()
      return ("set", ())
    if (
      self.peek().kind == "word"
      and len(self.peek().value) == 1
      and (self.peek(1).value in ("|", "mid", ":", "in"))
    ):
      while not self.sees("|", "mid", ":"):
        if self.take().kind == "end":
          raise NotMath("an open set")
      self.take()
      node = ("builder", self.inner(self.items))
    else:
      items = [self.inner(self.item)]
      while self.sees_sym(",") or self.sees_sym(";"):
        self.take()
        items.append(self.inner(self.item))
      node = ("set", tuple(items))
    self.expect("cmd", "}")
    return node

  def fenced(self, close: str, name: str):
    node = self.inner(self.union)
    self.expect("cmd", close)
    return ("call", name, (node,))

  def absolute(self):
    self.enter()
    self.take()
    outer, self.in_abs = self.in_abs, True
    node = self.union()
    self.in_abs = outer
    self.expect("sym", "|")
    self.depth -= 1
    return ("call", "abs", (node,))

  def matrix(self):
    name = self.subscript()
    if name not in _ENVIRONMENTS:
      raise NotMath("an environment")
    if name == "array" and self.sees_sym("{"):
      self.subscript()
    rows, row = [], []
    while True:
      row.append(self.inner(self.union))
      token = self.take()
      if token[:2] == ("sym", "&"):
        continue
      if token[:2] == ("cmd", "\\"):
        rows.append(tuple(row))
        row = []
        if not self.sees("end"):
          continue
        token = self.take()
      if token[:2] != ("cmd", "end") or self.subscript() != name:
        raise NotMath("an open matrix")
      break
    if row:
      rows.append(tuple(row))
    if len({len(r) for r in rows}) != 1:
      raise NotMath("a ragged matrix")
    return ("matrix", tuple(rows))
