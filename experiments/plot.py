"""Draws the learning curve of a run: python experiments/plot.py RUN... --out=F.

Every RUN is a workdir with a metrics.jsonl; several are overlaid (seeds).
"""

import argparse
import json
from pathlib import Path
import sys

# Title of a panel -> curves in it: label, key of metrics.jsonl, style.
PANELS = {
  "accuracy": (
    ("sampled, before the filter", "accuracy_before_filter", "-"),
    ("kept groups, after it", "accuracy_after_filter", ":"),
    ("held-out, avg@k", "eval_accuracy", "o-"),
    ("held-out, greedy", "eval_greedy_accuracy", "s--"),
  ),
  "response length (tokens)": (
    ("before the filter", "response_len_before_filter", "-"),
    ("after it", "response_len_after_filter", ":"),
  ),
  "entropy (nats) and clipped share": (
    ("entropy", "entropy", "-"),
    ("clipped high", "clip_frac_high", "--"),
    ("clipped low", "clip_frac_low", ":"),
  ),
}


def read(run: Path) -> list[dict]:
  """Rows of a run's metrics.jsonl."""
  lines = (run / "metrics.jsonl").read_text().splitlines()
  rows = []
  for line in lines:
    try:
      rows.append(json.loads(line))
    except json.JSONDecodeError:  # torn by a kill
      continue
  return rows


def main() -> int:
  """Writes the picture; returns the exit code."""
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument("runs", nargs="+", type=Path)
  parser.add_argument("--out", type=Path, default=Path("curve.png"))
  parser.add_argument("--title", default="")
  args = parser.parse_args()
  try:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot
  except ImportError:
    print("error: plotting needs matplotlib: pip install matplotlib",
          file=sys.stderr)  # fmt: skip
    return 2
  if not args.out.resolve().parent.is_dir():
    print(f"error: no folder {args.out.parent} for the picture",
          file=sys.stderr)  # fmt: skip
    return 2
  missing = [r for r in args.runs if not (r / "metrics.jsonl").exists()]
  if missing:
    print(f"error: no metrics.jsonl in {missing[0]}", file=sys.stderr)
    return 2
  figure, axes = pyplot.subplots(1, len(PANELS), figsize=(13, 3.6))
  for axis, (title, curves) in zip(axes, PANELS.items()):
    for number, (label, key, style) in enumerate(curves):
      for first, run in enumerate(args.runs):
        points = [
          (r["iter"], r[key]) for r in read(run) if r.get(key) is not None
        ]
        if not points:
          continue
        axis.plot(
          *zip(*points), style, color=f"C{number}", markersize=4,
          alpha=0.9 if len(args.runs) == 1 else 0.7,
          label=label if first == 0 else None,
        )  # fmt: skip
    axis.set_title(title, fontsize=10)
    axis.set_xlabel("iteration")
    axis.grid(alpha=0.3)
    axis.legend(fontsize=7)
  axes[0].set_ylim(0, 1.02)
  if args.title:
    figure.suptitle(args.title, fontsize=11)
  figure.tight_layout()
  figure.savefig(args.out, dpi=110)
  print(f"wrote {args.out}")
  return 0


if __name__ == "__main__":
  sys.exit(main())
