"""Rewrites answers into integers: python experiments/integers.py IN OUT.jsonl.

IN is a .jsonl or .parquet file with a problem and an answer column; OUT gets
"problem", "answer" (an integer) and the "original_problem" and
"original_answer". What has no unique form is left out; the reasons are counted.
"""

import argparse
import collections
import contextlib
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
  written = 0
  temporary = Path(f"{args.out}.tmp")
  try:
    columns = [args.problem_column, args.answer_column]
    with temporary.open("w", encoding="utf-8") as file:
      for problem, answer in files.rows(args.source, columns):
        problem, answer = files.text_of(problem), files.text_of(answer)
        try:
          if not problem:
            raise Refused("the problem is empty")
          new = to_integer(problem, answer)
        except Refused as error:
          refused[str(error)] += 1
          continue
        row = {
          "problem": new.problem, "answer": str(new.answer),
          "original_problem": problem, "original_answer": answer,
        }  # fmt: skip
        file.write(json.dumps(row, ensure_ascii=False) + "\n")
        written += 1
    temporary.replace(args.out)
  except (OSError, ValueError) as error:
    with contextlib.suppress(OSError):
      temporary.unlink()
    return refuse(error)
  print(f"{written} problems written to {args.out}; {sum(refused.values())} "
        "left out")  # fmt: skip
  for reason, number in refused.most_common(12):
    print(f"  {number:>6}  {reason}")
  return 0


if __name__ == "__main__":
  sys.exit(main())
