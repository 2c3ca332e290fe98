"""Strict integers: the rule for DAPO-Math and AIME, whose answers are such.

An answer is an integer literal; its formatting (delimiters, separators,
leading zeros, `.0`, a unit, `x =`) does not matter, an expression which
evaluates to it does not count.
"""

import re

from dapo_jax.rewards import math_parse, math_text
from dapo_jax.rewards.math_equal import integer
from dapo_jax.rewards.math_sets import settle
from dapo_jax.rewards.math_token import MAX_CHARS, NotMath

_PLAIN = re.compile(
  r"[\s$*]*(?:\\[(\[]\s*)?([+-]?\d{1,400})(?:\.0*)?(?:\s*\\[)\]])?[\s$*.]*",
  re.ASCII,
)


def literal(text: str) -> int | None:
  """The integer which a text writes down, or None."""
  match = _PLAIN.fullmatch(text)
  if match:
    return int(match.group(1))
  plain = integer(text.strip())
  if len(text) > MAX_CHARS:
    return plain
  try:
    node = settle(math_parse.parse(math_text.clean(text)))
  except NotMath:
    return None
  if node[0] == "assign" and node[1][0] == "var":
    node = node[2]
  if node[0] == "unit":
    node = node[1]
  sign = 1
  if node[0] == "neg":
    sign, node = -1, node[1]
  if node[0] in ("num", "dec") and isinstance(node[1], int):
    return sign * node[1]
  return None


def equal(prediction: str, answer: str) -> bool:
  """Whether both texts write down the same integer."""
  gold = literal(answer)
  return gold is not None and literal(prediction) == gold
