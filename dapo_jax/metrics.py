"""Where numbers go: metrics.jsonl, TensorBoard, a progress bar; and clocks."""

from collections.abc import Iterator
import contextlib
import json
from pathlib import Path
import resource
import sys
import time
from typing import Any
import zlib

import jax
import numpy as np

# Keys with these endings are times, rates and sizes; all others are
# deterministic and survive a resume bit by bit.
MEASURED_SUFFIXES = ("_sec", "_per_sec", "_bytes")


class Phases:
  """Times the phases of a loop, and catches what is compiled twice."""

  _COMPILED = "/jax/core/compile/backend_compile_duration"
  _PREFIX = "/jax/core/compile/"  # tracing, lowering, the backend's work

  def __init__(self):
    self.compile_sec = 0.0
    self._compilations = 0
    self._recompilations = 0
    self._seconds: dict[str, float] = {}
    self._seen: set[str] = set()
    jax.monitoring.register_event_duration_secs_listener(self._listen)

  def _listen(self, event: str, seconds: float, **_) -> None:
    self._compilations += event == self._COMPILED
    self.compile_sec += seconds if event.startswith(self._PREFIX) else 0.0

  @contextlib.contextmanager
  def __call__(self, name: str) -> Iterator[None]:
    """Everything inside belongs to the phase."""
    start, compiled = time.perf_counter(), self._compilations
    try:
      yield
    finally:
      spent = time.perf_counter() - start
      self._seconds[name] = self._seconds.get(name, 0.0) + spent
      # A phase may compile the first time that this process runs it.
      if name in self._seen:
        self._recompilations += self._compilations - compiled
      self._seen.add(name)

  def take(self) -> tuple[dict[str, float], int]:
    """{phase}_sec of every phase and recompilations, since the last call."""
    seconds = {f"{name}_sec": s for name, s in self._seconds.items()}
    recompilations, self._recompilations = self._recompilations, 0
    self._seconds = {}
    return seconds, recompilations

  def close(self) -> None:
    """Stops listening."""
    jax.monitoring.unregister_event_duration_listener(self._listen)


def plain(value: Any) -> Any:
  """Arrays and numpy scalars -> JSON values; floats keep all their bits."""
  if isinstance(value, dict):
    return {k: plain(v) for k, v in value.items()}
  if isinstance(value, (list, tuple)):
    return [plain(v) for v in value]
  if isinstance(value, (np.ndarray, np.generic, jax.Array)):
    return plain(np.asarray(value).tolist())
  if isinstance(value, float) and not np.isfinite(value):
    return None  # JSON has no word for it
  return value


def write_json(path: Path, value: Any) -> None:
  """Writes a JSON file whole or not at all."""
  temporary = path.with_name(path.name + ".tmp")
  temporary.write_text(json.dumps(plain(value), indent=2) + "\n")
  temporary.replace(path)


def read_rows(path: Path) -> Iterator[dict]:
  """Rows of a file of JSON lines, each with its `iter`; no file is no rows.

  Raises:
    ValueError: a line is damaged. The last one may be torn, by a kill.
  """
  lines = path.read_bytes().splitlines() if path.exists() else []
  for number, line in enumerate(lines, 1):
    try:
      row = json.loads(line)
      row["iter"] + 0
    except (ValueError, TypeError, KeyError) as error:
      if number == len(lines):
        return
      raise ValueError(
        f"{path} is damaged in line {number}; restore the file, or give "
        "another --workdir"
      ) from error
    yield row


class JsonLines:
  """A file of one JSON object a line, each with its `iter`.

  Opened at an iteration, it forgets the rows of that iteration and later: a
  resumed run writes them again. A line cut off by a kill is forgotten too.
  """

  def __init__(self, path: Path, first_iter: int):
    self._path = path
    temporary = path.with_name(path.name + ".tmp")
    with temporary.open("w") as file:
      for row in read_rows(path):
        if row["iter"] < first_iter:
          file.write(json.dumps(row) + "\n")
    temporary.replace(path)
    self._file = path.open("a")

  def read(self) -> list[dict]:
    """All rows, those of earlier processes too."""
    return list(read_rows(self._path))

  def write(self, row: dict) -> None:
    """Appends a row and hands it to the operating system."""
    self._file.write(json.dumps(plain(row)) + "\n")
    self._file.flush()

  def close(self) -> None:
    """Closes the file."""
    self._file.close()


class Boards:
  """TensorBoard, and Weights & Biases where it is asked for."""

  def __init__(
    self, workdir: Path, config: dict, first_iter: int, wandb: bool,
    name: str = "",
  ):  # fmt: skip
    # Slow to import, and only runs need it.
    from tensorboardX import SummaryWriter

    self._tensorboard = SummaryWriter(
      str(workdir / "tensorboard" / name), purge_step=first_iter
    )
    self._wandb = None
    if wandb:
      import wandb as wandb_lib

      path = str(workdir.resolve())
      self._wandb = wandb_lib.init(
        project="dapo_jax", dir=str(workdir), config=config, resume="allow",
        id=f"{workdir.resolve().name}-{zlib.crc32(path.encode()):08x}",
      )  # fmt: skip

  def write(self, step: int, row: dict) -> None:
    """Writes the scalars of a row."""
    scalars = {k: v for k, v in plain(row).items() if np.isscalar(v)}
    for name, value in scalars.items():
      self._tensorboard.add_scalar(name, value, step)
    self._tensorboard.flush()
    if self._wandb:
      self._wandb.log(scalars, step=step)

  def close(self) -> None:
    """Closes the writers."""
    self._tensorboard.close()
    if self._wandb:
      self._wandb.finish()


def peak_bytes() -> int:
  """Most memory held so far: of a device where it tells, else the process."""
  stats = jax.local_devices()[0].memory_stats() or {}
  if "peak_bytes_in_use" in stats:
    return int(stats["peak_bytes_in_use"])
  peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
  return peak if sys.platform == "darwin" else peak * 1024  # there in bytes
