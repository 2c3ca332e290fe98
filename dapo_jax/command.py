"""What the commands that take a config share: flags, errors, exit codes."""

from collections.abc import Callable
import logging
import os
import re
import sys

from absl import flags
from ml_collections import config_flags

_CONFIG = config_flags.DEFINE_config_file(
  "config", None, "File of the config, e.g. configs/dapo.py:tiny."
)


# How absl tells it.
_BOOL = re.compile(r"\('Non-boolean argument to boolean flag', (.*?)\)")


def start(action: Callable, doc: str) -> None:
  """Runs a command to its end and leaves the process.

  Args:
    action: called with the config; jax may be imported from there on.
    doc: for --help.
  """
  _use_huge_pages()
  os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
  code = call(action, doc, sys.argv)
  if code:
    # Not sys.exit: threads of a library that failed would print on.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def call(action: Callable, doc: str, argv: list[str]) -> int:
  """Runs a command in this process; returns its exit code."""
  try:
    if "--help" in argv or "-h" in argv:
      of = flags.FLAGS
      print(f"{doc}\n{of.module_help(__name__)}\n{of.main_module_help()}")
      return 0
    stray = flags.FLAGS(argv)[1:]
    if stray:
      raise ValueError(
        f"{stray[0]!r} is no flag; fields are given as --config.FIELD=VALUE"
      )
    config = _CONFIG.value
    if config is None:
      raise ValueError("give a config, e.g. --config=configs/dapo.py:tiny")
  except Exception as error:  # absl and ml_collections raise many kinds
    return refuse(error)
  # Only now: jax takes a second to import.
  import jax

  from dapo_jax.config import UserError
  from dapo_jax.data.prompts import cache_dir
  from dapo_jax.rewards import WorkerError
  from dapo_jax.signals import Preempted

  if not jax.config.jax_compilation_cache_dir:
    jax.config.update("jax_compilation_cache_dir", str(cache_dir() / "xla"))
  logging.getLogger("absl").setLevel(logging.ERROR)
  try:
    action(config)
  # A full disk, a folder taken away; a verifier that cannot start.
  except (UserError, OSError, WorkerError) as error:
    return refuse(error)
  except Preempted as stopped:
    print(f"stopped: {stopped}; the same command continues from there.")
  except KeyboardInterrupt:
    print("interrupted; the same command continues from what was saved.")
    return 130
  return 0


def name_of(config) -> str:
  """ALGORITHM-VARIANT, as a run's folder is called."""
  return f"{config.algorithm}-{config.variant}".replace(",", "-")


def refuse(error: Exception) -> int:
  """Says in one line what is wrong; the exit code for it."""
  # The text of a KeyError is a repr; ml_collections hands on whole
  # tracebacks of a config file, whose last line is the message.
  text = str(error.args[0] if isinstance(error, KeyError) else error)
  if "Traceback (most recent call last)" in text:
    text = text.rstrip().splitlines()[-1].partition(": ")[2]
  if isinstance(error, OSError) and error.filename:
    text = f"{error.filename}: {error.strerror}"
  text = " ".join(text.split())
  text = _BOOL.sub(r"\1 is neither True nor False", text)
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
