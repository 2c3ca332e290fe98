"""Trains a config: python experiments/run.py --config=configs/dapo.py.

A variant stands behind the file, `:tiny`, fields behind the config,
`--config.lr=2e-5`. The same command continues an interrupted run.
"""

import logging
import os
from pathlib import Path
import sys

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from absl import flags
from ml_collections import config_flags

_CONFIG = config_flags.DEFINE_config_file(
  "config", None, "File of the config, e.g. configs/dapo.py:tiny."
)
_WORKDIR = flags.DEFINE_string(
  "workdir", None, "Where the run is written (default: runs/ALGORITHM-VARIANT)."
)


def main(argv: list[str]) -> int:
  """Returns the exit code: 0 done or saved, 2 a mistake of the user's."""
  try:
    flags.FLAGS(argv)
    config = _CONFIG.value
    if config is None:
      raise ValueError("give a config, e.g. --config=configs/dapo.py:tiny")
  except Exception as error:  # absl and ml_collections raise many kinds
    return _refuse(error)
  # Only now: jax takes a second to import.
  import jax

  from dapo_jax.config import UserError
  from dapo_jax.data.prompts import cache_dir
  from dapo_jax.train import Preempted, train

  if not jax.config.jax_compilation_cache_dir:
    jax.config.update("jax_compilation_cache_dir", str(cache_dir() / "xla"))
  logging.getLogger("absl").setLevel(logging.ERROR)
  name = f"{config.algorithm}-{config.variant}".replace(",", "-")
  workdir = Path(_WORKDIR.value or Path("runs") / name)
  try:
    train(config, workdir)
  except UserError as error:
    return _refuse(error)
  except Preempted as stopped:
    print(f"SIGTERM: {stopped}; the same command continues from there.")
  except KeyboardInterrupt:
    print("interrupted; the same command continues from the last checkpoint.")
    return 130
  return 0


def _refuse(error: Exception) -> int:
  text = " ".join(str(error).split())
  print(f"error: {text}", file=sys.stderr)
  return 2


if __name__ == "__main__":
  os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
  sys.exit(main(sys.argv))
