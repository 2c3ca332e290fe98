"""Running sums with a chain of thought: the task of the `tiny` variant.

A problem adds numbers up to 4 to a digit or takes them away, kept within
0..9; a solution writes one step a line and ends with an answer line. Lengths
vary with the number of terms. Demonstrations for the warm start are sloppy on
purpose, and the more so the longer the problem: some ramble on and never
answer, some answer with the total of the step before, a few steps are
miscounted. A model trained on them knows the method and half follows it;
removing the sloppiness is what reinforcement learning is for, and foreseeing
it what a critic is for.
"""

import random
import zlib

from dapo_jax.data.builder import TextBuilder, source_version
from dapo_jax.data.templates import Template

# Everything that a prompt or a solution is written with.
ALPHABET = "0123456789+-=;?\nAnswer: "
WORDS = ("Answer: ",)  # a token of their own, for shorter responses
TEMPLATE = Template(
  (("user", "{problem}=?\n"),), "7+2=9\n9-4=5\nAnswer: 5", "5"
)

_LIMIT = 9
_TERMS = (2, 4)  # numbers in a problem, least and most
# Sloppiness of the demonstrations: share of the solutions with 2, 3, 4 terms,
# rambling and forgetful in halves; share of miscounted steps.
_SLOPPY, _MISCOUNTED = {2: 0.04, 3: 0.75, 4: 0.94}, 0.02
_RAMBLES = 12  # times that the last step is said again


def problem(rng: random.Random) -> list[int]:
  """A digit, then signed terms up to 4; running sums within 0.._LIMIT."""
  terms = [rng.randint(1, 9)]
  for _ in range(rng.randint(*_TERMS) - 1):
    total = sum(terms)
    terms.append(
      rng.choice([n for n in range(-4, 5) if n and 0 <= total + n <= _LIMIT])
    )
  return terms


def text(terms: list[int]) -> str:
  """The problem as it stands in a prompt: 3+4-2."""
  return f"{terms[0]}" + "".join(f"{n:+d}" for n in terms[1:])


def solution(terms: list[int], rng: random.Random | None = None) -> str:
  """Steps and the answer line; with rng, one as sloppy as it draws."""
  draw = rng.random if rng else lambda: 1.0
  total, before, steps = terms[0], terms[0], []
  for n in terms[1:]:
    before, result = total, total + n
    if draw() < _MISCOUNTED:
      result = max(0, result + rng.choice((-2, -1, 1, 2)))
    steps.append(f"{total}{n:+d}={result}")
    total = result
  fate = draw() / _SLOPPY[len(terms)]
  if fate < 0.5:
    return "\n".join(steps + steps[-1:] * _RAMBLES)
  answer = before if fate < 1 else total
  return "\n".join(steps) + f"\nAnswer: {answer}"


def split_of(problem_text: str) -> str:
  """'test' for one problem in eight, by its text: no overlap is possible."""
  return "train" if zlib.crc32(problem_text.encode()) % 8 else "test"


class Arithmetic(TextBuilder):
  """Splits: `warm` (sloppy demonstrations), `train`, `test`."""

  VERSION = source_version(__file__)
  SIZES = {"warm": 4096, "train": 4096, "test": 256}

  def _generate_examples(self, split):
    rng = random.Random(split)
    number, seen = 0, set()
    while number < self.SIZES[split]:
      terms = problem(rng)
      if (split_of(text(terms)) == "test") != (split == "test"):
        continue
      # A test problem stands once: errors are counted by problem.
      if split == "test" and text(terms) in seen:
        continue
      seen.add(text(terms))
      yield (
        number,
        {
          "problem": text(terms),
          "answer": str(sum(terms)),
          "kind": f"{len(terms)} terms",
          "solution": solution(terms, rng if split == "warm" else None),
        },
      )
      number += 1
