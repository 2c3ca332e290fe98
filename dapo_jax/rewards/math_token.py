"""Words and tokens of mathematical text.

A token is `(kind, value, spaced)`: kind is num, word, cmd, text, join, sym or
end, `spaced` says whether white space stands before it.
"""

import re
from typing import NamedTuple

MAX_CHARS = 20_000
MAX_TOKENS = 8_000


class NotMath(ValueError):
  """The text is outside the grammar; it can only equal itself."""


class Token(NamedTuple):
  kind: str
  value: str
  spaced: bool


_TOKEN = re.compile(
  r"""
    (?P<num>(?:\d+(?:\.\d+|\.(?!\.))?|\.\d+)(?:[eE][+-]?\d+(?![\d.]))?)
  | \\(?:text|textbf|textit|textrm|mathrm|mbox|rm|hbox|textnormal)\s*
    \{(?P<text>[^{}]*)\}
  | \\(?P<cmd>[A-Za-z]+\*?|.)
  | (?P<word>[A-Za-z]+)
  | (?P<op><=|>=|!=|:=|==)
  | (?P<sym>.)
  """,
  re.VERBOSE | re.DOTALL,
)
_RUN = re.compile(r"\d+(?:,\d+)+(?![\d])")
_THOUSANDS = re.compile(r"[1-9]\d{0,2}(?:,\d{3})+")

FUNCTIONS = frozenset(
  "sin cos tan cot sec csc arcsin arccos arctan arccot arcsec arccsc asin "
  "acos atan sinh cosh tanh coth sech csch arcsinh arccosh arctanh asinh "
  "acosh atanh exp ln lg log sqrt cbrt gcd lcm max min abs floor ceil "
  "binom".split()
)
GREEK = frozenset(
  "alpha beta gamma delta epsilon varepsilon zeta eta theta vartheta iota "
  "kappa lambda mu nu xi omicron rho varrho sigma varsigma tau upsilon phi "
  "varphi chi psi omega Gamma Delta Theta Lambda Xi Sigma Upsilon Phi Psi "
  "Omega ell hbar".split()
)
JOINS = {
  "and": "and",
  "or": "or",
  "&": "and",
  "lor": "or",
  "vee": "or",
  "land": "and",
  "wedge": "and",
}

SCALES = {
  "hundred": 10**2,
  "thousand": 10**3,
  "million": 10**6,
  "billion": 10**9,
  "trillion": 10**12,
  "dozen": 12,
}


def tokenize(text: str, thousands: bool = True) -> list[Token]:
  """Splits cleaned text into tokens.

  Args:
    text: Output of `math_text.clean`.
    thousands: Whether `1,234` outside brackets is one number.

  Returns:
    The tokens, closed by one of kind end.

  Raises:
    NotMath: The text is too long to be an answer.
  """
  if len(text) > MAX_CHARS:
    raise NotMath("too long")
  tokens, at, depth, spaced = [], 0, 0, False
  while at < len(text):
    char = text[at]
    if char.isspace():
      at, spaced = at + 1, True
      continue
    match = _TOKEN.match(text, at)
    if match is None:
      raise NotMath("a stray backslash")
    kind, value = match.lastgroup, match.group(match.lastgroup)
    end = match.end()
    if kind == "num" and thousands and depth == 0 and char != ".":
      before = tokens[-1].value if tokens else ""
      run = _RUN.match(text, at) if before != "," else None
      if run and _THOUSANDS.fullmatch(run.group()):
        point = re.compile(r"(?:\.\d*)?").match(text, run.end())
        value = run.group().replace(",", "") + point.group()
        end = point.end()
    elif kind == "text":
      if value.strip(" ,").lower() in JOINS:
        kind, value = "join", JOINS[value.strip(" ,").lower()]
      elif not value.strip(" ,"):
        kind, value = "sym", "," if "," in value else " "
    elif kind == "cmd" and value in JOINS and value.isalpha():
      kind, value = "join", JOINS[value]
    elif kind == "word" and value.lower() in JOINS:
      kind, value = "join", JOINS[value.lower()]
    elif kind == "op":
      kind = "sym"
    if (kind, value) != ("sym", " "):
      opens = value in ("(", "[") if kind == "sym" else value == "{"
      closes = value in (")", "]") if kind == "sym" else value == "}"
      if kind in ("sym", "cmd"):
        depth += opens - closes
      tokens.append(Token(kind, value, spaced))
      if len(tokens) > MAX_TOKENS:
        raise NotMath("too long")
    at, spaced = end, False
  tokens.append(Token("end", "", False))
  return tokens
