"""Rewrites answers into integers: python experiments/integers.py IN OUT.jsonl.

IN is a .jsonl or .parquet file with a problem and an answer column; OUT gets
"problem", "answer" (an integer) and the "original_problem" and
"original_answer". What has no unique form is left out; the reasons are counted.
"""

import argparse
import collections
import json
from pathlib import Path
import sys

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from dapo_jax.command import refuse


def main() -> int:
  """Writes the file; returns the exit code."""
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument("source", metavar="IN", type=Path)
  parser.add_argument("out", metavar="OUT", type=Path)
  parser.add_argument("--problem-column", default="problem")
  parser.add_argument("--answer-column", default="answer")
  args = parser.parse_args()
  from dapo_jax.data import files
  from dapo_jax.data.transform import Refused, to_integer

  refused: collections.Counter = collections.Counter()
  out = []
  try:
    if args.out.suffix != ".jsonl" or args.out.exists():
      raise ValueError(
        f"OUT {args.out} must end in .jsonl and not be there yet; nothing is "
        "written over"
      )
    columns = [args.problem_column, args.answer_column]
    for values in files.rows(args.source, columns):
      problem, answer = map(files.text_of, values)
      try:
        if not problem:
          raise Refused("the problem is empty")
        new = to_integer(problem, answer)
      except Refused as error:
        refused[str(error)] += 1
        continue
      out.append(
        {
          "problem": new.problem,
          "answer": str(new.answer),
          "original_problem": problem,
          "original_answer": answer,
        }  # fmt: skip
      )
    if not out:
      told = ", ".join(f"{n} x {why}" for why, n in refused.most_common(3))
      raise ValueError(
        f"no problem to write: {told or f'{args.source} is empty'}"
      )
    lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in out]
    args.out.write_text("".join(lines), encoding="utf-8")
  except (OSError, ValueError) as error:
    return refuse(error)
  written = len(out)
  print(f"{written} problems written to {args.out}; {sum(refused.values())} "
        "left out")  # fmt: skip
  for reason, number in refused.most_common(12):
    print(f"  {number:>6}  {reason}")
  return 0


if __name__ == "__main__":
  sys.exit(main())
