"""Compares the reward rules: python experiments/verify.py --samples FILE.

FILE is JSON lines with "response" and "answer", such as a run's samples.jsonl
or eval_samples.jsonl. Every response is judged by every rule; the table says
how many each finds right, the lines below where they disagree.
"""

import argparse
import collections
from pathlib import Path
import sys

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from dapo_jax import rewards
from dapo_jax.command import refuse


def read(path: Path) -> list[tuple[str, str]]:
  """(response, answer) of every row.

  Raises:
    ValueError: a row has not both, or there is none.
  """
  from dapo_jax.data import files

  columns = ["response", "answer"]
  out = [(str(r), str(a)) for r, a in files.rows(path, columns)]
  if not out:
    raise ValueError(f"{path} is empty")
  return out


def report(samples: list[tuple[str, str]], examples: int) -> str:
  """The table of the rules, and examples of each disagreement."""
  verdicts = {
    rule: rewards.verify(*zip(*samples), rule=rule) for rule in rewards.RULES
  }
  lines = [f"{len(samples)} responses", ""]
  lines.append(f"{'rule':<10}{'right':>8}{'share':>8}{'no answer':>11}"
               f"{'timeout':>9}{'error':>7}")  # fmt: skip
  for rule, found in verdicts.items():
    right = sum(v.correct for v in found)
    n = rewards.count(found)
    lines.append(
      f"{rule:<10}{right:>8}{right / len(found):>8.3f}{n['no_answer']:>11}"
      f"{n['timeout']:>9}{n['error']:>7}"
    )
  kinds = collections.defaultdict(list)
  for index, row in enumerate(zip(*verdicts.values())):
    for_it = [rule for rule, v in zip(verdicts, row) if v.correct]
    if 0 < len(for_it) < len(verdicts):
      kinds[", ".join(for_it)].append(index)
  if not kinds:
    lines += ["", "The rules agree on every response."]
  for names, found in sorted(kinds.items(), key=lambda kv: -len(kv[1])):
    lines += ["", f"{len(found)} right only by: {names}"]
    for index in found[:examples]:
      response, answer = samples[index]
      seen = "; ".join(
        f"{rule} read {verdicts[rule][index].prediction!r}" for rule in verdicts
      )
      lines.append(f"  line {index + 1}: answer {answer!r}; {seen}")
      lines.append(f"    ...{' '.join(response[-120:].split())}")
  return "\n".join(lines)


def main() -> int:
  """Prints the report; returns the exit code."""
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument("--samples", type=Path, required=True)
  parser.add_argument("--examples", type=int, default=3,
                      help="of each disagreement")  # fmt: skip
  args = parser.parse_args()
  try:
    print(report(read(args.samples), args.examples))
  except (OSError, ValueError, rewards.WorkerError) as error:
    return refuse(error)
  return 0


if __name__ == "__main__":
  sys.exit(main())
