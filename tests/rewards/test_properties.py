"""Properties of the symbolic rule on generated and on hostile input."""

import contextlib
from fractions import Fraction
import time

from hypothesis import HealthCheck, given, settings, strategies as st
import pytest

from dapo_jax import rewards
from dapo_jax.rewards import math_equal
from dapo_jax.rewards.math_answer import find_answer
from dapo_jax.rewards.math_values import NeedsWorker

SETTINGS = settings(
  max_examples=60,
  deadline=None,
  derandomize=True,
  suppress_health_check=list(HealthCheck),
)
DEADLINE_SEC = 1.0
SLACK_SEC = 3.0  # Starting a new worker on a loaded machine.


def same(a: str, b: str) -> bool:
  return math_equal.equal_texts(a, b, heavy=True)


integers = st.integers(-(10**30), 10**30)
fractions = st.builds(Fraction, st.integers(-999, 999), st.integers(1, 99))


def latex(q: Fraction) -> str:
  sign = "-" if q < 0 else ""
  return f"{sign}\\frac{{{abs(q.numerator)}}}{{{q.denominator}}}"


leaves = st.one_of(
  st.integers(1, 99).map(str),
  st.sampled_from(["x", "y", "\\pi", "a_1"]),
  fractions.map(abs).filter(bool).map(latex),
  st.integers(2, 30).map(lambda n: f"\\sqrt{{{n}}}"),
)
expressions = st.recursive(
  leaves,
  lambda e: st.one_of(
    st.tuples(e, e).map("({0[0]}+{0[1]})".format),
    st.tuples(e, e).map("({0[0]}-{0[1]})".format),
    st.tuples(e, e).map("{0[0]} \\cdot {0[1]}".format),
    st.tuples(e, st.integers(2, 3)).map("({0[0]})^{{{0[1]}}}".format),
    e.map("\\left({}\\right)".format),
  ),
  max_leaves=6,
)


@SETTINGS
@given(expressions)
def test_reflexive(e):
  assert same(e, e)


@SETTINGS
@given(expressions, expressions)
def test_symmetric(a, b):
  assert same(a, b) == same(b, a)


@SETTINGS
@given(expressions, st.integers(1, 9))
def test_perturbed_is_never_equal(e, n):
  assert not same(e, f"({e}) + {n}")
  assert not same(e, f"({e}) + \\frac{{1}}{{{10**40 + n}}}")


@SETTINGS
@given(expressions)
def test_formatting_changes_nothing(e):
  assert same(f"$\\displaystyle {e}$", e)
  assert same(e.replace("(", "\\left( ").replace("\\left\\left", "\\left"), e)
  assert rewards.is_equivalent(f"Thus\n\n**Answer:** ${e}$.", e)
  assert rewards.is_equivalent(f"Hence $\\boxed{{{e}}}$, as was asked.", e)


@SETTINGS
@given(integers)
def test_integers(n):
  text = str(n)
  assert same(f"{n:,}", text) and same(f"{n}.0", text)
  assert same(f"{n:,}".replace(",", "{,}"), text)
  assert same(text.replace("-", "\u2212"), text)
  assert not same(str(n + 1), text)
  assert not same(str(-n), text) or n == 0
  assert rewards.verify([f"Answer: {n:,}"], [text], rule="integer")[0].correct


@SETTINGS
@given(fractions)
def test_fractions(q):
  assert same(latex(q), str(q))
  assert same(latex(q).replace("\\frac", "\\dfrac"), str(q))
  assert same(f"{q.numerator * 3}/{q.denominator * 3}", str(q))
  assert not same(latex(q + Fraction(1, 10**9)), str(q))
  whole, rest = divmod(abs(q), 1)
  if whole and rest:
    sign = "-" if q < 0 else ""
    assert same(
      f"{sign}{whole}\\frac{{{rest.numerator}}}{{{rest.denominator}}}", str(q)
    )


@SETTINGS
@given(st.lists(integers, min_size=2, max_size=5, unique=True), st.randoms())
def test_order(values, random):
  shuffled = list(values)
  random.shuffle(shuffled)
  one, other = (", ".join(map(str, v)) for v in (values, shuffled))
  assert same(other, one) and same(f"\\{{{other}\\}}", one)
  assert same(f"({other}, 0)", f"({one}, 0)") == (values == shuffled)
  assert not same(", ".join(map(str, values[1:])), one)


PIECES = st.lists(
  st.one_of(
    st.text(max_size=8),
    st.sampled_from(
      [
        "\\boxed{",
        "}",
        "{",
        "\\frac",
        "^",
        "_",
        "\\sqrt",
        "(",
        ")",
        "[",
        "|",
        "Answer:",
        "$",
        "\\(",
        "\\]",
        "**",
        "9",
        "!",
        ",",
        "\\pm",
        "=",
        "<",
        "x",
        "\\begin{pmatrix}",
        "\\end{pmatrix}",
        "&",
        "\\\\",
        "\\text{",
        "%",
        "\n",
        "\\sum_{k=1}^",
        "<think>",
        "</think>",
        "\\sin",
        "\\infty",
        "\\{",
        "\\}",
        "\\overline",
        "\\log_",
        "e",
        "i",
        "0",
        "/",
        "-",
        "\\cup",
        "\ud800",
      ]
    ),
  ),
  max_size=25,
).map("".join)


@settings(SETTINGS, max_examples=400)
@given(PIECES, PIECES)
def test_any_text_is_decided(response, answer):
  start = time.monotonic()
  for rule in rewards.RULES:
    verdict, _ = rewards.verify(
      [response, f"\\boxed{{{response}}}"], [answer, response], rule=rule
    )
    assert isinstance(verdict.correct, bool)
    assert verdict.status != "error"
  assert time.monotonic() - start < DEADLINE_SEC + SLACK_SEC


@settings(SETTINGS, max_examples=100)
@given(st.binary(max_size=200))
def test_any_bytes_are_decided(data):
  for text in (
    data.decode("latin-1"),
    data.decode("utf-8", "replace"),
    data.decode("utf-8", "surrogateescape"),
  ):
    rewards.verify([text, "\\boxed{" + text + "}"], ["5", text])


HOSTILE = {
  "blanks": "5" + " " * 19_000 + "x",
  "groups": "1" + " 234" * 4900 + "/x",
  "counter": "\u00e9" + "1" * 19_000,
  "polynomial": "+".join(f"(x+{k})^{{150}}" for k in range(300)),
  "fractions of x": "+".join(f"\\frac{{{k}}}{{x+{k}}}" for k in range(999)),
  "roots": "+".join(f"\\sqrt{{{k}}}" for k in range(1500)),
  "many digits": "9" * 6000,
  "tower": "9^{9^{9^9}}",
  "tower in a root": "\\sqrt{9^{9^{9^9}}}",
  "factorial": "(10^{7})!",
  "factorials": "9!!!!!!!!",
  "exp": "e^{e^{e^{e^9}}}",
  "product": "\\prod_{k=1}^{100000000} k",
  "sums": "\\sum_{k=1}^{2999}" * 20 + "k",
  "powers": "\\prod_{k=1}^{2999} k^k",
  "binomial": "\\binom{10^{30}}{10^{29}}",
  "digits": "9" * 100_000,
  "ones": "1+" * 50_000 + "1",
  "depth": "(" * 5000 + "8" + ")" * 5000,
  "braces": "{" * 5000 + "8" + "}" * 5000,
  "fractions": "\\frac{1}" * 5000,
  "minus": "-" * 15_000 + "8",
  "bars": "|" * 15_000,
  "signs": "\\pm 1" * 999,
  "list": "1," * 5000 + "8",
  "division": "1/" * 5000 + "8",
  "primes": "8" + "'" * 9000,
  "big angle": "\\sin(10^{100000})",
  "exponent": "1e999999999999",
  "small": "10^{-10^{10}}",
  "gamma": "(10^9+\\frac12)!",
  "python": "9**9**9**9**9",
  "code": "__import__('os').system('touch PWNED')",
  "lambda": "(lambda: 8)()",
  "open": "open('PWNED','w')",
  "dunder": "().__class__.__bases__[0].__subclasses__()",
  "tex": "\\def\\x{\\x\\x}\\x",
  "input": "\\input{/etc/passwd}",
  "nan": "nan",
  "zero": "\\frac{0}{0}",
  "base": "8_{99999999999}",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile(name, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  text = HOSTILE[name]
  for gold in ("8", "\\sqrt{2}"):
    start = time.monotonic()
    (verdict,) = rewards.verify([f"So $\\boxed{{{text}}}$."], [gold])
    assert time.monotonic() - start < DEADLINE_SEC + SLACK_SEC
    assert not verdict.correct and verdict.status in ("ok", "timeout")
  for rule in ("integer", "paper"):
    (verdict,) = rewards.verify([f"Answer: {text}"], [text], rule=rule)
    assert verdict.status in ("ok", "no_answer")
  for bare in ("10Mo\\frac{0}{0}nday^{5250", "9" * 6000):
    assert rewards.verify([bare], ["\\pi"])[0].status == "ok"
  assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", HOSTILE)
def test_nothing_takes_long_outside_a_worker(name):
  text = HOSTILE[name]
  start = time.process_time()  # the machine may be busy
  for gold in ("8", "\\sqrt{2}", text.replace("1", "3")):
    with contextlib.suppress(NeedsWorker):
      math_equal.equal_texts(text, gold, heavy=False)
  assert time.process_time() - start < DEADLINE_SEC


@pytest.mark.parametrize(
  "piece",
  [
    "\\boxed{",
    "{",
    "}",
    "$ ",
    "answer is ",
    "Answer: ",
    "Answer:\n",
    "* ",
    "\\boxed{1} ",
    "<think>",
    "</think>",
    "#### ",
    "the answer to ",
    ". ",
    "\\",
    "\\boxed ",
    "\u7b54\u6848\uff1a",
    "Answer: $",
    "(because ",
    " ",
    "\n",
  ],
)
def test_extraction_is_linear(piece):
  text = piece * (100_000 // len(piece))
  start = time.monotonic()
  for response in (
    text,
    "Answer: " + text,
    text + "Answer: 5",
    "\u00e9" + text,
  ):
    find_answer(response)
  assert time.monotonic() - start < DEADLINE_SEC + SLACK_SEC
