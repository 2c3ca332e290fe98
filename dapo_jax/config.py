"""Checks of a config before anything is built, and its arithmetic in words."""

import importlib.util
import json
import math
from pathlib import Path

from dapo_jax import rewards
from dapo_jax.advantages import ESTIMATORS, OF_GROUPS
from dapo_jax.data.prompts import DATASETS, Source
from dapo_jax.losses import AGGREGATIONS, KL_ESTIMATORS, OBJECTIVES
from dapo_jax.metrics import write_json
from dapo_jax.models.variants import MODELS

# May change between a run and its continuation; all else is the run.
CHANGEABLE = (
  "iters",
  "eval_every_iters",
  "checkpoint_every_iters",
  "keep_checkpoints",
  "num_logged_samples",
  "wandb",
  "data.path",  # a file may move: its content is compared instead
  "eval_data.path",
)


class UserError(ValueError):
  """A user's mistake: its text is one line, what is wrong and what to do."""


def check(c, batch_shards: int = 1, training: bool = True) -> None:
  """Cross-field rules.

  Args:
    c: the config.
    batch_shards: parts that the mesh splits the rows of a batch into.
    training: False leaves out the rules of the update's batches.

  Raises:
    UserError: with the numbers and the remedy.
  """
  choices = {
    "model": ("", *MODELS),
    "advantage": ESTIMATORS,
    "objective": OBJECTIVES,
    "loss_agg": AGGREGATIONS,
    "kl_estimator": KL_ESTIMATORS,
    "kl_in": ("loss", "reward"),
    "tis_mode": ("truncate", "mask"),
    "reward_rule": rewards.RULES,
    "surplus": ("drop", "carry"),
    "dtype": ("auto", "float32", "bfloat16"),
    "std_ddof": (0, 1),
  }
  for field, known in choices.items():
    if c[field] not in known:
      names = ", ".join(str(k) for k in known)
      raise UserError(f"{field}={c[field]!r} is unknown; choose from {names}")
  for field, known in (("data", DATASETS), ("eval_data", ("", *DATASETS))):
    if set(c[field].keys()) != set(Source._fields):
      raise UserError(
        f"{field} has other fields than {', '.join(Source._fields)}; set them "
        f"one by one, as in --config.{field}.name=gsm8k"
      )
    name = c[field]["name"]
    if name not in known:
      raise UserError(
        f"{field}.name={name!r} is unknown; choose from {', '.join(DATASETS)}"
      )
  if c.weights == "random" and not c.model:
    raise UserError(
      "weights='random' need a model; choose from " + ", ".join(MODELS)
    )
  if c.wandb and importlib.util.find_spec("wandb") is None:
    raise UserError(
      "wandb=True, but wandb is not installed: pip install wandb, or leave it "
      "out (metrics.jsonl and TensorBoard are always written)"
    )
  _check_ranges(c)
  _check_switches(c)
  if training:
    _check_batches(c)
  rows = ["microbatch_size", "prompts_per_round", "eval_prompts_per_round"]
  if not c.filter_groups:
    rows.append("prompts_per_batch")
  for field in rows:
    if c[field] % batch_shards:
      raise UserError(
        f"{field}={c[field]} does not split over mesh_data x mesh_fsdp = "
        f"{batch_shards}; try {_near(c[field], batch_shards)}"
      )


def _check_ranges(c) -> None:
  at_least_one = (
    "iters", "prompts_per_batch", "prompts_per_round", "group_size",
    "minibatch_size", "microbatch_size", "max_rounds", "max_empty_iters",
    "max_prompt_len", "max_response_len", "logits_chunk_len",
    "checkpoint_every_iters", "keep_checkpoints", "eval_samples",
    "max_skipped_steps",
  )  # fmt: skip
  for field in at_least_one:
    if c[field] < 1:
      raise UserError(f"{field}={c[field]} must be at least 1")
  not_negative = (
    "eval_every_iters", "eval_prompts_per_round", "num_logged_samples",
    "warm_steps", "warm_lr", "overlong_cache_len", "clip_low", "clip_high",
    "row_len", "lr", "warmup_iters", "lr_decay_iters",
    "weight_decay", "max_grad_norm", "eval_problems", "eval_temperature",
    "seed", "lam_alpha", "kl_coef", "ntp_coef", "entropy_coef",
    "entropy_target", "entropy_coef_step", "critic_lr", "clip_value",
    "value_pretrain_iters", "value_settle_iters", "value_settle_tol",
  )  # fmt: skip
  for field in not_negative:
    if not 0 <= c[field] < math.inf:
      raise UserError(
        f"{field}={c[field]} must be a finite number, not negative"
      )
  if c.seed >= 2**32:
    raise UserError(f"seed={c.seed} must be less than 2^32 = {2**32}")
  if not c.temperature > 0:
    raise UserError(
      f"temperature={c.temperature}: training samples a policy, so it must be "
      "more than 0 (evaluation may be greedy: eval_temperature=0)"
    )
  if not c.verify_timeout_sec > 0:
    raise UserError(
      f"verify_timeout_sec={c.verify_timeout_sec} must be more than 0"
    )
  if not 0 <= c.lr_floor <= 1 or (c.lr_floor and not c.lr_decay_iters):
    raise UserError(
      f"lr_floor={c.lr_floor} is the share of lr behind lr_decay_iters="
      f"{c.lr_decay_iters}: take it from [0, 1], and 0 without a fall"
    )
  if not 0 <= c.max_failed_verdicts <= 1:
    raise UserError(
      f"max_failed_verdicts={c.max_failed_verdicts} must be in [0, 1]"
    )
  if c.top_p != 1:
    raise UserError(
      f"top_p={c.top_p}: the ratio of new to old policy needs the full "
      "support, so training samples need top_p=1 (eval_top_p is free)"
    )
  if not 0 < c.eval_top_p <= 1:
    raise UserError(f"eval_top_p={c.eval_top_p} must be in (0, 1]")
  if c.clip_low >= 1 and c.objective != "cispo":
    raise UserError(f"clip_low={c.clip_low} must be less than 1")
  if c.dual_clip and not c.dual_clip > 1:
    raise UserError(f"dual_clip={c.dual_clip} must be more than 1, or 0 = off")
  if c.overlong_punish and c.overlong_cache_len > c.max_response_len:
    raise UserError(
      f"overlong_cache_len={c.overlong_cache_len} is more than "
      f"max_response_len={c.max_response_len}: every response would be "
      "punished; make it smaller, or overlong_punish=False"
    )


def _check_switches(c) -> None:
  for field in ("gamma", "lam_actor", "lam_critic"):
    if not 0 <= c[field] <= 1:
      raise UserError(f"{field}={c[field]} must be in [0, 1]")
  if c.objective == "cispo" and c.dual_clip:
    raise UserError(
      f"dual_clip={c.dual_clip} has no meaning with objective='cispo', which "
      "clips weights; set it to 0"
    )
  if c.tis_limit and not c.tis_limit >= 1:
    raise UserError(f"tis_limit={c.tis_limit} must be at least 1, or 0 = off")
  if bool(c.entropy_target) != bool(c.entropy_coef_step):
    raise UserError(
      f"entropy_target={c.entropy_target} and entropy_coef_step="
      f"{c.entropy_coef_step} work together: set both, or neither"
    )
  if c.value_pretrain_iters and c.advantage != "gae":
    raise UserError(
      f"value_pretrain_iters={c.value_pretrain_iters}, but advantage="
      f"{c.advantage!r} has no critic; take advantage='gae', or 0"
    )
  if c.critic_weights and c.advantage != "gae":
    raise UserError(
      f"critic_weights={c.critic_weights!r}, but advantage={c.advantage!r} has "
      "no critic; take advantage='gae', or leave them out"
    )


def _check_batches(c) -> None:
  if c.group_size == 1 and (c.filter_groups or c.advantage in OF_GROUPS):
    raise UserError(
      "group_size=1: a group of one has advantage 0 and is never mixed, so "
      "nothing would be learned; take at least 2 (the paper: 16), or "
      "advantage='gae' without filter_groups"
    )
  if c.minibatch_size % c.group_size:
    raise UserError(
      f"minibatch_size={c.minibatch_size} responses do not hold whole groups "
      f"of group_size={c.group_size}; try "
      f"{_near(c.minibatch_size, c.group_size)}"
    )
  batch = c.prompts_per_batch * c.group_size
  if batch % c.minibatch_size:
    fits = [
      n for n in range(c.group_size, batch + 1, c.group_size) if batch % n == 0
    ]
    raise UserError(
      f"prompts_per_batch={c.prompts_per_batch} x group_size={c.group_size} = "
      f"{batch} responses are not a multiple of minibatch_size="
      f"{c.minibatch_size}; these fit: {', '.join(map(str, fits))}"
    )
  longest = c.max_prompt_len + c.max_response_len
  if c.row_len and c.row_len < longest:
    raise UserError(
      f"row_len={c.row_len} is less than max_prompt_len={c.max_prompt_len} + "
      f"max_response_len={c.max_response_len}; make it at least {longest}, or 0"
    )


def round_size(c) -> int:
  """Prompts of a generation round; without a filter a round is the batch."""
  return c.prompts_per_round if c.filter_groups else c.prompts_per_batch


def _near(n: int, unit: int) -> str:
  low = n // unit * unit
  return f"{low} or {low + unit}" if low else f"{unit}"


def describe(c) -> str:
  """The arithmetic of a batch, for the start of a run."""
  batch = c.prompts_per_batch * c.group_size
  updates = batch // c.minibatch_size
  lines = [
    f"batch      {c.prompts_per_batch} prompts x {c.group_size} responses = "
    f"{batch} responses an iteration",
    f"update     {updates} optimizer step{'s' * (updates > 1)} an iteration, "
    f"{c.minibatch_size} responses each, in microbatches of "
    f"{c.microbatch_size} packed row{'s' * (c.microbatch_size > 1)}",
    f"lengths    prompt <= {c.max_prompt_len}, response <= "
    f"{c.max_response_len} tokens"
    + (
      f"; punished from {c.max_response_len - c.overlong_cache_len}"
      if c.overlong_punish
      else ""
    ),
  ]
  if c.filter_groups:
    lines.append(
      f"sampling   rounds of {c.prompts_per_round} prompts until "
      f"{c.prompts_per_batch} mixed groups are there, at most {c.max_rounds}; "
      f"surplus: {c.surplus}"
    )
  if c.advantage == "gae":
    lam = f"1 - 1 / ({c.lam_alpha:g} |y|)" if c.lam_alpha else c.lam_actor
    lines.append(
      f"critic     learning rate {c.critic_lr:g}; λ {lam} for the policy, "
      f"{c.lam_critic:g} for its targets"
      + (
        f"; alone for at most {c.value_pretrain_iters} iterations first"
        if c.value_pretrain_iters
        else ""
      )
    )
  if c.kl_coef:
    lines.append(
      f"reference  the policy at its start; {c.kl_coef:g} x KL "
      f"({c.kl_estimator}) in the {c.kl_in}"
    )
  if updates == 1:
    lines.append(
      "note       one step an iteration: the ratio is 1, nothing is clipped"
    )
  return "\n".join(lines)


# A workdir with one of these is a run's or an evaluation's.
_RESULTS = ("metrics.jsonl", "eval_samples.jsonl")


def claim(workdir: Path, c, **more: str) -> None:
  """Makes the workdir this run's own: writes config.json, or compares it.

  Args:
    workdir: made if it is not there.
    c: the config.
    more: facts beside the config that have to stay the same.

  Raises:
    UserError: it cannot be written, or it belongs to another config.
  """
  path = workdir / "config.json"
  try:
    workdir.mkdir(parents=True, exist_ok=True)
    is_run = any((workdir / name).exists() for name in _RESULTS)
    if path.exists() and is_run:  # else it was given up before it began
      theirs = json.loads(path.read_bytes())
      if not isinstance(theirs, dict):
        raise UserError(f"{path} is damaged (no object in it); restore it")
      compare(theirs, c, f"workdir {workdir}", **more)
    elif is_run:
      raise UserError(
        f"workdir {workdir} holds a run without its config.json; restore that "
        "file, or give another --workdir"
      )
    write_json(path, json.loads(c.to_json()) | more)
  except (json.JSONDecodeError, UnicodeDecodeError) as error:
    raise UserError(f"{path} is damaged ({error}); restore it") from error
  except OSError as error:
    raise UserError(
      f"workdir {workdir} cannot be used ({error.strerror}); give another "
      "--workdir"
    ) from error


def compare(theirs: dict, c, where: str, **more: str) -> None:
  """Raises UserError, saying what differs, unless both are one run's."""
  theirs, ours = flat(theirs), flat(json.loads(c.to_json()) | more)
  differ = [
    f"{k}: {theirs.get(k, '(absent)')!r} there, {ours.get(k, '(absent)')!r} now"
    for k in sorted(theirs.keys() | ours.keys())
    if k not in CHANGEABLE and theirs.get(k) != ours.get(k)
  ]
  if differ:
    raise UserError(
      f"{where} belongs to another config ({'; '.join(differ)}); "
      "give another --workdir, or the same config"
    )


def flat(fields: dict) -> dict:
  """{"data": {"path": x}} -> {"data.path": x}."""
  out = {}
  for key, value in fields.items():
    inner = flat(value) if isinstance(value, dict) else {"": value}
    out |= {f"{key}.{k}".rstrip("."): v for k, v in inner.items()}
  return out
