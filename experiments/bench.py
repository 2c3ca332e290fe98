"""Measures speed against floors of the same run: python experiments/bench.py.

Prints a table and, with --out, writes it as JSON. Parts so far:

  verifier  verdicts a second of every rule on plain integer answers, against
            the floor of finding the last "Answer:" and comparing strings; and
            the symbolic rule's time on --cases (JSON lines with "response" and
            "gold"), default: a list of expressions of many kinds.
"""

import argparse
import json
from pathlib import Path
import random
import statistics
import sys
import time

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from dapo_jax import rewards
from dapo_jax.command import refuse

# (response, gold): what the symbolic rule meets, right and wrong.
_EXPRESSIONS = (
  ("\\boxed{\\frac{1}{2}}", "0.5"), ("Answer: 11-2\\sqrt6", "11 - 2\\sqrt{6}"),
  ("\\boxed{(3, \\frac{\\pi}{2})}", "(3, \\pi/2)"),
  ("\\boxed{x^2+2x+1}", "(x+1)^2"), ("\\boxed{[0,1)}", "[0,1]"),
  ("\\boxed{\\frac{\\sqrt3}{3}}", "\\frac{1}{\\sqrt{3}}"),
  ("\\boxed{2^{10}}", "1024"), ("\\boxed{\\{1,2,3\\}}", "{3,2,1}"),
  ("\\boxed{\\sin 30^\\circ}", "1/2"), ("\\boxed{\\log_2 8}", "3"),
  ("\\boxed{\\begin{pmatrix}1\\\\2\\end{pmatrix}}",
   "\\begin{pmatrix}1\\\\2\\end{pmatrix}"),
  ("\\boxed{3+4i}", "4i+3"), ("\\boxed{x=5}", "5"), ("\\boxed{50\\%}", "50"),
  ("\\boxed{9^{9^{9}}}", "7"), ("\\boxed{\\text{no}}", "yes"),
)  # fmt: skip


def _per_second(run, number: int) -> float:
  """Items a second, the best of three."""
  best = 0.0
  for _ in range(3):
    start = time.perf_counter()
    run()
    best = max(best, number / (time.perf_counter() - start))
  return best


def verifier(cases: list[tuple[str, str]]) -> dict[str, float]:
  """Figures of the verifier."""
  rng = random.Random(0)
  number = 20_000
  golds = [str(rng.randint(-999, 9999)) for _ in range(number)]
  filler = "The sum is found step by step, and the total follows. " * 8
  responses = [
    f"{filler}\nAnswer: {gold if rng.random() < 0.5 else rng.randint(0, 99)}"
    for gold in golds
  ]

  def floor():
    for response, gold in zip(responses, golds):
      response.rpartition("Answer:")[2].strip() == gold  # noqa: B015

  out = {"floor_per_sec": _per_second(floor, number)}
  for rule in rewards.RULES:
    speed = _per_second(
      lambda: rewards.verify(responses, golds, rule=rule), number
    )
    out[f"{rule}_integers_per_sec"] = speed
    out[f"{rule}_of_floor"] = speed / out["floor_per_sec"]
  rewards.verify(["\\boxed{\\log_2 8}"], ["3"])  # starts a worker
  seconds = []
  for response, gold in cases:
    start = time.perf_counter()
    rewards.verify([response], [gold])
    seconds.append(time.perf_counter() - start)
  out["symbolic_cases"] = len(cases)
  out["symbolic_median_ms"] = 1000 * statistics.median(seconds)
  out["symbolic_slowest_ms"] = 1000 * max(seconds)
  start = time.perf_counter()
  rewards.verify(*zip(*cases))
  out["symbolic_all_at_once_sec"] = time.perf_counter() - start
  return out


def main() -> int:
  """Measures, prints; returns the exit code."""
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  parser.add_argument("--cases", type=Path)
  parser.add_argument("--out", type=Path)
  args = parser.parse_args()
  cases = list(_EXPRESSIONS)
  try:
    if args.cases:
      lines = args.cases.read_text(encoding="utf-8").splitlines()
      rows = [json.loads(line) for line in lines if line.strip()]
      cases = [(row["response"], row["gold"]) for row in rows]
    found = {"verifier": verifier(cases)}
    for part, figures in found.items():
      for name, value in figures.items():
        print(f"{part}  {name:<28}{value:>14,.3f}")
    if args.out:
      args.out.write_text(json.dumps(found, indent=2) + "\n")
  except (
    OSError,
    ValueError,
    TypeError,
    KeyError,
    rewards.WorkerError,
  ) as error:
    return refuse(error)
  return 0


if __name__ == "__main__":
  sys.exit(main())
