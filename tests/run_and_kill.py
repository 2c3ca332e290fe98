"""Runs experiments/run.py and sends itself a signal at a chosen moment.

  python run_and_kill.py MOMENT COUNT SIGNAL [arguments of run.py]

The signal comes when MOMENT is reached for the COUNT-th time; 0 never.
"""

import os
from pathlib import Path
import signal
import subprocess
import sys

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
sys.path.insert(0, str(ROOT / "experiments"))


def start(workdir, *args, moment="round", count=0, name="SIGKILL"):
  """One process in the folder of its workdir; it may end by its own hand."""
  return subprocess.run(
    [sys.executable, __file__, moment, str(count), name, *args,
     f"--workdir={workdir}"],
    capture_output=True, text=True, timeout=300, cwd=workdir.parent,
    env=os.environ | {"XLA_FLAGS": "", "GLIBC_TUNABLES": ""},
  )  # fmt: skip


def main():
  """Wraps the function that stands for the moment, then runs."""
  moment, count, name = sys.argv[1], int(sys.argv[2]), sys.argv[3]
  from dapo_jax import checkpoint, metrics, monitor, update

  owner, attribute = {
    "evaluated": (monitor, "of_evaluation"),
    "round": (monitor, "add_tallies"),
    "optimizer_step": (update.packing, "to_rows"),
    "row_written": (metrics.Boards, "write"),  # right behind the row
    "saving": (checkpoint.Checkpoints, "save"),
  }[moment]
  plain, reached = getattr(owner, attribute), 0

  def wrapped(*args, **kwargs):
    nonlocal reached
    out = plain(*args, **kwargs)
    reached += 1
    if reached == count:
      os.kill(os.getpid(), getattr(signal, name))
    return out

  setattr(owner, attribute, wrapped)
  import run

  from dapo_jax import command

  return command.call(run.run, "", ["run.py", *sys.argv[4:]])


if __name__ == "__main__":
  sys.exit(main())
