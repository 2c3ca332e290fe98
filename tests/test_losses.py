"""Worked examples of the objective, its gradient, and its aggregations."""

import jax
import jax.numpy as jnp
from jax.test_util import check_grads
import numpy as np
import pytest

from dapo_jax import losses
from dapo_jax.advantages import group_normalized

SIZES = dict(group_size=4, max_response_len=10)


def of_ratio(ratio, advantage, mask=None, **knobs):
  """Loss of tokens with the given ratios; old log-probabilities are 0.2."""
  ratio = jnp.atleast_2d(jnp.asarray(ratio, jnp.float32))
  old = jnp.full(ratio.shape, jnp.log(0.2))
  if mask is None:
    mask = jnp.ones(ratio.shape, bool)
  advantage = jnp.broadcast_to(jnp.float32(advantage), ratio.shape)
  return losses.policy_loss(old + jnp.log(ratio), old, advantage, mask, **knobs)


@pytest.mark.parametrize(
  "ratio, advantage, low, high, objective, has_gradient",
  [
    (1.25, 1.0, 0.2, 0.2, 1.2, False),
    (1.25, 1.0, 0.2, 0.3, 1.25, True),
    (0.7, 1.0, 0.2, 0.28, 0.7, True),
    (0.7, -1.0, 0.2, 0.28, -0.8, False),
    (0.9, -1.0, 0.2, 0.28, -0.9, True),
    (1.5, -1.0, 0.2, 0.28, -1.5, True),
    (1.29, 2.0, 0.2, 0.28, 2.56, False),
  ],
)
def test_clipped_objective(
  ratio, advantage, low, high, objective, has_gradient
):
  loss, _ = of_ratio(ratio, advantage, clip_low=low, clip_high=high)
  np.testing.assert_allclose(loss, [[-objective]], rtol=1e-6)
  grad = jax.grad(
    lambda r: of_ratio(r, advantage, clip_low=low, clip_high=high)[0].sum()
  )(jnp.float32(ratio))
  np.testing.assert_allclose(
    grad, -advantage if has_gradient else 0.0, rtol=1e-5, atol=1e-7
  )


def test_clip_higher_raises_the_ceiling_of_unlikely_tokens():
  # The paper's reason: with ε = 0.2 a probability of 0.01 may reach 0.012,
  # one of 0.9 may reach 1.08.
  for old, ceiling in ((0.01, 0.012), (0.9, 1.08)):
    objective = lambda p, old=old: -losses.policy_loss(
      jnp.log(p)[None, None], jnp.log(jnp.full((1, 1), old)),
      jnp.ones((1, 1)), jnp.ones((1, 1), bool), clip_low=0.2, clip_high=0.2,
    )[0][0, 0]  # fmt: skip
    below, above = jnp.float32(ceiling * 0.999), jnp.float32(ceiling * 1.001)
    assert jax.grad(objective)(below) > 0
    assert jax.grad(objective)(above) == 0


def test_dual_clip_bounds_the_loss_of_a_bad_token():
  knobs = dict(clip_low=0.2, clip_high=0.28)
  loss, _ = of_ratio(20.0, -1.0, **knobs, dual_clip=10.0)
  np.testing.assert_allclose(loss, [[10.0]])
  loss, _ = of_ratio(20.0, -1.0, **knobs)
  np.testing.assert_allclose(loss, [[20.0]], rtol=1e-6)
  # A > 0 is never touched.
  loss, _ = of_ratio(0.01, 1.0, **knobs, dual_clip=10.0)
  np.testing.assert_allclose(loss, [[-0.01]], rtol=1e-6)


def worked_batch():
  """Correctness [1,0,1,0], lengths [2,4,2,4], one ratio a response."""
  lengths = np.array([2, 4, 2, 4])
  mask = jnp.asarray(np.arange(10) < lengths[:, None])
  rewards = jnp.array([[1.0, -1.0, 1.0, -1.0]])
  advantages = group_normalized(rewards, eps=0.0).reshape(4, 1)
  ratio = jnp.broadcast_to(
    jnp.array([1.25, 0.9, 1.4, 0.7])[:, None], mask.shape
  )
  return ratio, jnp.broadcast_to(advantages, mask.shape), mask


def test_worked_example_of_the_whole():
  ratio, advantages, mask = worked_batch()

  def total(ratio):
    loss, metrics = of_ratio(
      ratio, advantages, mask, clip_low=0.2, clip_high=0.3
    )
    return losses.aggregate(loss, mask, loss_agg="token_mean", **SIZES), (
      loss,
      metrics,
    )

  (value, (loss, metrics)), grad = jax.value_and_grad(total, has_aux=True)(
    ratio
  )
  np.testing.assert_allclose(loss[:, 0], [-1.25, 0.9, -1.3, 0.8], rtol=1e-6)
  # J = (2*1.25 - 4*0.9 + 2*1.3 - 4*0.8) / 12 = -17/120
  np.testing.assert_allclose(value, 17 / 120, rtol=1e-6)
  reached = np.asarray(jnp.abs(grad).sum(1) > 0)
  np.testing.assert_array_equal(reached, [True, True, False, False])
  np.testing.assert_allclose(metrics["clip_frac_high"].value(), 2 / 12)
  np.testing.assert_allclose(metrics["clip_frac_low"].value(), 4 / 12)
  np.testing.assert_allclose(metrics["ratio_max"].value(), 1.4, rtol=1e-6)
  np.testing.assert_allclose(
    -metrics["ratio_min_negated"].value(), 0.7, rtol=1e-6
  )
  np.testing.assert_allclose(
    metrics["ratio_mean"].value(), (2.5 + 3.6 + 2.8 + 2.8) / 12, rtol=1e-6
  )


def test_weights_of_lengths_two_and_four():
  mask = jnp.asarray(np.arange(4) < np.array([[2], [4]]))
  sizes = dict(group_size=2, max_response_len=4)
  for name, expected in (
    ("token_mean", (1 / 6, 1 / 6)),
    ("seq_mean_token_mean", (1 / 4, 1 / 8)),
    ("seq_mean_token_sum_const", (1 / 8, 1 / 8)),
    ("group_token_mean", (1 / 6, 1 / 6)),
  ):
    weight, count = losses.AGGREGATIONS[name](mask, **sizes)
    per_token = np.asarray(weight / count)
    np.testing.assert_allclose(per_token[:, 0], expected, rtol=1e-6)
    assert per_token[0, 2] == 0


def test_group_token_mean_is_the_mean_over_groups():
  # Two groups of two: lengths (1, 3) and (4, 4).
  mask = jnp.asarray(np.arange(4) < np.array([[1], [3], [4], [4]]))
  loss = jnp.arange(16.0).reshape(4, 4)
  loss = jnp.where(mask, loss, 0.0)
  expected = (float(loss[:2].sum()) / 4 + float(loss[2:].sum()) / 8) / 2
  value = losses.aggregate(
    loss, mask, loss_agg="group_token_mean", group_size=2, max_response_len=4
  )
  np.testing.assert_allclose(value, expected, rtol=1e-6)


@pytest.mark.parametrize("loss_agg", sorted(losses.AGGREGATIONS))
def test_aggregation_ignores_padding_and_empty_rows(loss_agg):
  rng = np.random.default_rng(0)
  lengths = np.array([3, 0, 5, 1, 0, 0, 0, 0])
  mask = np.arange(6) < lengths[:, None]
  loss = np.where(mask, rng.normal(size=mask.shape), 7.0).astype(np.float32)
  value = losses.aggregate(
    jnp.asarray(loss), jnp.asarray(mask), loss_agg=loss_agg, **SIZES
  )
  wider = losses.aggregate(
    jnp.pad(loss, ((0, 4), (0, 5))), jnp.pad(mask, ((0, 4), (0, 5))),
    loss_agg=loss_agg, **SIZES,
  )  # fmt: skip
  np.testing.assert_allclose(value, wider, rtol=1e-6)
  sums = np.array([loss[b, :n].sum() for b, n in enumerate(lengths)])
  by_hand = {
    "token_mean": sums.sum() / 9,
    "group_token_mean": sums.sum() / 9,  # the second group has no token
    "seq_mean_token_mean": (sums[0] / 3 + sums[2] / 5 + sums[3]) / 3,
    "seq_mean_token_sum_const": sums.sum() / 10 / 3,
  }[loss_agg]
  np.testing.assert_allclose(value, by_hand, rtol=1e-5)


@pytest.mark.parametrize("loss_agg", sorted(losses.AGGREGATIONS))
def test_no_valid_token_is_a_zero_loss_with_a_zero_gradient(loss_agg):
  mask = jnp.zeros((4, 3), bool)

  def total(logprobs):
    loss, _ = losses.policy_loss(
      logprobs, jnp.full((4, 3), -jnp.inf), jnp.ones((4, 3)), mask,
      clip_low=0.2, clip_high=0.28,
    )  # fmt: skip
    return losses.aggregate(loss, mask, loss_agg=loss_agg, **SIZES)

  value, grad = jax.value_and_grad(total)(jnp.full((4, 3), jnp.inf))
  assert value == 0
  np.testing.assert_array_equal(grad, np.zeros((4, 3)))


@pytest.mark.parametrize("loss_agg", sorted(losses.AGGREGATIONS))
def test_gradient(loss_agg):
  rng = np.random.default_rng(1)
  mask = jnp.asarray(np.arange(5) < np.array([[5], [2], [4], [1]]))
  old = jnp.asarray(rng.normal(-1, 0.3, mask.shape), jnp.float32)
  advantages = jnp.asarray(rng.normal(size=mask.shape), jnp.float32)
  # Ratios away from the kinks of min and clip.
  steps = rng.choice([-0.6, -0.1, 0.05, 0.5], mask.shape)
  knobs = dict(clip_low=0.2, clip_high=0.28, dual_clip=10.0)

  def total(logprobs):
    logprobs = jnp.asarray(logprobs)  # check_grads hands over numpy
    loss, _ = losses.policy_loss(logprobs, old, advantages, mask, **knobs)
    return losses.aggregate(loss, mask, loss_agg=loss_agg, **SIZES)

  check_grads(
    total, (old + jnp.asarray(steps, jnp.float32),), order=1, modes=["rev"],
    atol=1e-2, rtol=1e-2,
  )  # fmt: skip


def test_old_logprobs_and_advantages_are_constants():
  ratio, advantages, mask = worked_batch()
  old = jnp.zeros(mask.shape)

  def total(old, advantages):
    return losses.policy_loss(
      jnp.log(ratio), old, advantages, mask, clip_low=0.2, clip_high=0.3
    )[0].sum()

  for grad in jax.grad(total, (0, 1))(old, advantages):
    np.testing.assert_array_equal(grad, np.zeros(mask.shape))


def test_unknown_aggregation_lists_the_choices():
  with pytest.raises(ValueError, match="token_mean"):
    losses.aggregate(
      jnp.zeros((4, 1)), jnp.ones((4, 1), bool), loss_agg="mean", **SIZES
    )
