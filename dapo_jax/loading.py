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


def load_model(c) -> tuple[ModelConfig, Any, Tokenizer]:
  """Model dimensions, weights (None: random ones are wanted), tokenizer.

  Raises:
    FileNotFoundError, ValueError: one line, with the remedy.
  """
  if c.weights == "random":
    tokenizer = Tokenizer.characters(arithmetic.ALPHABET)
    vocab = max(MODELS[c.model].vocab_size, tokenizer.vocab_size)
    return (
      dataclasses.replace(MODELS[c.model], vocab_size=vocab),
      None,
      (tokenizer),
    )
  if c.weights == smollm2.PACKAGE.replace("_", "-"):
    path = smollm2.find(prompts.cache_dir())
    model_config, params = gguf.load(path)
    tokenizer = Tokenizer.from_gguf(path)
  else:
    model_config, params = hf.load(Path(c.weights).expanduser())
    tokenizer = Tokenizer.from_folder(Path(c.weights).expanduser())
  if model_config != MODELS[c.model]:
    theirs, ours = map(dataclasses.asdict, (model_config, MODELS[c.model]))
    differ = ", ".join(
      f"{k} {theirs[k]} there, {ours[k]} in {c.model}"
      for k in ours
      if ours[k] != theirs[k]
    )
    raise ValueError(
      f"weights={c.weights!r} are not of model={c.model!r}: {differ}; choose "
      "the model that they are of"
    )
  return model_config, params, tokenizer


def load_problems(
  c, tokenizer: Tokenizer, say: Callable[[str], None]
) -> tuple[Problems, Problems]:
  """Problems to train on and to evaluate on; says what was dropped."""
  sets = []
  for name, split, limit in (
    (c.dataset, c.train_split, 0),
    (c.eval_dataset or c.dataset, c.eval_split, c.eval_problems),
  ):
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
  return tuple(sets)
