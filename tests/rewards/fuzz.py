"""Throws mutated answers at every rule: python tests/rewards/fuzz.py.

Each input is made of the texts of the case tables: spliced, repeated, nested,
with bytes and symbols thrown in. A failure is anything raised, a verdict slower
than its deadline allows, or one of status `error`. Prints what it saw; exit
code 1 on a failure.
"""

import argparse
import collections
from pathlib import Path
import random
import sys
import time

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import cases_math
import cases_text
import cases_traps

from dapo_jax import rewards

_PIECES = (
  "\\frac{", "\\sqrt{", "}", "{", "^", "_", "^{9^{9^{9", "!", "\\boxed{", "$",
  "Answer: ", "\\text{", "\\left(", "\\right)", "(", ")", "[", "]", ",", "=",
  "<", "\\pm ", "\\infty", "\\pi", "e", "i", "x", "0", "1", "99999999", "0.1",
  "\\sum_{n=1}^{", "\\log_{", "\\begin{pmatrix}", "&", "\\\\", "\n", "####",
  "<think>", "</think>", "__import__('os')", "\x00", "\ud800", "\u221a", "½",
  "答案", "%", "\\circ", "and", "or", "10^{", "-", "--", "\\cdot", " ",
)  # fmt: skip


def mutated(rng: random.Random, texts: list[str]) -> str:
  """One input."""
  text = rng.choice(texts)
  for _ in range(rng.randint(0, 6)):
    at, cut = sorted(rng.randint(0, len(text)) for _ in range(2))
    kind = rng.random()
    if kind < 0.35:
      text = text[:at] + rng.choice(_PIECES) + text[at:]
    elif kind < 0.55:
      text = text[:at] + text[cut:]
    elif kind < 0.75:
      text = text[:at] + rng.choice(texts)[:80] + text[at:]
    elif kind < 0.85:
      text = text[:at] + text[at:cut] * rng.randint(2, 40) + text[cut:]
    elif kind < 0.95:
      text = text[:at] + chr(rng.randint(0, 0x2FFF)) + text[cut:]
    else:
      text = rng.choice(_PIECES) * rng.randint(1, 3000) + text
  return text[:100_000]


def main() -> int:
  """Runs; returns the exit code."""
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument("--inputs", type=int, default=100_000)
  parser.add_argument("--seed", type=int, default=0)
  args = parser.parse_args()
  cases = [
    case
    for module in (cases_text, cases_math, cases_traps)
    for table in module.BY_KIND.values()
    for case in table
  ]
  golds, texts = [c[0] for c in cases], [t for c in cases for t in c[:2]]
  rng = random.Random(args.seed)
  seen: collections.Counter = collections.Counter()
  failures, slowest = [], 0.0
  for _ in range(args.inputs):
    response, answer = mutated(rng, texts), rng.choice(golds)
    if rng.random() < 0.3:
      answer = mutated(rng, golds)
    for rule in rewards.RULES:
      start = time.perf_counter()
      try:
        (verdict,) = rewards.verify([response], [answer], rule=rule)
      except Exception as error:  # this is what is looked for
        failures.append((rule, repr(error), response[:200], answer[:200]))
        continue
      spent = time.perf_counter() - start
      slowest = max(slowest, spent)
      seen[rule, verdict.status, verdict.correct] += 1
      # A worker that is started anew takes a while on a loaded machine.
      if spent > rewards.TIMEOUT_SEC + 3 or verdict.status == "error":
        failures.append((rule, f"{verdict.status} {spent:.2f} s",
                         response[:200], answer[:200]))  # fmt: skip
  for (rule, status, correct), number in sorted(seen.items()):
    print(f"{rule:<10}{status:<11}{'right' if correct else 'wrong':<7}{number}")
  print(f"{args.inputs} inputs x {len(rewards.RULES)} rules, slowest verdict "
        f"{slowest:.2f} s, {len(failures)} failures")  # fmt: skip
  for failure in failures[:10]:
    print(*map(repr, failure))
  return 1 if failures else 0


if __name__ == "__main__":
  sys.exit(main())
