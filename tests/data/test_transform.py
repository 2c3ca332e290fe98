"""Answers into integers: the paper's example, each kind, and refusals."""

import math
import re

from hypothesis import given, strategies as st
import pytest

from dapo_jax.data import transform
from dapo_jax.data.transform import Refused, to_integer
from dapo_jax.rewards import is_equivalent

KINDS = {
  "11-2\\sqrt6": ("k-m\\sqrt{n}", 19),  # the paper's appendix A
  "11 - 2√6": ("k-m\\sqrt{n}", 19),
  "\\frac{3}{7}": ("\\frac{m}{n}", 10),
  "-\\frac{6}{14}": ("-\\frac{m}{n}", 10),
  "0.75": ("\\frac{m}{n}", 7),
  "2\\frac12": ("\\frac{m}{n}", 7),
  "\\frac{1+\\sqrt5}{2}": ("\\frac{a+\\sqrt{b}}{c}", 8),
  "\\frac{-3+2\\sqrt{12}}{5}": ("\\frac{-a+b\\sqrt{c}}{d}", 3 + 4 + 3 + 5),
  "\\frac{\\sqrt3}{2}": ("\\frac{\\sqrt{a}}{b}", 5),
  "\\frac{2}{\\sqrt3}": ("\\frac{a\\sqrt{b}}{c}", 2 + 3 + 3),
  "\\sqrt{12}": ("k\\sqrt{m}", 5),
  "\\sqrt2+\\sqrt3": ("\\sqrt{k}+\\sqrt{m}", 5),
  "\\frac{1}{\\sqrt2-1}": ("k+\\sqrt{m}", 3),
  "6\\pi": ("k\\pi", 6),
  "\\frac{5\\pi}{3}": ("\\frac{a\\pi}{b}", 8),
  "3+4i": ("k+mi", 7),
  "x^2+3x-2": ("ax^{2}+bx+c", 2),
  "(x-1)(x+2)": ("ax^{2}+bx+c", 0),
  "x=\\frac{1}{2}": ("\\frac{m}{n}", 3),
  "1+\\frac{\\sqrt5}{2}": ("\\frac{a+\\sqrt{b}}{c}", 9),  # gcd(2, 2) is 2
  "1+\\frac{\\pi}{2}": ("\\frac{a+\\pi}{b}", 4),
  "(3,-4)": ("(m, n)", -1),
}


def check(out, answer):
  """What the question says holds: form, conditions, and what is asked for."""
  value = lambda letter: out.letters[letter]
  in_form = lambda text: re.findall(r"(?<![A-Za-z\\])[a-z](?![a-z]*\{)", text)
  assert out.answer == sum(out.letters.values())
  assert set(in_form(out.form)) - {"i", "x"} == set(out.letters)
  written = re.sub(
    r"(?<![A-Za-z\\])[a-hj-wyz](?![a-z]*\{)",
    lambda m: f"({value(m.group())})", out.form,
  )  # fmt: skip
  assert is_equivalent(f"\\boxed{{{written}}}", answer), (written, answer)
  told, asked = re.search(
    r"\$, where (.*)\. Find \$(.*)\$\.$", out.problem
  ).groups()
  assert asked == "+".join(out.letters)
  for letter in re.findall(r"\$(.)\$ is not divisible by the square", told):
    assert all(value(letter) % (p * p) for p in range(2, 99))
  common = re.search(r"(?:integers?,|and) ([^a-z]*\$.*) have no common", told)
  if "have no common divisor" in told:
    group = re.findall(r"\$(.)\$", common.group(1).rpartition("prime")[2])
    assert math.gcd(*map(value, group)) == 1
  if "positive" in told:
    assert all(v > 0 for v in out.letters.values())


@pytest.mark.parametrize("answer", KINDS)
def test_a_form_and_the_sum_of_its_letters(answer):
  form, total = KINDS[answer]
  out = to_integer("What is it in $x$?", answer)
  assert (out.form, out.answer) == (form, total)
  assert out.problem.startswith("What is it in $x$? The original answer is in")
  check(out, answer)


@pytest.mark.parametrize(
  "answer, value",
  [("42", 42), ("-7", -7), ("1,000", 1000), ("2^{10}", 1024), ("5!", 120),
   ("\\boxed{34}", 34), ("\\frac{8}{2}", 4), ("90^\\circ", 90),
   ("3.0", 3), ("\\sqrt{49}", 7),
   ("(\\sqrt2-1)(\\sqrt2+1)", 1)],
)  # fmt: skip
def test_an_integer_stays_and_so_does_its_question(answer, value):
  assert to_integer("How many?", answer) == ("How many?", value, "", {})


@pytest.mark.parametrize("answer, total", [("{1,2,5}", 8), ("-1, 3", 2),
                                           ("\\pm 2", 0)])  # fmt: skip
def test_of_several_values_the_sum_is_asked_for(answer, total):
  out = to_integer("Which?", answer)
  assert out.answer == total and "sum of all values" in out.problem


@pytest.mark.parametrize(
  "answer",
  ["", "   ", "\\text{yes}", "A", "[0,1]", "(0, \\infty)", "x<3", "e^2", "\\pi",
   "\\sqrt[3]{2}", "\\log 3", "\\sin 1", "\\frac{n(n+1)}{2}", "x+y", "2^x",
   "\\frac{1}{x}", "3 or 5", "(\\frac12, 3)", "1/0", "\\sqrt{-1}", "9^{9^{9}}",
   "\\begin{pmatrix}1\\\\2\\end{pmatrix}", "x=y", "5 cm", "1" * 100_000 + "x",
   "\\sqrt{1+\\sqrt2}", "\\pi^2", "(1,2,3,4,5)", "\\sqrt{x}",
   "__import__('os')", "\\text{(A)}", "(B)", "b", "\\text{II}", "x",
   "\\mathbb{Z}", "y^2+1", "1, 1, 2", "\\emptyset", "2^{20000}",
   "\\frac{1}{2^{200}}"],
)  # fmt: skip
def test_what_has_no_unique_form_is_refused(answer):
  with pytest.raises(Refused) as error:
    to_integer("What of $x$? (A) one (B) two", answer)
  assert "\n" not in str(error.value)


def test_letters_of_the_problem_are_not_used_again():
  out = to_integer(
    "Let $k$ and $n$ be roots of $m(x)$. Find $k$.", "3-2\\sqrt5"
  )
  assert out.form == "p-q\\sqrt{r}" and out.answer == 10
  out = to_integer("Let $f(x)=ax^2+bx-1$.", "\\frac{1+\\sqrt5}{2}")
  assert out.form == "\\frac{c+\\sqrt{d}}{p}"
  out = to_integer("With \\(mn=6\\), a man.", "\\frac12")
  assert out.form == "\\frac{k}{p}"
  everything = " ".join(f"${c}$" for c in transform._ALPHABET)
  with pytest.raises(Refused, match="letter"):
    to_integer(everything, "\\frac{1}{2}")


@given(
  a=st.integers(-50, 50), b=st.integers(-50, 50), n=st.integers(1, 200),
  d=st.integers(1, 30),
)  # fmt: skip
def test_equal_answers_get_equal_integers(a, b, n, d):
  """However (a + b√n) / d is written, the form is the same."""
  written = f"\\frac{{{a}+({b})\\sqrt{{{n}}}}}{{{d}}}"
  parts = (
    f"\\frac{{{3 * b}\\sqrt{{{n}}}}}{{{3 * d}}}+\\frac{{{2 * a}}}{{{2 * d}}}"
  )
  larger = f"\\frac{{{2 * a}+({b})\\sqrt{{{4 * n}}}}}{{{2 * d}}}"
  first = to_integer("What?", written)
  if first.form:
    check(first, written)
  assert first == to_integer("What?", parts) == to_integer("What?", larger)
  root = math.isqrt(n)
  if b == 0 or root * root == n:
    value = a + b * (root if b else 0)
    divisor = math.gcd(value, d)
    if d == divisor:
      assert first.answer == value // d
    else:
      assert first.answer == (abs(value) + d) // divisor
