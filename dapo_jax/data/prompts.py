"""Problems of a data set, and the endless shuffled stream of their prompts."""

import importlib
import logging
import os
from pathlib import Path
from typing import NamedTuple

import numpy as np

from dapo_jax.data.tokenizer import Tokenizer
from dapo_jax.types import PromptBatch

# name -> module with a TFDS builder and PROMPT, name of the builder.
DATASETS: dict[str, tuple[str, str]] = {
  "arithmetic": ("dapo_jax.data.arithmetic", "Arithmetic"),
  "word_problems": ("dapo_jax.data.word_problems", "WordProblems"),
  "dapo_math": ("dapo_jax.data.parquet_math", "DapoMath17k"),
  "aime2024": ("dapo_jax.data.parquet_math", "Aime2024"),
}


class Problems(NamedTuple):
  """Problems of one split with their prompts as tokens.

  Attributes:
    prompts: token ids of each prompt.
    problems: text of each problem.
    answers: reference answers.
    kinds: kind of each problem, "" where the data set knows none.
    solutions: demonstrations, empty where the data set has none.
    num_too_long: problems dropped for a prompt over the limit.
  """

  prompts: list[list[int]]
  problems: list[str]
  answers: list[str]
  kinds: list[str]
  solutions: list[str]
  num_too_long: int

  @property
  def num(self) -> int:
    """Number of problems."""
    return len(self.prompts)


def cache_dir() -> Path:
  """Per-user folder of prepared data sets and fetched files."""
  base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
  return Path(base) / "dapo_jax"


def template(dataset: str) -> tuple[tuple[str, str], ...]:
  """(role, content) of the messages of a prompt; `{problem}` is filled in."""
  if dataset not in DATASETS:
    raise ValueError(
      f"dataset={dataset!r} is unknown; choose from {sorted(DATASETS)}"
    )
  return importlib.import_module(DATASETS[dataset][0]).PROMPT


def load(
  dataset: str,
  split: str,
  tokenizer: Tokenizer,
  *,
  max_prompt_len: int,
  data_dir: str = "",
  limit: int = 0,
) -> Problems:
  """Reads a split through its TFDS builder and renders the prompts.

  Args:
    dataset: a key of DATASETS.
    split: a split of the builder.
    tokenizer: renders the messages.
    max_prompt_len: longer prompts are dropped and counted.
    data_dir: where the builder finds and keeps its files; default: a folder
      of the per-user cache.
    limit: first so many problems, 0 = all.

  Raises:
    ValueError: unknown data set, or nothing is left of it.
    FileNotFoundError: the builder wants a file that is not there.
  """
  messages = template(dataset)
  # Half a second that --help and the tests of pure functions need not pay.
  import tensorflow_datasets as tfds

  tfds.disable_progress_bar()
  logging.getLogger("absl").setLevel(logging.ERROR)
  module, name = DATASETS[dataset]
  make = getattr(importlib.import_module(module), name)
  folder = Path(data_dir).expanduser() if data_dir else cache_dir() / "datasets"
  prepared, source = folder, folder
  if hasattr(make, "FILE"):
    # Where the user put it, or where the command below puts it.
    found = [d for d in (folder, folder / "data") if (d / make.FILE).exists()]
    if not found:
      raise FileNotFoundError(
        f"data set {dataset!r} needs {folder / make.FILE}: get it with "
        f"`{make.COMMAND} --local-dir {folder}`, or point data_dir at its "
        "folder"
      )
    source = found[0]
    # Another file of this name is another data set.
    stat = (source / make.FILE).stat()
    prepared = folder / f"prepared-{stat.st_size}-{stat.st_mtime_ns}"
  builder = make(data_dir=str(prepared), file_format="array_record")
  try:
    builder.download_and_prepare(
      download_config=tfds.download.DownloadConfig(manual_dir=str(source))
    )
  except Exception as error:  # TFDS and Arrow have no common type for it
    reason = " ".join(str(error).split())[-200:]
    raise ValueError(
      f"data set {dataset!r} cannot be prepared from "
      f"{source / getattr(make, 'FILE', '')}: {reason}"
    ) from error
  if split not in builder.info.splits:
    hint = "; set warm_steps=0" if split == "warm" else ""
    raise ValueError(
      f"data set {dataset!r} has no split {split!r}; it has "
      f"{sorted(builder.info.splits)}{hint}"
    )
  out = Problems([], [], [], [], [], 0)
  dropped = 0
  for row in builder.as_data_source(split):
    row = {key: value.decode() for key, value in row.items()}
    tokens = tokenizer.encode_chat(
      [
        {"role": role, "content": text.replace("{problem}", row["problem"])}
        for role, text in messages
      ]
    )
    if len(tokens) > max_prompt_len:
      dropped += 1
      continue
    out.prompts.append(tokens)
    out.problems.append(row["problem"])
    out.answers.append(row["answer"])
    out.kinds.append(row.get("kind", ""))
    if "solution" in row:
      out.solutions.append(row["solution"])
    if limit and out.num == limit:
      break
  if not out.num:
    raise ValueError(
      f"data set {dataset!r} ({split}) has no problem left: {dropped} prompts "
      f"are longer than max_prompt_len={max_prompt_len}"
      if dropped
      else f"data set {dataset!r} ({split}) is empty; look into {folder}"
    )
  return out._replace(num_too_long=dropped)


def pad(prompts: list[list[int]], max_prompt_len: int):
  """Token lists -> ([P, Lp] padded on the right with 0, [P] lengths)."""
  lengths = np.array([len(p) for p in prompts], np.int32)
  tokens = np.zeros((len(prompts), max_prompt_len), np.int32)
  for row, prompt in zip(tokens, prompts):
    row[: len(prompt)] = prompt
  return tokens, lengths


def batch_at(
  problems: Problems,
  position: int,
  size: int,
  *,
  seed: int,
  max_prompt_len: int,
) -> PromptBatch:
  """Prompts position .. position + size of the endless shuffled stream.

  Every pass over the data is a permutation of its own, made from the seed and
  the number of the pass. The stream is a function of the position, so the
  position is all that a checkpoint holds, and data never run out.
  """
  uid = np.arange(position, position + size)
  epoch, place = np.divmod(uid, problems.num)
  index = np.empty(size, np.int32)
  for e in np.unique(epoch):
    order = np.random.default_rng((seed, int(e))).permutation(problems.num)
    index[epoch == e] = order[place[epoch == e]]
  tokens, lengths = pad([problems.prompts[i] for i in index], max_prompt_len)
  return PromptBatch(tokens, lengths, uid.astype(np.int32), index)
