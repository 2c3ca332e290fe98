"""Problems of a data set, and the endless shuffled stream of their prompts."""

import contextlib
import hashlib
import importlib
import io
import json
import logging
import os
from pathlib import Path
from typing import NamedTuple

import numpy as np

from dapo_jax import rewards
from dapo_jax.data import templates
from dapo_jax.data.tokenizer import Tokenizer
from dapo_jax.types import PromptBatch

# Made up by a program: name -> module with a TFDS builder and TEMPLATE, name
# of the builder.
GENERATED: dict[str, tuple[str, str]] = {
  "arithmetic": ("dapo_jax.data.arithmetic", "Arithmetic"),
  "word_problems": ("dapo_jax.data.word_problems", "WordProblems"),
}
# Read from a file that the user has: rows of data/files.py, which takes a
# second to import.
IN_FILES = ("dapo_math", "aime2024", "aime2025", "math500", "gsm8k", "file")
DATASETS = (*GENERATED, *IN_FILES)

TOO_LONG, UNREADABLE = "prompt too long", "answer that the rule cannot read"


class Source(NamedTuple):
  """Where problems come from: the fields of `data` in a config.

  Attributes:
    name: one of DATASETS.
    path: file, or the folder it is in, for those of IN_FILES.
    split: of a generated set; a file is one split.
    problem_column: "" for the data set's own, as are the two below.
    answer_column: of a file.
    template: a key of templates.TEMPLATES, or a text with {problem}.
    integers: rewrite answers into integers, see data/transform.py.
  """

  name: str
  path: str = ""
  split: str = "train"
  problem_column: str = ""
  answer_column: str = ""
  template: str = ""
  integers: bool = False


class Problems(NamedTuple):
  """Problems of one split with their prompts as tokens.

  Attributes:
    prompts: token ids of each prompt.
    problems: text of each problem.
    answers: reference answers.
    kinds: kind of each problem, "" where the data set knows none.
    solutions: demonstrations, empty where the data set has none.
    rows: rows of the source that were read.
    dropped: why rows are not among the problems -> how many.
  """

  prompts: list[list[int]]
  problems: list[str]
  answers: list[str]
  kinds: list[str]
  solutions: list[str]
  rows: int
  dropped: dict[str, int]

  @property
  def num(self) -> int:
    """Number of problems."""
    return len(self.prompts)

  def fingerprint(self) -> str:
    """Of the problems and answers in their order."""
    seen = json.dumps([self.problems, self.answers])
    return hashlib.sha256(seen.encode()).hexdigest()[:16]


def cache_dir() -> Path:
  """Per-user folder of prepared data sets and fetched files."""
  base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
  return Path(base) / "dapo_jax"


def template_of(source: Source) -> templates.Template:
  """The template of a source.

  Raises:
    ValueError: unknown data set or template.
  """
  if source.name in GENERATED:
    own = importlib.import_module(GENERATED[source.name][0]).TEMPLATE
  elif source.name in IN_FILES:
    from dapo_jax.data import files

    own = files.FILES[source.name].template
  else:
    raise ValueError(
      f"data set {source.name!r} is unknown; choose from {', '.join(DATASETS)}"
    )
  return templates.find(source.template, own)


def load(
  source: Source,
  tokenizer: Tokenizer,
  *,
  max_prompt_len: int,
  rule: str = "symbolic",
  limit: int = 0,
  folder: Path | None = None,
) -> Problems:
  """Reads problems through their TFDS builder and renders the prompts.

  Args:
    source: the data set and its options.
    tokenizer: renders the messages.
    max_prompt_len: longer prompts are dropped and counted.
    rule: a key of rewards.RULES; answers that it cannot read are dropped and
      counted.
    limit: first so many problems, 0 = all.
    folder: of prepared data; default: in the per-user cache.

  Raises:
    ValueError: unknown data set or split, a file that cannot be read, or
      nothing is left of it.
    FileNotFoundError: the file is not there; with the command that gets it.
  """
  messages = template_of(source).messages
  builder, split = _builder(source, folder or cache_dir() / "datasets")
  out = Problems([], [], [], [], [], 0, {})
  dropped = {
    **(builder.info.metadata or {}).get("counts", {}), TOO_LONG: 0,
    UNREADABLE: 0,
  }  # fmt: skip
  rows = builder.info.splits[split].num_examples
  rows = (builder.info.metadata or {}).get("rows", rows)
  examples = [
    {key: value.decode() for key, value in row.items()}
    for row in builder.as_data_source(split)
  ]
  readable = rewards.readable([row["answer"] for row in examples], rule=rule)
  for row, is_readable in zip(examples, readable):
    tokens = tokenizer.encode_chat(
      [
        {"role": role, "content": text.replace("{problem}", row["problem"])}
        for role, text in messages
      ]
    )
    if not is_readable or len(tokens) > max_prompt_len:
      dropped[TOO_LONG if is_readable else UNREADABLE] += 1
      continue
    out.prompts.append(tokens)
    out.problems.append(row["problem"])
    out.answers.append(row["answer"])
    out.kinds.append(row.get("kind", ""))
    if row.get("solution"):
      out.solutions.append(row["solution"])
    if limit and out.num == limit:
      break
  dropped = {reason: n for reason, n in dropped.items() if n}
  if not out.num:
    told = ", ".join(f"{n} {reason}" for reason, n in dropped.items())
    raise ValueError(
      f"data set {source.name!r} ({source.path or split}) has no problem left "
      f"of {rows} rows: {told} (max_prompt_len={max_prompt_len}, "
      f"reward_rule={rule!r})"
    )
  return out._replace(rows=rows, dropped=dropped)


def _builder(source: Source, folder: Path):
  """The prepared TFDS builder of a source, and the split to read."""
  # Half a second that --help and the tests of pure functions need not pay.
  import tensorflow_datasets as tfds

  tfds.disable_progress_bar()
  logging.getLogger("absl").setLevel(logging.ERROR)
  options = dict(data_dir=str(folder), file_format="array_record")
  try:
    if source.name in GENERATED:
      own = source._replace(split="", template="")
      if own != Source(source.name, split=""):
        raise ValueError(
          "it is made up by a program: only data.split and data.template can "
          "be chosen"
        )
      module, name = GENERATED[source.name]
      make, split = getattr(importlib.import_module(module), name), source.split
    else:
      from dapo_jax.data import files

      options["config"] = files.configure(source)
      make, split = files.MathFile, files.SPLIT
    builder = make(**options)
    try:
      with contextlib.redirect_stdout(io.StringIO()):  # it prints at length
        builder.download_and_prepare()
    except Exception:
      builder = make(**options)
      if not builder.is_prepared():  # by another process, meanwhile
        raise
  except FileNotFoundError:
    raise
  except Exception as error:  # TFDS and Arrow have no common type for it
    reason = " ".join(str(error).split())[:300]
    raise ValueError(
      f"data set {source.name!r} cannot be prepared: {reason}"
    ) from error
  if split not in builder.info.splits:
    hint = "; set warm_steps=0" if split == "warm" else ""
    raise ValueError(
      f"data set {source.name!r} has no split {split!r}; it has "
      f"{', '.join(sorted(builder.info.splits))}{hint}"
    )
  return builder, split


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
