"""From groups to optimizer steps: rewards, minibatches, packed rows.

The host side of `step.py`. Minibatches hold whole groups; a batch that
dynamic sampling left short makes fewer steps, the last of them smaller, and
the divisor of each is its own.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
from jaxtyping import Float
import numpy as np

from dapo_jax import groups as groups_lib, packing
from dapo_jax.data import prompts
from dapo_jax.data.prompts import Problems
from dapo_jax.data.tokenizer import Tokenizer
from dapo_jax.groups import Groups
from dapo_jax.programs import Programs, row_len
from dapo_jax.types import Targets, TrainState, ValueTargets


class Models(NamedTuple):
  """What a run trains, and what it measures its distance from.

  Attributes:
    policy: its TrainState.
    critic: its TrainState; None without one.
    reference: params of the policy before its first update; None unless a KL
      is wanted.
  """

  policy: TrainState
  critic: TrainState | None = None
  reference: Any = None


class Batch(NamedTuple):
  """Groups with all that an update needs of them. n groups.

  Attributes:
    groups: scored.
    rewards: outcome + penalty.
    penalties: soft overlong punishment, in [-1, 0].
    advantages: of each token; last axis 1 where a response has one.
    values: V before each token; None without a critic.
    returns: value targets; None without a critic.
    ref_logprobs: None without a reference.
    metrics: of the advantages.
  """

  groups: Groups
  rewards: Float[np.ndarray, "n G"]
  penalties: Float[np.ndarray, "n G"]
  advantages: Float[np.ndarray, "n G T"]
  values: Float[np.ndarray, "n G T"] | None
  returns: Float[np.ndarray, "n G T"] | None
  ref_logprobs: Float[np.ndarray, "n G T"] | None
  metrics: dict


def prepare(c, programs: Programs, models: Models, groups: Groups) -> Batch:
  """Scores a batch of at most P groups: rewards, advantages, value targets."""
  groups = score(c, programs, models.policy.params, groups)
  ref_logprobs = None
  if models.reference is not None:
    ref_logprobs = _per_token(
      c, programs, programs.score, models.reference, groups
    )
  kl_in_reward = ref_logprobs is not None and c.kl_in == "reward"
  return _advantages(
    c, programs, models.critic, groups, ref_logprobs,
    old=groups.old_logprobs if kl_in_reward or c.tis_limit else None,
    rollout=groups.rollout_logprobs if c.tis_limit else None,
    ref=ref_logprobs if kl_in_reward else None,
    lam_critic=c.lam_critic,
  )  # fmt: skip


def prepare_values(c, programs: Programs, critic: TrainState, groups: Groups):
  """A batch for the critic alone: its targets are Monte-Carlo returns."""
  return _advantages(c, programs, critic, groups, None, lam_critic=1.0)


def _advantages(
  c, programs, critic, groups, ref_logprobs, *, lam_critic, old=None,
  rollout=None, ref=None,
) -> Batch:  # fmt: skip
  n = groups.num
  values = None
  if critic is not None:
    values = _per_token(
      c, programs, programs.critic.score, critic.params, groups
    )

  def pad(x):  # empty groups behind change nothing
    if x is None:
      return None
    return np.pad(x, ((0, programs.max_groups - n),) + ((0, 0),) * (x.ndim - 1))

  lengths = pad(groups.response_len)
  rewards, penalties = programs.shape_rewards(pad(groups.is_correct), lengths)
  advantages, returns, metrics = programs.advantages(
    rewards, lengths, pad(old), pad(rollout), pad(ref), pad(values),
    np.float32(lam_critic),
  )  # fmt: skip
  cut = lambda x: None if x is None else np.asarray(x)[:n]
  return Batch(
    groups, cut(rewards), cut(penalties), cut(advantages), values,
    cut(returns), ref_logprobs, jax.device_get(metrics),
  )  # fmt: skip


def minibatches(c, n: int) -> Iterator[slice]:
  """Slices of n groups, one for each optimizer step."""
  size = c.minibatch_size // c.group_size
  for start in range(0, n, size):
    yield slice(start, min(start + size, n))


def _flat(x: np.ndarray) -> np.ndarray:  # [n, G, ..] -> [B, ..]
  return x.reshape(-1, *x.shape[2:])


def _pack(c, programs: Programs, groups: Groups) -> packing.Slots:
  return packing.pack(
    groups.prompt_tokens,
    groups.prompt_len,
    _flat(groups.tokens),
    _flat(groups.response_len),
    row_len=row_len(c),
    capacity=programs.capacity,
    share_prompts=c.share_prompts,
  )


def _run(c, slots: packing.Slots) -> tuple:
  """Rows as microbatches, and how many of them are in use."""
  rows = packing.microbatches(slots.rows, c.microbatch_size)
  return rows, np.int32(-(-slots.num_rows // c.microbatch_size))


def _per_token(
  c, programs: Programs, run: Callable, params, groups: Groups
) -> Float[np.ndarray, "n G T"]:
  """What a scoring program says of every token of the groups."""
  out = np.zeros(groups.tokens.shape, np.float32)
  for part in minibatches(c, groups.num):
    some = groups_lib.take(groups, part)
    slots = _pack(c, programs, some)
    found = jax.device_get(run(params, *_run(c, slots)))
    out[part] = packing.from_rows(
      found.reshape(slots.rows.tokens.shape), _flat(some.response_len),
      c.max_response_len, slots,
    ).reshape(some.tokens.shape)  # fmt: skip
  return out


def score(c, programs: Programs, params, groups: Groups) -> Groups:
  """Fills in the log-probabilities of groups that have none yet."""
  todo = np.flatnonzero(~groups.is_scored)
  if not len(todo):
    return groups
  old = groups.old_logprobs.copy()
  old[todo] = _per_token(
    c, programs, programs.score, params, groups_lib.take(groups, todo)
  )
  return groups._replace(
    old_logprobs=old, is_scored=np.ones_like(groups.is_scored)
  )


def update(
  c, programs: Programs, state: TrainState, batch: Batch, entropy_coef: float
) -> tuple[TrainState, list[dict]]:
  """One optimizer step of the policy a minibatch; the metrics of each."""
  updates = []
  for part in minibatches(c, batch.groups.num):
    some = groups_lib.take(batch.groups, part)
    lengths = _flat(some.response_len)
    keep = np.ones(len(lengths), bool)
    if c.overlong_filter:
      keep = ~_flat(some.is_truncated)
    mask, weights, divisor = _weights(c, programs, lengths, keep)
    slots = _pack(c, programs, some)
    flat = lambda x: np.broadcast_to(
      _flat(x[part]), (len(lengths), c.max_response_len)
    )
    optional = {}
    if c.kl_coef and c.kl_in == "loss":
      optional["ref_logprobs"] = flat(batch.ref_logprobs)
    if c.entropy_coef or c.entropy_target:
      optional["entropy_weight"] = weights * np.float32(entropy_coef)
    if c.ntp_coef:
      # μ / N Σ, N tokens of correct responses, under the common divisor.
      positive = mask & _flat(some.is_correct)[:, None]
      share = c.ntp_coef * divisor / max(positive.sum(), 1)
      optional["ntp_weight"] = positive * np.float32(share)
    targets = Targets(
      flat(batch.groups.old_logprobs), flat(batch.advantages), mask, weights,
      **optional,
    )  # fmt: skip
    state, metrics = _step(
      c, programs.train_step, state, slots, targets, lengths, divisor
    )
    updates.append(metrics)
  return state, jax.device_get(updates)


def fit_critic(
  c, programs: Programs, state: TrainState, batch: Batch
) -> tuple[TrainState, list[dict]]:
  """One optimizer step of the critic a minibatch; the metrics of each.

  It judges the policy as it is: truncated responses never leave its loss.
  """
  updates = []
  for part in minibatches(c, batch.groups.num):
    some = groups_lib.take(batch.groups, part)
    lengths = _flat(some.response_len)
    keep = np.ones(len(lengths), bool)
    mask, weights, divisor = _weights(c, programs, lengths, keep)
    slots = _pack(c, programs, some)
    targets = ValueTargets(
      _flat(batch.values[part]), _flat(batch.returns[part]), mask, weights
    )
    state, metrics = _step(
      c, programs.critic.train_step, state, slots, targets, lengths, divisor
    )
    updates.append(metrics)
  return state, jax.device_get(updates)


def _weights(c, programs: Programs, lengths, keep):
  """Loss mask and weights [B, T] of a minibatch, and its divisor."""
  # The weights' program has the shape of a whole minibatch.
  mask = np.zeros((c.minibatch_size, c.max_response_len), bool)
  mask[: len(lengths)] = np.arange(c.max_response_len) < lengths[:, None]
  mask[: len(lengths)] &= keep[:, None]
  weights, divisor = jax.device_get(programs.loss_weights(mask))
  return *(x[: len(lengths)] for x in (mask, weights)), divisor


def _step(c, run: Callable, state, slots, targets, lengths, divisor):
  """One optimizer step on targets [B, T]."""
  laid_out = jax.tree.map(lambda x: packing.to_rows(x, lengths, slots), targets)
  rows, used = _run(c, slots)
  return run(
    state, rows, packing.microbatches(laid_out, c.microbatch_size), divisor,
    used,
  )  # fmt: skip


def warm_start(
  c, programs: Programs, params, problems: Problems, tokenizer: Tokenizer
):
  """Supervised steps on demonstrations, before any reinforcement learning.

  The same packed rows and the same step as the update; a demonstration is a
  group of one. Returns the new params.

  Raises:
    ValueError: a step was not finite.
  """
  state = programs.init_warm_state(params)
  size, limit = c.minibatch_size, c.max_response_len
  for number in range(c.warm_steps):
    batch = prompts.batch_at(
      problems, number * size, size, seed=c.seed,
      max_prompt_len=c.max_prompt_len,
    )  # fmt: skip
    tokens = np.zeros((size, limit), np.int32)
    lengths = np.zeros(size, np.int32)
    for row, i in enumerate(batch.index):
      text = tokenizer.encode(problems.solutions[i])
      demonstration = [*text, tokenizer.eos_ids[0]][:limit]
      lengths[row] = len(demonstration)
      tokens[row, : lengths[row]] = demonstration
    slots = packing.pack(
      batch.prompt_tokens, batch.prompt_len, tokens, lengths,
      row_len=row_len(c), capacity=programs.capacity,
    )  # fmt: skip
    mask = np.arange(limit) < lengths[:, None]
    zeros = np.zeros(mask.shape, np.float32)
    targets = Targets(zeros, zeros, mask, mask.astype(np.float32))
    state, metrics = _step(
      c, programs.warm_step, state, slots, targets, lengths,
      np.float32(mask.sum()),
    )  # fmt: skip
    if metrics["skipped_nonfinite"]:
      raise ValueError(
        f"warm start: step {number + 1} is not finite; lower "
        f"warm_lr={c.warm_lr:g}"
      )
  return state.params
