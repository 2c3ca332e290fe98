"""What an optimizer step is given: every target of every token."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs import grpo, vapo
from dapo_jax import (
  groups as groups_lib,
  packing,
  programs as programs_lib,
  sharding,
  update,
)
from dapo_jax.groups import Groups
from dapo_jax.models import variants
from dapo_jax.types import Targets, TrainState

NUM_GROUPS = 6  # minibatches of 4 groups: the second one is half full
ENTROPY_COEF = 0.3


def config(**fields):
  c = vapo.get_config("tiny,debug")
  c.update(dict(overlong_filter=True, entropy_coef=ENTROPY_COEF) | fields)
  return c


def make_groups(c, all_wrong=False):
  """Random groups; some responses truncated, some correct, some both."""
  rng = np.random.default_rng(0)
  n, size, limit = NUM_GROUPS, c.group_size, c.max_response_len
  lengths = rng.integers(1, limit + 1, (n, size)).astype(np.int32)
  is_truncated = rng.random((n, size)) < 0.3
  lengths[is_truncated] = limit
  logprobs = rng.normal(-2, 1, (n, size, limit)).astype(np.float32)
  return Groups(
    prompt_tokens=rng.integers(0, 9, (n, c.max_prompt_len)).astype(np.int32),
    prompt_len=rng.integers(1, c.max_prompt_len + 1, n).astype(np.int32),
    uid=np.arange(n, dtype=np.int32),
    index=np.arange(n, dtype=np.int32),
    tokens=rng.integers(0, 9, (n, size, limit)).astype(np.int32),
    rollout_logprobs=logprobs,
    old_logprobs=logprobs + 0.1,
    response_len=lengths,
    is_truncated=is_truncated,
    is_correct=(rng.random((n, size)) < 0.4) & (not all_wrong),
    is_scored=np.ones(n, bool),
  )


def make_batch(groups):
  rng = np.random.default_rng(1)
  draw = lambda: rng.normal(size=groups.tokens.shape).astype(np.float32)
  n, size = groups.response_len.shape
  zeros = np.zeros((n, size), np.float32)
  return update.Batch(groups, zeros, zeros, draw(), draw(), draw(), draw(), {})


def build(c):
  mesh = sharding.make_mesh(dict(data=-1, fsdp=1, tensor=1))
  return programs_lib.build(c, variants.MODELS["tiny"], mesh, (1,))


def given(c, name, groups):
  """Slice, groups, targets [B, T] and divisor of each step of update.NAME."""
  programs = build(c)
  parts, steps, kinds = list(update.minibatches(c, groups.num)), [], []

  def capture(*args):
    state, _, targets, divisor, _ = args
    kinds.append(jax.tree.map(jax.typeof, args[1:]))
    part = parts[len(steps)]
    some = groups_lib.take(groups, part)
    slots = update._pack(c, programs, some)
    lengths = some.response_len.reshape(-1)
    found = {
      key: packing.from_rows(
        np.asarray(x).reshape(slots.rows.tokens.shape), lengths,
        c.max_response_len, slots,
      )
      for key, x in targets._asdict().items() if x is not None
    }  # fmt: skip
    steps.append((part, some, found, float(divisor)))
    return state, {}

  batch = make_batch(groups)
  if name == "update":
    programs = programs._replace(train_step=capture)
    update.update(c, programs, None, batch, ENTROPY_COEF)
  else:
    critic = programs.critic._replace(train_step=capture)
    update.fit_critic(c, programs._replace(critic=critic), None, batch)
  assert [some.num for _, some, *_ in steps] == [4, 2]
  # The smaller one is the same to the compiler.
  assert kinds[0] == kinds[1]
  return steps


@pytest.mark.parametrize("overlong_filter", [True, False])
def test_every_token_has_the_weights_of_its_terms(overlong_filter):
  c = config(overlong_filter=overlong_filter)
  groups = make_groups(c)
  dropped = 0
  for _, some, found, divisor in given(c, "update", groups):
    lengths, is_correct, is_truncated = (
      x.reshape(-1)
      for x in (some.response_len, some.is_correct, some.is_truncated)
    )
    # Token by token, as the terms are defined.
    tokens = positives = 0
    mask = np.zeros((len(lengths), c.max_response_len), bool)
    for i, length in enumerate(lengths):
      if overlong_filter and is_truncated[i]:
        dropped += 1
        continue
      mask[i, :length] = True
      tokens += length
      positives += length * is_correct[i]
    np.testing.assert_array_equal(found["loss_mask"], mask)
    # The token mean: every token once, of all that count.
    assert divisor == tokens
    np.testing.assert_array_equal(found["loss_weight"], mask)
    # The bonus is per token too.
    np.testing.assert_allclose(found["entropy_weight"], ENTROPY_COEF * mask)
    # μ times the mean over the tokens of correct responses.
    expected = c.ntp_coef * mask * is_correct[:, None] / positives
    np.testing.assert_allclose(
      found["ntp_weight"] / divisor, expected, rtol=1e-6
    )
  assert (dropped > 0) == overlong_filter


def test_old_logprobs_advantages_and_reference_stand_on_their_tokens():
  c = config(kl_coef=0.1, kl_in="loss")
  groups = make_groups(c)
  batch = make_batch(groups)
  for part, some, found, _ in given(c, "update", groups):
    valid = np.arange(c.max_response_len) < some.response_len[..., None]
    for key, values in (
      ("old_logprobs", groups.old_logprobs),
      ("advantages", batch.advantages),
      ("ref_logprobs", batch.ref_logprobs),
    ):
      np.testing.assert_array_equal(
        found[key].reshape(valid.shape), np.where(valid, values[part], 0)
      )


def test_terms_that_are_off_are_not_there():
  c = config(ntp_coef=0.0, entropy_coef=0.0)
  for _, _, found, _ in given(c, "update", make_groups(c)):
    off = {"ref_logprobs", "entropy_weight", "ntp_weight"}
    assert set(found) == set(Targets._fields) - off


def test_nothing_correct_is_no_division_by_zero():
  c = config()
  for _, _, found, _ in given(c, "update", make_groups(c, all_wrong=True)):
    assert not found["ntp_weight"].any()


def test_the_critic_learns_from_truncated_responses_too():
  c = config(overlong_filter=True)
  groups = make_groups(c)
  batch = make_batch(groups)
  assert groups.is_truncated.any()
  for part, some, found, divisor in given(c, "fit_critic", groups):
    lengths = some.response_len.reshape(-1)
    mask = np.arange(c.max_response_len) < lengths[:, None]
    assert divisor == mask.sum()
    np.testing.assert_array_equal(found["loss_mask"], mask)
    for key, values in (
      ("old_values", batch.values), ("returns", batch.returns)
    ):  # fmt: skip
      expected = values[part].reshape(mask.shape)
      np.testing.assert_array_equal(found[key], np.where(mask, expected, 0))


def programs_of(c):
  """Programs whose models give every token one number: their params."""
  made = build(c)
  constant = lambda params, rows, _: np.where(rows.response_mask, params, 0.0)
  made = made._replace(score=constant)
  if made.critic:
    made = made._replace(critic=made.critic._replace(score=constant))
  return made


def state_of(params):
  return TrainState(jnp.int32(0), params, ())


@pytest.mark.parametrize("kl_in", ["loss", "reward"])
def test_a_kl_is_in_the_loss_or_in_the_reward(kl_in):
  c = grpo.get_config("tiny,debug")
  c.update(kl_in=kl_in, kl_coef=0.5, kl_estimator="k3")
  groups = make_groups(c)
  models = update.Models(state_of(-1.0), reference=np.float32(-1.7))
  batch = update.prepare(c, programs_of(c), models, groups)
  valid = np.arange(c.max_response_len) < groups.response_len[..., None]
  np.testing.assert_allclose(batch.ref_logprobs, np.where(valid, -1.7, 0))
  rewards = np.where(groups.is_correct, 1.0, -1.0)
  if kl_in == "reward":
    d = np.where(valid, -1.7 - groups.old_logprobs, 0.0)
    rewards -= 0.5 * (np.exp(d) - d - 1).sum(-1)
  centered = rewards - rewards.mean(1, keepdims=True)
  expected = centered / (rewards.std(1, keepdims=True) + 1e-6)
  np.testing.assert_allclose(batch.advantages[..., 0], expected, rtol=1e-4)
  assert ("kl" in batch.metrics) == (kl_in == "reward")
  assert ("ref_logprobs" in given(c, "update", groups)[0][2]) == (
    kl_in == "loss"
  )


def test_value_pretraining_learns_monte_carlo_returns():
  c = config(lam_critic=0.5, lam_actor=0.5, lam_alpha=0.0)
  groups = make_groups(c)
  programs, critic = programs_of(c), state_of(0.25)
  batch = update.prepare_values(c, programs, critic, groups)
  valid = np.arange(c.max_response_len) < groups.response_len[..., None]
  outcome = np.where(groups.is_correct, 1.0, -1.0)[..., None]
  np.testing.assert_allclose(batch.returns, np.where(valid, outcome, 0))
  np.testing.assert_allclose(batch.values, np.where(valid, 0.25, 0))
  # In the iterations λ is the config's.
  models = update.Models(state_of(-1.0), critic)
  batch = update.prepare(c, programs, models, groups)
  to_go = groups.response_len[..., None] - 1 - np.arange(c.max_response_len)
  expected = 0.5**to_go * outcome + (1 - 0.5**to_go) * 0.25
  np.testing.assert_allclose(
    batch.returns, np.where(valid, expected, 0), rtol=1e-5, atol=1e-6
  )


def test_the_importance_weight_is_on_the_advantages():
  c = config(tis_limit=1.05, kl_coef=0.0)
  groups = make_groups(c)  # trainer and sampler differ by e^0.1 > 1.05
  models = update.Models(state_of(-1.0), state_of(0.0))
  without = config()
  plain = update.prepare(without, programs_of(without), models, groups)
  batch = update.prepare(c, programs_of(c), models, groups)
  np.testing.assert_allclose(
    batch.advantages, 1.05 * plain.advantages, rtol=1e-5
  )
