"""What a run starts from: model, tokenizer, weights, problems."""

from collections.abc import Callable
import dataclasses
from pathlib import Path
from typing import Any

from dapo_jax.data import arithmetic, prompts
from dapo_jax.data.prompts import Problems
from dapo_jax.data.tokenizer import Tokenizer
from dapo_jax.models import gguf, hf, smollm2
from dapo_jax.models.transformer import ModelConfig
from dapo_jax.models.variants import MODELS

# What a model of the same shape may set differently (a chat model of a base).
_FREE = ("max_positions", "rope_theta", "norm_eps")


def load_model(c) -> tuple[ModelConfig, Callable[[], Any] | None, Tokenizer]:
  """Model dimensions, what reads the weights, tokenizer.

  The weights are read when asked for: a run that continues has its own. None
  instead of a reader: random weights are wanted.

  Raises:
    FileNotFoundError, ValueError: one line, with the remedy.
  """
  if c.weights == "random":
    tokenizer = Tokenizer.characters(arithmetic.ALPHABET)
    vocab = max(MODELS[c.model].vocab_size, tokenizer.vocab_size)
    found = dataclasses.replace(MODELS[c.model], vocab_size=vocab)
    return found, None, tokenizer
  if c.weights == smollm2.PACKAGE.replace("_", "-"):
    path = smollm2.find(prompts.cache_dir())
    reader = gguf.open_gguf(path)  # takes seconds
    found, params = gguf.load(path, reader)
    read, tokenizer = (lambda: params), Tokenizer.from_gguf(path, reader)
  else:
    folder = Path(c.weights).expanduser()
    try:
      found = hf.read_config(folder)
    except TypeError as error:
      raise ValueError(
        f"{folder}/config.json has a value of the wrong kind: {error}"
      ) from error
    read, tokenizer = (
      (lambda: hf.load(folder)[1]),
      (Tokenizer.from_folder(folder)),
    )
  theirs, ours = map(dataclasses.asdict, (found, MODELS[c.model]))
  differ = ", ".join(
    f"{k} {theirs[k]} there, {ours[k]} in {c.model}"
    for k in ours
    if k not in _FREE and ours[k] != theirs[k]
  )
  if differ:
    raise ValueError(
      f"weights={c.weights!r} are not of model={c.model!r}: {differ}; choose "
      "the model that they are of"
    )
  longest = c.max_prompt_len + c.max_response_len
  if longest > found.max_positions:
    raise ValueError(
      f"max_prompt_len + max_response_len = {longest} is more than the "
      f"{found.max_positions} positions of {c.weights!r}"
    )
  return found, read, tokenizer


def load_problems(
  c, tokenizer: Tokenizer, say: Callable[[str], None]
) -> list[Problems]:
  """Problems to train on and to evaluate on; says what was dropped.

  With `warm_steps`, the demonstrations of the warm start come third.
  """
  wanted = [
    (c.dataset, c.train_split, 0),
    (c.eval_dataset or c.dataset, c.eval_split, c.eval_problems),
  ]
  if c.warm_steps:
    wanted.append((c.dataset, "warm", 0))
  sets = []
  for name, split, limit in wanted:
    problems = prompts.load(
      name, split, tokenizer, max_prompt_len=c.max_prompt_len,
      data_dir=c.data_dir, limit=limit,
    )  # fmt: skip
    dropped = problems.num_too_long
    say(
      f"data       {name} {split}: {problems.num} problems"
      + (
        f"; {dropped} dropped, their prompts are longer than "
        f"max_prompt_len={c.max_prompt_len}"
        if dropped
        else ""
      )
    )
    sets.append(problems)
  if c.warm_steps and not sets[-1].solutions:
    raise ValueError(
      f"warm_steps={c.warm_steps}, but data set {c.dataset!r} has no "
      "solutions to learn from; set warm_steps=0"
    )
  return sets
