"""One-step word problems: the task of the `smollm2` variant.

A small chat model half knows them. It can add and multiply numbers as small as
these, but rambles, forgets the answer line or picks the wrong operation. The
one worked example shows an addition, so when to multiply has to be learned
from the reward.

What is held out: the split `test` has number pairs that no training problem
has, and kinds of problem of its own beside the training kinds.
"""

import random

from dapo_jax.data.builder import TextBuilder, source_version
from dapo_jax.data.templates import Template

_EXAMPLE = "4 + 8 = 12\nAnswer: 12"
TEMPLATE = Template(
  (
    ("system", "Solve."),
    ("user", "Tom has 4 pens and buys 8 more. How many pens?"),
    ("assistant", _EXAMPLE),
    ("user", "{problem}"),
  ),
  _EXAMPLE,
  "12",
)

NAMES = ("Ann", "Ben", "Eva", "Leo", "Mia", "Sam")
THINGS = (
  "apples",
  "books",
  "cakes",
  "cards",
  "coins",
  "eggs",
  "nuts",
  "shells",
)

# kind -> (operation, wording, also in training?)
KINDS: dict[str, tuple[str, str, bool]] = {
  "buys": ("+", "{who} has {a} {x} and buys {b} more. How many {x}?", True),
  "finds": ("+", "{who} has {a} {x} and finds {b} more. How many {x}?", True),
  "red": ("+", "{who} has {a} red {x} and {b} blue {x}. How many {x}?", True),
  "boxes": ("*", "{who} has {a} boxes with {b} {x} each. How many {x}?", True),
  "rows": ("*", "{who} has {a} rows of {b} {x}. How many {x}?", True),
  "packs": ("*", "{who} has {a} packs of {b} {x}. How many {x}?", True),
  "gets": ("+", "{who} has {a} {x} and gets {b} more. How many {x}?", False),
  "bags": ("*", "{who} has {a} bags of {b} {x}. How many {x}?", False),
}  # fmt: skip


# Pairs of numbers, whichever way round, that no training problem has.
HELD_OUT = ((2, 4), (3, 3), (4, 5))


def numbers(rng: random.Random, held_out: bool) -> tuple[int, int]:
  """A pair from 2..5, of one side of the fence."""
  while True:
    pair = rng.randint(2, 5), rng.randint(2, 5)
    if (tuple(sorted(pair)) in HELD_OUT) == held_out:
      return pair


class WordProblems(TextBuilder):
  """Splits: `train` and `test`."""

  VERSION = source_version(__file__)
  SIZES = {"train": 1200, "test": 96}

  def _generate_examples(self, split):
    rng = random.Random(split)
    is_test = split == "test"
    kinds = [k for k, (*_, train) in KINDS.items() if train or is_test]
    for number in range(self.SIZES[split]):
      kind = kinds[number % len(kinds)]
      operation, wording, _ = KINDS[kind]
      a, b = numbers(rng, is_test)
      result = a + b if operation == "+" else a * b
      problem = wording.format(
        who=rng.choice(NAMES), a=a, b=b, x=rng.choice(THINGS)
      )
      yield (
        number,
        {
          "problem": problem,
          "answer": str(result),
          "kind": kind,
          "solution": f"{a} {operation} {b} = {result}\nAnswer: {result}",
        },
      )
