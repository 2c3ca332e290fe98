"""From groups to optimizer steps: rewards, minibatches, packed rows.

The host side of `step.py`. Minibatches hold whole groups; a batch that
dynamic sampling left short makes fewer steps, the last of them smaller, and
the divisor of each is its own.
"""

from collections.abc import Iterator
from typing import NamedTuple

import jax
from jaxtyping import Float
import numpy as np

from dapo_jax import groups as groups_lib
from dapo_jax import packing
from dapo_jax.data import prompts
from dapo_jax.data.prompts import Problems
from dapo_jax.data.tokenizer import Tokenizer
from dapo_jax.groups import Groups
from dapo_jax.programs import Programs, row_len
from dapo_jax.types import Targets, TrainState


class Rewards(NamedTuple):
  """Rewards of the responses of n groups.

  Attributes:
    rewards: outcome + penalty.
    penalties: soft overlong punishment, in [-1, 0].
    advantages: the same for every token of a response.
  """

  rewards: Float[np.ndarray, "n G"]
  penalties: Float[np.ndarray, "n G"]
  advantages: Float[np.ndarray, "n G"]


def shape_rewards(c, programs: Programs, groups: Groups) -> Rewards:
  """Rewards and advantages of a batch."""
  n = groups.num
  pad = lambda x: np.pad(x, ((0, c.prompts_per_batch - n), (0, 0)))
  # Groups do not touch each other: filling up to P changes none of them.
  out = programs.shape_rewards(pad(groups.is_correct), pad(groups.response_len))
  return Rewards(*(x[:n] for x in jax.device_get(out)))


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


def score(c, programs: Programs, params, groups: Groups) -> Groups:
  """Fills in the log-probabilities of groups that have none yet."""
  old = groups.old_logprobs.copy()
  todo = np.flatnonzero(~groups.is_scored)
  for part in minibatches(c, len(todo)):
    which = todo[part]
    some = groups_lib.take(groups, which)
    slots = _pack(c, programs, some)
    logprobs = jax.device_get(programs.score(params, *_run(c, slots)))
    lengths = _flat(some.response_len)
    old[which] = packing.from_rows(
      logprobs.reshape(slots.rows.tokens.shape),
      lengths, c.max_response_len, slots,
    ).reshape(some.tokens.shape)  # fmt: skip
  return groups._replace(
    old_logprobs=old, is_scored=np.ones_like(groups.is_scored)
  )


def update(
  c, programs: Programs, state: TrainState, groups: Groups, rewards: Rewards
) -> tuple[TrainState, list[dict]]:
  """One optimizer step a minibatch; the metrics of each."""
  updates = []
  for part in minibatches(c, groups.num):
    some = groups_lib.take(groups, part)
    lengths = _flat(some.response_len)
    # The weights' program has the shape of a whole minibatch.
    mask = np.zeros((c.minibatch_size, c.max_response_len), bool)
    mask[: len(lengths)] = np.arange(c.max_response_len) < lengths[:, None]
    if c.overlong_filter:
      mask[: len(lengths)] &= ~_flat(some.is_truncated)[:, None]
    weights, divisor = programs.loss_weights(mask)
    mask, weights = (np.asarray(x)[: len(lengths)] for x in (mask, weights))
    slots = _pack(c, programs, some)
    advantages = np.broadcast_to(
      _flat(rewards.advantages[part])[:, None], mask.shape
    )
    lay_out = lambda x: packing.to_rows(x, lengths, slots)
    targets = Targets(
      old_logprobs=lay_out(_flat(some.old_logprobs)),
      advantages=lay_out(advantages),
      loss_mask=lay_out(mask),
      loss_weight=lay_out(weights),
    )
    rows, used = _run(c, slots)
    state, metrics = programs.train_step(
      state, rows, packing.microbatches(targets, c.microbatch_size),
      divisor, used,
    )  # fmt: skip
    updates.append(metrics)
  return state, jax.device_get(updates)


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
    on_rows = packing.to_rows(mask, lengths, slots)
    zeros = np.zeros(on_rows.shape, np.float32)
    targets = Targets(zeros, zeros, on_rows, on_rows.astype(np.float32))
    rows, used = _run(c, slots)
    state, metrics = programs.warm_step(
      state, rows, packing.microbatches(targets, c.microbatch_size),
      np.float32(mask.sum()), used,
    )  # fmt: skip
    if metrics["skipped_nonfinite"]:
      raise ValueError(
        f"warm start: step {number + 1} is not finite; lower "
        f"warm_lr={c.warm_lr:g}"
      )
  return state.params
