"""Trains a config: python experiments/run.py --config=configs/dapo.py.

A variant stands behind the file, `:tiny`, fields behind the config,
`--config.lr=2e-5`. The same command continues an interrupted run.

Exit codes: 0 done, or saved after Ctrl-C or SIGTERM; 2 a mistake to mend, said
in one line; 130 and 143 Ctrl-C and SIGTERM that ended it without saving
(before the first iteration, or a second time).
"""

from pathlib import Path
import sys

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from absl import flags

from dapo_jax import command

_WORKDIR = flags.DEFINE_string(
  "workdir", None, "Where the run is written (default: runs/ALGORITHM-VARIANT)."
)


def run(config) -> None:
  """Trains."""
  from dapo_jax.train import train

  train(config, Path(_WORKDIR.value or Path("runs") / command.name_of(config)))


if __name__ == "__main__":
  command.start(run, __doc__)
