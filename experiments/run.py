"""Trains a config: python experiments/run.py --config=configs/dapo.py.

A variant stands behind the file, `:tiny`, fields behind the config,
`--config.lr=2e-5`. The same command continues an interrupted run.

Exit codes: 0 done, or saved after Ctrl-C or SIGTERM; 2 a mistake to mend, said
in one line; 130 and 143 Ctrl-C and SIGTERM that ended it without saving
(before the first iteration, or a second time).
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
  """Returns the exit code."""
  try:
    if "--help" in argv or "-h" in argv:
      print(f"{__doc__}\n{flags.FLAGS.main_module_help()}")
      return 0
    stray = flags.FLAGS(argv)[1:]
    if stray:
      raise ValueError(
        f"{stray[0]!r} is no flag; fields are given as --config.FIELD=VALUE"
      )
    config = _CONFIG.value
    if config is None:
      raise ValueError("give a config, e.g. --config=configs/dapo.py:tiny")
    name = f"{config.algorithm}-{config.variant}".replace(",", "-")
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
  workdir = Path(_WORKDIR.value or Path("runs") / name)
  try:
    train(config, workdir)
  except UserError as error:
    return _refuse(error)
  except Preempted as stopped:
    print(f"stopped: {stopped}; the same command continues from there.")
  except OSError as error:  # a full disk, a folder taken away
    return _refuse(error)
  except KeyboardInterrupt:
    print("interrupted; the same command continues from the last checkpoint.")
    return 130
  return 0


def _refuse(error: Exception) -> int:
  # The text of a KeyError is a repr; ml_collections hands on whole
  # tracebacks of a config file, whose last line is the message.
  text = str(error.args[0] if isinstance(error, KeyError) else error)
  if "Traceback (most recent call last)" in text:
    text = text.rstrip().splitlines()[-1].partition(": ")[2]
  text = " ".join(text.split())
  print(f"error: {text}", file=sys.stderr)
  return 2


def _use_huge_pages() -> None:
  """Starts over with malloc on huge pages, where glibc offers it.

  On CPU an update spends a fifth of its time on page faults of fresh buffers,
  and the C library reads this setting only when a process starts.
  """
  if sys.platform == "linux" and "GLIBC_TUNABLES" not in os.environ:
    os.environ["GLIBC_TUNABLES"] = "glibc.malloc.hugetlb=1"
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


if __name__ == "__main__":
  _use_huge_pages()
  os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
  code = main(sys.argv)
  if code:
    # Not sys.exit: threads of a library that failed would print on.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
