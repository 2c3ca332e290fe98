"""Problems out of a file: JSON lines or parquet, two columns, each once.

Known files and what gets them are rows of FILES; any other file is the data
set `file` with two named columns. Published files repeat their problems, about
100 times (DAPO-Math-17k, an accident that its authors confirmed) and 32 times
(AIME 2024, on purpose): each problem is kept once, and the repeats are counted.
"""

from collections.abc import Iterator
import decimal
import hashlib
import json
import math
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import tensorflow_datasets as tfds

from dapo_jax.data import transform
from dapo_jax.data.builder import TextBuilder, source_version

# Why a row is not among the problems, as the start of a run counts them.
REPEATED, CONTRADICTORY = "repeated", "copies with different answers"
EMPTY, NO_INTEGER = "empty", "no unique integer form"


class FileSet(NamedTuple):
  """A published file of problems.

  Attributes:
    file: what it is called.
    command: what gets it.
    problem: its column; dots lead into nested values, and of a list of
      messages the last one's content counts.
    answer: its column.
    template: a key of templates.TEMPLATES.
    behind: the answer stands behind the last of these, "" = is all of it.
  """

  file: str
  command: str
  problem: str
  answer: str
  template: str
  behind: str = ""


def _hub(name: str, file: str) -> str:
  return f"hf download {name} {file} --repo-type dataset --local-dir ."


FILES: dict[str, FileSet] = {
  # Prompts of both files ask for the "Answer:" line themselves.
  "dapo_math": FileSet(
    "data/dapo-math-17k.parquet",
    _hub("BytedTsinghua-SIA/DAPO-Math-17k", "data/dapo-math-17k.parquet"),
    "prompt", "reward_model.ground_truth", "plain",
  ),
  "aime2024": FileSet(
    "data/aime-2024.parquet",
    _hub("BytedTsinghua-SIA/AIME-2024", "data/aime-2024.parquet"),
    "prompt", "reward_model.ground_truth", "plain",
  ),
  "aime2025": FileSet(
    "test.jsonl", _hub("math-ai/aime25", "test.jsonl"), "problem", "answer",
    "answer_line",
  ),
  "math500": FileSet(
    "test.jsonl", _hub("HuggingFaceH4/MATH-500", "test.jsonl"), "problem",
    "answer", "boxed",
  ),
  "gsm8k": FileSet(
    "",  # of two: main/train-00000-of-00001.parquet, main/test-...
    _hub("openai/gsm8k", "--include 'main/*'"), "question", "answer",
    "answer_line", "####",
  ),
  "file": FileSet("", "", "problem", "answer", "answer_line"),
}  # fmt: skip


SPLIT = "file"


def configure(source) -> "FileConfig":
  """What the builder needs to know of a `prompts.Source`.

  Raises:
    FileNotFoundError: the file is not there; with the command that gets it.
  """
  spec = FILES[source.name]
  spec = spec._replace(
    problem=source.problem_column or spec.problem,
    answer=source.answer_column or spec.answer,
  )
  wanted = spec.file or "a .jsonl or .parquet file with two columns"
  remedy = f"; get it with `{spec.command}`" if spec.command else ""
  if not source.path:
    raise FileNotFoundError(
      f"data set {source.name!r} is read from {wanted}{remedy}, and give its "
      "path: --config.data.path=FILE (--config.eval_data.path for evaluation)"
    )
  given = Path(source.path).expanduser()
  tried = [given, given / spec.file, given / Path(spec.file).name]
  found = next((p for p in tried if p.is_file()), None)
  if found is None:
    what = "is a folder without the file" if given.is_dir() else "is not there"
    raise FileNotFoundError(
      f"data set {source.name!r}: {given} {what}{remedy}; the path wanted is "
      f"that of {wanted}"
    )
  return FileConfig(found, spec, source.integers)


def fingerprint(path: Path) -> str:
  """Of the bytes of a file; seconds for a gigabyte."""
  with path.open("rb") as file:
    return hashlib.file_digest(file, "sha256").hexdigest()[:16]


def rows(path: Path, columns: list[str]) -> Iterator[list[Any]]:
  """The values of columns, row by row, of JSON lines or parquet.

  Raises:
    ValueError: it is neither, a line is damaged, or a column is missing; with
      the columns that are there.
  """
  if path.suffix in (".jsonl", ".json", ".ndjson"):
    yield from _json_rows(path, columns)
    return
  if path.suffix != ".parquet":
    raise ValueError(
      f"{path} ends in {path.suffix or 'nothing'!r}: give a .jsonl or .parquet "
      "file"
    )
  try:
    file = pq.ParquetFile(path)
  except (pa.ArrowException, OSError) as error:
    raise ValueError(f"{path} is no parquet file: {error}") from error
  tops = list(dict.fromkeys(c.partition(".")[0] for c in columns))
  there = file.schema_arrow.names
  if missing := [c for c in tops if c not in there]:
    raise ValueError(_no_column(path, missing[0], there))
  for batch in file.iter_batches(columns=tops):
    for row in batch.to_pylist():
      yield [_value(row, c, path) for c in columns]


def _json_rows(path: Path, columns):
  with path.open("rb") as file:
    for number, line in enumerate(file, 1):
      if not line.strip():
        continue
      try:
        row = json.loads(line)
      except ValueError as error:  # bad JSON, or bad UTF-8
        raise ValueError(
          f"{path} line {number} is no JSON object ({error}); one object a "
          "line is wanted"
        ) from error
      if not isinstance(row, dict):
        raise ValueError(f"{path} line {number} is no JSON object")
      yield [_value(row, c, path) for c in columns]


def _value(row: dict, column: str, path: Path) -> Any:
  value: Any = row
  for name in column.split("."):
    if value is None:
      return None
    if not isinstance(value, dict) or name not in value:
      there = value if isinstance(value, dict) else {}
      raise ValueError(_no_column(path, column, there))
    value = value[name]
  if isinstance(value, list) and value and isinstance(value[-1], dict):
    value = value[-1].get("content")  # messages
  return value


def _no_column(path: Path, column: str, there) -> str:
  return (
    f"{path} has no column {column!r}; it has {', '.join(map(str, there))} "
    "(a data set's are named with data.problem_column, data.answer_column)"
  )


def text_of(value: Any) -> str:
  """A problem or an answer as text; "" for none.

  Raises:
    ValueError: it is neither text nor a number.
  """
  if value is None or value == []:
    return ""
  if isinstance(value, float) and value.is_integer():
    value = int(value)
  is_number = isinstance(value, (int, float, decimal.Decimal))
  if not isinstance(value, str) and not (is_number and math.isfinite(value)):
    raise ValueError(
      f"{str(value)[:40]!r} is neither a text nor a number; choose the columns "
      "with data.problem_column and data.answer_column"
    )
  return str(value).strip()


class FileConfig(tfds.core.BuilderConfig):
  """What a prepared file depends on; its name is a fingerprint of it."""

  def __init__(self, path: Path, spec: FileSet, integers: bool):
    digest = hashlib.sha256(
      repr((fingerprint(path), spec[2:4], spec.behind, integers)).encode()
    )
    super().__init__(
      name=digest.hexdigest()[:16],
      version=source_version(__file__, transform.__file__),
    )
    self.path, self.spec, self.integers = path, spec, integers


class MathFile(TextBuilder, skip_registration=True):
  """One file's problems, in its order, as one split.

  What was left out is counted in the metadata of the builder.
  """

  VERSION = source_version(__file__, transform.__file__)
  FIELDS = ("problem", "answer")
  IN_ORDER = True
  SIZES = {SPLIT: 0}

  def _generate_examples(self, split):
    del split
    config = self.builder_config
    counts = dict.fromkeys((REPEATED, CONTRADICTORY, EMPTY, NO_INTEGER), 0)
    found: dict[str, str | None] = {}  # None: its copies disagree
    read = kept = 0
    columns = [config.spec.problem, config.spec.answer]
    for values in rows(config.path, columns):
      read += 1
      try:
        problem, answer = map(text_of, values)
      except ValueError as error:
        raise ValueError(f"{config.path} row {read}: {error}") from error
      if config.spec.behind:
        answer = answer.rpartition(config.spec.behind)[2].strip()
      if not problem or not answer:
        counts[EMPTY] += 1
      elif problem not in found:
        found[problem] = answer
      elif found[problem] in (None, answer):
        counts[REPEATED] += 1
      else:
        found[problem] = None
    for key, (problem, answer) in enumerate(found.items()):
      if answer is None:
        counts[CONTRADICTORY] += 1
        continue
      if config.integers:
        try:
          problem, answer, *_ = transform.to_integer(problem, answer)
        except transform.Refused:
          counts[NO_INTEGER] += 1
          continue
      kept += 1
      yield key, {"problem": problem, "answer": str(answer)}
    if not kept:
      told = ", ".join(f"{n} {why}" for why, n in counts.items() if n)
      raise ValueError(
        f"no problem left of {read} rows of {config.path}"
        + (f": {told}" if told else "; give a file with problems")
      )
    self.info.metadata.update(rows=read, counts=counts)
