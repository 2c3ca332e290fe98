"""What a tree states: a value, named values, an equation, a set of numbers.

`settle` turns relations into statements which `math_equal` compares:

  ('assign', name, a)        x = a, where name does not occur in a
  ('equation', a, b)         a = b
  ('chain', operands)        a = b = ... , whose value is the last
  ('approx', a, b)           a, about b
  ('ineq', operands, operators)   with operators <, <= and != only
"""

from fractions import Fraction

from dapo_jax.rewards.math_atoms import INFINITY, REALS
from dapo_jax.rewards.math_exact import Exact, Inexact, TooBig, Undefined

NO_VALUE = (Inexact, TooBig, Undefined)
_FLIP = {">": "<", ">=": "<="}


def variables(node) -> frozenset:
  """Names of the free variables of a tree."""
  if node[0] == "var":
    return frozenset((node[1],))
  if node[0] == "big":
    return (
      (variables(node[5]) - {node[2]})
      | variables(node[3])
      | (variables(node[4]))
    )
  found = frozenset()
  stack = [part for part in node[1:] if isinstance(part, tuple)]
  while stack:
    part = stack.pop()
    if part and isinstance(part[0], str):
      found |= variables(part)
    else:
      stack.extend(p for p in part if isinstance(p, tuple))
  return found


def is_infinite(node) -> int:
  """1 or -1 for an infinity, else 0."""
  if node == INFINITY:
    return 1
  return -is_infinite(node[1]) if node[0] == "neg" else 0


def _is_name(node) -> bool:
  if node[0] == "tuple":
    return all(n[0] == "var" for n in node[1])
  return node[0] == "var"


def settle(node):
  """The statement which a tree makes."""
  kind = node[0]
  if kind == "rel":
    return _relation(node[1], node[2])
  if kind == "list":
    return _list([settle(n) for n in node[1]], node[2])
  if kind == "set":
    return ("set", tuple(_flat(settle(n) for n in node[1])))
  if kind == "tuple":
    return ("tuple", tuple(settle(n) for n in node[1]), node[2])
  if kind == "union":
    return _union([as_set(settle(n)) for n in node[1]])
  if kind == "minus":
    return _minus(as_set(settle(node[1])), as_set(settle(node[2])))
  if kind == "builder":
    return as_set(settle(node[1]))
  return node


def _flat(nodes):
  for node in nodes:
    if node[0] == "list" and node[2] == "pm":
      yield from node[1]
    else:
      yield node


def _relation(operands, operators):
  if operators[-1] == "in":
    return settle(operands[-1])
  if "~" in operators:
    at = operators.index("~")
    left = _relation(operands[: at + 1], operators[:at]) if at else operands[0]
    right = operands[at + 1]
    if left[0] == "var":
      return ("assign", left, right)
    if left[0] == "assign":
      return ("assign", left[1], ("approx", left[2], right))
    return ("approx", left, right)
  if all(o == "=" for o in operators):
    return _equality(operands)
  if all(o in ("<", "<=") for o in operators) or operators == ("!=",):
    return ("ineq", operands, operators)
  if all(o in _FLIP for o in operators):
    return ("ineq", operands[::-1], tuple(_FLIP[o] for o in operators[::-1]))
  return ("rel", operands, operators)


def _equality(operands):
  name, rest = operands[0], operands[1:]
  if not _is_name(name) and len(rest) == 1 and _is_name(rest[0]):
    name, rest = rest[0], (name,)
  if _is_name(name) and not any(variables(name) & variables(r) for r in rest):
    value = settle(rest[0]) if len(rest) == 1 else ("chain", rest)
    return ("assign", name, value)
  if len(rest) == 1:
    return ("equation", operands[0], rest[0])
  return ("chain", operands)


def _stem(name) -> str:
  return name[1].partition("_")[0] if name[0] == "var" else repr(name)


def _list(items, join):
  items = list(_flat(items))
  if join == "pm" and all(i[0] == "set" for i in items):
    return ("set", tuple(n for i in items for n in i[1]))
  if join == "or" and all(is_interval(as_set(i)) for i in items):
    return _union([as_set(i) for i in items])
  if join == "and" and len(items) == 2 and all(i[0] == "ineq" for i in items):
    both = _intersection(*map(as_set, items))
    if both is not None:
      return both
  # x = 1 or 2; x_1 = 1, x_2 = 2; (x, y) = (5, 8) and (8, 5).
  named = [i for i in items if i[0] == "assign"]
  if (
    named
    and items[0][0] == "assign"
    and (len({_stem(i[1]) for i in named}) == 1)
  ):
    values = [i[2] if i[0] == "assign" else i for i in items]
    return (
      "assign",
      ("var", _stem(named[0][1])),
      ("list", tuple(_flat(values)), join),
    )
  return ("list", tuple(items), join)


def is_interval(node) -> bool:
  """Whether a node is a set of reals which is not finite."""
  return node[0] in ("union", "minus") or (
    node[0] == "tuple" and len(node[1]) == 2
  )


def _union(parts):
  flat, points = [], []
  for part in parts:
    if part[0] == "union":
      flat += [p for p in part[1] if p[0] != "set"]
      points += [n for p in part[1] if p[0] == "set" for n in p[1]]
    elif part[0] == "set":
      points += part[1]
    else:
      flat.append(part)
  if points:
    flat.append(("set", tuple(points)))
  return flat[0] if len(flat) == 1 else ("union", tuple(flat))


def _exact(node):
  try:
    return Exact()(node)
  except NO_VALUE:
    return None


def _minus(whole, removed):
  """An open interval without finitely many rational points, as a union."""
  if removed[0] != "set" or whole[0] != "tuple" or whole != REALS:
    return ("minus", whole, removed)
  values = [_exact(n) for n in removed[1]]
  if None in values:
    if len(values) > 1:
      return ("minus", whole, removed)
    points = list(removed[1])
  else:
    points = [("num", v) for v in sorted(set(values))]
  ends = [("neg", INFINITY), *points, INFINITY]
  return _union(
    [("tuple", pair, "()") for pair in zip(ends, ends[1:], strict=False)]
  )


def _intersection(a, b):
  """Of two rays which point at each other, None for anything else."""
  if a[0] != "tuple" or b[0] != "tuple":
    return None
  if is_infinite(a[1][0]):
    a, b = b, a
  if is_infinite(a[1][1]) == 1 and is_infinite(b[1][0]) == -1:
    low, high = _exact(a[1][0]), _exact(b[1][1])
    if low is None or high is None or low < high:
      return ("tuple", (a[1][0], b[1][1]), a[2][0] + b[2][1])
  return None


def as_set(node):
  """The set of reals an inequality in one variable describes, if it is easy.

  Args:
    node: A settled node.

  Returns:
    An interval or a union of intervals, or `node` itself.
  """
  if node[0] != "ineq":
    return node
  operands, operators = node[1], node[2]
  names = variables(("tuple", operands, "()"))
  if len(names) != 1:
    return node
  if operators == ("!=",):
    middle, value = operands
    if variables(value):
      middle, value = value, middle
    if middle[0] != "var" or variables(value):
      return node
    return _minus(REALS, ("set", (value,)))
  low, high = ("neg", INFINITY), INFINITY
  brackets = ["(", ")"]
  if len(operands) == 3:
    low, middle, high = operands
    brackets = [
      "[" if operators[0] == "<=" else "(",
      "]" if operators[1] == "<=" else ")",
    ]
  elif len(operands) == 2 and not variables(operands[1]):
    middle, high = operands
    brackets[1] = "]" if operators[0] == "<=" else ")"
  elif len(operands) == 2 and not variables(operands[0]):
    low, middle = operands
    brackets[0] = "[" if operators[0] == "<=" else "("
  elif len(operands) == 2:
    low = ("num", 0)
    middle = ("add", (operands[1], ("neg", operands[0])))
    brackets[0] = "[" if operators[0] == "<=" else "("
  else:
    return node
  if variables(low) or variables(high):
    return node
  if middle[:2] == ("call", "abs"):
    return _absolute(middle[2][0], low, high, brackets, node)
  return _linear(middle, low, high, brackets) or node


def _absolute(inner, low, high, brackets, node):
  """|u| < c is -c < u < c; |u| > c is the two rays outside."""
  if is_infinite(low):
    mirrored = "[" if brackets[1] == "]" else "("
    return _linear(inner, ("neg", high), high, [mirrored, brackets[1]]) or node
  if not is_infinite(high):
    return node
  mirrored = "]" if brackets[0] == "[" else ")"
  parts = [
    _linear(inner, ("neg", INFINITY), ("neg", low), ["(", mirrored]),
    _linear(inner, low, INFINITY, [brackets[0], ")"]),
  ]
  return (
    node
    if None in parts
    else _union(sorted(parts, key=lambda p: is_infinite(p[1][0])))
  )


def _linear(middle, low, high, brackets):
  """The interval of x when low < a x + b < high, for rational a and b."""
  if middle[0] == "var":
    return ("tuple", (low, high), "".join(brackets))
  (name,) = variables(middle)
  try:
    at = [Exact({name: k})(middle) for k in (0, 1, 2, Fraction(7, 3))]
  except NO_VALUE:
    return None
  slope = at[1] - at[0]
  if (
    slope == 0
    or at[2] - at[1] != slope
    or (at[3] - at[0] != slope * Fraction(7, 3))
  ):
    return None

  def solve(end):
    sign = is_infinite(end)
    if sign:
      return INFINITY if sign * slope > 0 else ("neg", INFINITY)
    return ("div", ("add", (end, ("num", -at[0]))), ("num", slope))

  ends = (solve(low), solve(high))
  if slope < 0:
    ends = ends[::-1]
    brackets = [
      "[" if brackets[1] == "]" else "(",
      "]" if brackets[0] == "[" else ")",
    ]
  return ("tuple", ends, "".join(brackets))
