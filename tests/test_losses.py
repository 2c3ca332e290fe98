"""Worked examples of every term of the loss, its gradient, its aggregations."""

import functools

import jax
import jax.numpy as jnp
from jax.test_util import check_grads
import numpy as np
import pytest
import small

from dapo_jax import losses, masked
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


def floats(*values):
  """One row."""
  return jnp.array([values], jnp.float32)


def everywhere(x):
  return jnp.ones(x.shape, bool)


KNOBS = dict(clip_low=0.2, clip_high=0.28)
OBJECTIVES = pytest.mark.parametrize("objective", sorted(losses.OBJECTIVES))


def objective_of(name, **knobs):
  """The sum over tokens of an objective, of log-probabilities first."""
  run = functools.partial(losses.OBJECTIVES[name], **KNOBS | knobs)
  return lambda *args, **more: run(*args, **more)[0].sum()


def steps_off_the_kinks(rng, mask):
  """Log ratios whose exponentials, and those of their row means, are smooth."""
  row = rng.choice([-0.6, -0.1, 0.05, 0.5], (len(mask), 1))
  return jnp.asarray(row + rng.uniform(-0.02, 0.02, mask.shape), jnp.float32)


@OBJECTIVES
@pytest.mark.parametrize("garbage", [jnp.inf, -jnp.inf, jnp.nan])
def test_nothing_on_padding_reaches_an_objective(objective, garbage):
  mask = jnp.array([[True, False, True, True], [False] * 4])
  old = jnp.full((2, 4), -1.0)
  logprobs = old + jnp.array([[0.1, 0.3, -0.1, 0.05], [0.0] * 4])
  advantages = jnp.array([[1.0, 5.0, 1.0, -1.0], [2.0] * 4])
  spoil = lambda x: jnp.where(mask, x, garbage)
  total = jax.value_and_grad(objective_of(objective))
  value, grad = total(logprobs, old, advantages, mask)
  spoilt, spoilt_grad = total(spoil(logprobs), spoil(old), advantages, mask)
  np.testing.assert_array_equal(spoilt, value)
  np.testing.assert_array_equal(spoilt_grad, grad)
  np.testing.assert_array_equal(np.asarray(grad)[~mask], np.zeros(5))
  assert np.abs(np.asarray(grad)[mask]).min() > 0


@OBJECTIVES
def test_only_the_logprobs_have_a_gradient(objective):
  ratio, advantages, mask = worked_batch()
  old = jnp.zeros(mask.shape)
  total = objective_of(objective)
  grads = jax.grad(total, (0, 1, 2))(jnp.log(ratio), old, advantages, mask)
  assert np.abs(np.asarray(grads[0])).max() > 0
  for grad in grads[1:]:
    np.testing.assert_array_equal(grad, np.zeros(mask.shape))


@OBJECTIVES
def test_at_ratio_one_every_gradient_is_the_policy_gradient(objective):
  mask = jnp.asarray(np.arange(4) < np.array([[4], [2], [0]]))
  logprobs = jnp.asarray(
    np.random.default_rng(0).normal(-1, 0.3, mask.shape), jnp.float32
  )
  # GSPO has one advantage a response.
  advantages = jnp.broadcast_to(jnp.array([[0.5], [-2.0], [3.0]]), mask.shape)
  grad = jax.grad(objective_of(objective))(logprobs, logprobs, advantages, mask)
  np.testing.assert_allclose(grad, jnp.where(mask, -advantages, 0), rtol=1e-6)


@OBJECTIVES
@pytest.mark.parametrize("dual_clip", [0.0, 1.5])
def test_a_weight_on_the_advantages_is_one_on_the_loss(objective, dual_clip):
  if objective == "cispo" and dual_clip:
    pytest.skip("has no dual clip")
  rng = np.random.default_rng(1)
  mask = jnp.asarray(np.arange(6) < np.array([[6], [3], [5]]))
  draw = lambda scale: jnp.asarray(
    rng.normal(0, scale, mask.shape), jnp.float32
  )
  old = draw(0.5) - 1
  logprobs, advantages = old + draw(0.6), draw(1.0)
  w = jnp.asarray(rng.choice([0.0, 0.3, 1.0, 1.9], mask.shape), jnp.float32)
  run = functools.partial(
    losses.OBJECTIVES[objective], **KNOBS, dual_clip=dual_clip
  )
  plain, _ = run(logprobs, old, advantages, mask)
  weighted, _ = run(logprobs, old, advantages * w, mask)
  np.testing.assert_allclose(weighted, w * plain, rtol=1e-6)
  assert np.abs(np.asarray(plain)[mask]).min() > 0


@pytest.mark.parametrize(
  "advantage, high, objective, has_gradient",
  [
    # Log ratios 0.1 and 0.3: s = e^0.2 = 1.2214 at both tokens.
    (1.0, 0.3, 1.2214028, True),
    (1.0, 0.2, 1.2, False),
    (-1.0, 0.2, -1.2214028, True),
  ],
)
def test_gspo_clips_the_ratio_of_the_response(
  advantage, high, objective, has_gradient
):
  old = floats(-1.0, -2.0)
  logprobs = old + floats(0.1, 0.3)
  run = lambda logprobs: losses.sequence_policy_loss(
    logprobs, old, jnp.full((1, 2), advantage), everywhere(old),
    clip_low=0.2, clip_high=high,
  )  # fmt: skip
  loss, metrics = run(logprobs)
  np.testing.assert_allclose(loss, [[-objective] * 2], rtol=1e-6)
  np.testing.assert_allclose(metrics["ratio_mean"].value(), 1.2214028, 1e-6)
  assert metrics["clip_frac_high"].value() == (not has_gradient)
  # Two tokens of -s A, s = exp of half their sum: -s A at each.
  grad = jax.grad(lambda x: run(x)[0].sum())(logprobs)
  expected = -objective if has_gradient else 0.0
  np.testing.assert_allclose(grad, [[expected] * 2], rtol=1e-6)


def test_gspo_has_one_ratio_a_response():
  rng = np.random.default_rng(2)
  lengths = [4, 1, 6, 0]
  mask = np.arange(6) < np.array(lengths)[:, None]
  old = rng.normal(-1, 0.4, mask.shape).astype(np.float32)
  logprobs = (old + rng.normal(0, 0.3, mask.shape)).astype(np.float32)
  loss, metrics = losses.sequence_policy_loss(
    jnp.asarray(logprobs), jnp.asarray(old), jnp.ones(mask.shape),
    jnp.asarray(mask), clip_low=1.0, clip_high=100.0,
  )  # fmt: skip
  ratios = []
  for b, n in enumerate(lengths):
    total = sum(float(logprobs[b, t]) - float(old[b, t]) for t in range(n))
    ratios.append(np.exp(total / max(n, 1)))
    np.testing.assert_allclose(loss[b, :n], [-ratios[b]] * n, rtol=1e-6)
    np.testing.assert_array_equal(loss[b, n:], np.zeros(6 - n))
  np.testing.assert_allclose(
    metrics["ratio_max"].value(), max(ratios[:3]), rtol=1e-6
  )
  np.testing.assert_allclose(
    -metrics["ratio_min_negated"].value(), min(ratios[:3]), rtol=1e-6
  )


@OBJECTIVES
def test_packed_responses_are_as_if_alone(objective):
  responses, segments = small.RESPONSES, small.SEGMENTS
  mask = responses > 0
  rng = np.random.default_rng(3)
  old = rng.normal(-1, 0.3, mask.shape).astype(np.float32)
  logprobs = (old + rng.normal(0, 0.3, mask.shape)).astype(np.float32)
  advantages = rng.normal(size=mask.shape).astype(np.float32)
  numbers = [(row, n) for row in range(3) for n in range(1, 7)]
  row = [row for row, _ in numbers]
  alone = np.array([responses[row] == n for row, n in numbers])

  @jax.jit
  @functools.partial(jax.grad, has_aux=True)
  def run(logprobs, old, advantages, mask, segments=None):
    loss, metrics = losses.OBJECTIVES[objective](
      logprobs, old, advantages, mask, segments=segments, **KNOBS
    )
    return loss.sum(), (loss, metrics)

  spoil = lambda x: np.where(mask, x, np.float32(np.nan))
  grad, (loss, metrics) = run(
    spoil(logprobs), spoil(old), advantages, mask, segments
  )
  own_grad, (own_loss, own_metrics) = run(
    logprobs[row], old[row], advantages[row], alone
  )
  for found, expected in ((loss, own_loss), (grad, own_grad)):
    expected = np.asarray(expected).reshape(3, 6, -1).sum(1)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
  for name, metric in own_metrics.items():
    np.testing.assert_allclose(metrics[name].value(), metric.value(), rtol=1e-6)


@pytest.mark.parametrize("dual_clip", [0.0, 1.5])
def test_gradient_of_gspo(dual_clip):
  rng = np.random.default_rng(4)
  mask = jnp.asarray(np.arange(5) < np.array([[5], [2], [4], [1]]))
  old = jnp.asarray(rng.normal(-1, 0.3, mask.shape), jnp.float32)
  advantages = jnp.asarray(rng.normal(size=mask.shape), jnp.float32)
  weight = jnp.asarray(rng.uniform(0.5, 1, mask.shape), jnp.float32)

  def total(logprobs):
    logprobs = jnp.asarray(logprobs)  # check_grads hands over numpy
    loss, _ = losses.sequence_policy_loss(
      logprobs, old, advantages, mask, **KNOBS, dual_clip=dual_clip
    )
    return (loss * weight).sum()

  at = old + steps_off_the_kinks(rng, mask)
  check_grads(total, (at,), order=1, modes=["rev"], atol=1e-2, rtol=1e-2)
  assert np.abs(jax.grad(total)(at)).max() > 0.1


@pytest.mark.parametrize(
  "ratio, advantage, low, weight, ppo_has_gradient",
  [
    (1.5, 1.0, 0.2, 1.28, False),
    (0.5, -1.0, 0.2, 0.8, False),
    (1.1, 2.0, 0.2, 1.1, True),
    (1.5, -1.0, 0.2, 1.28, True),
    (0.5, 2.0, 0.2, 0.8, True),
    (0.5, -1.0, 1.0, 0.5, True),
  ],
)
def test_cispo_clips_the_weight_and_never_the_gradient(
  ratio, advantage, low, weight, ppo_has_gradient
):
  old = jnp.log(floats(0.3))
  logprobs = old + jnp.log(floats(ratio))
  args = old, floats(advantage), everywhere(old)
  knobs = dict(clip_low=low, clip_high=0.28)
  loss, metrics = losses.clipped_is_policy_loss(logprobs, *args, **knobs)
  # Clipped weights count whatever the sign of A.
  assert metrics["clip_frac_high"].value() == (ratio > 1.28)
  assert metrics["clip_frac_low"].value() == (ratio < 1 - low)
  expected = -weight * advantage * np.log(0.3 * ratio)
  np.testing.assert_allclose(loss, [[expected]], rtol=1e-5)
  grad = jax.grad(objective_of("cispo", **knobs))(logprobs, *args)
  np.testing.assert_allclose(grad, [[-weight * advantage]], rtol=1e-5)
  grad = jax.grad(objective_of("clip", **knobs))(logprobs, *args)
  assert (grad[0, 0] != 0) == ppo_has_gradient


@pytest.mark.parametrize(
  "v, old, target, clip, loss, grad",
  [
    (2.0, 1.0, 0.0, 0.0, 2.0, 2.0),
    (2.0, 1.0, 3.0, 0.0, 0.5, -1.0),
    # Held at 1.5: the worse of the two counts, and a held V has no gradient.
    (2.0, 1.0, 0.0, 0.5, 2.0, 2.0),
    (2.0, 1.0, 3.0, 0.5, 1.125, 0.0),
    # Held at 0.5.
    (0.0, 1.0, 2.0, 0.5, 2.0, -2.0),
    (0.0, 1.0, -1.0, 0.5, 1.125, 0.0),
    # Within the range.
    (1.25, 1.0, 3.0, 0.5, 1.53125, -1.75),
  ],
)
def test_value_loss_by_hand(v, old, target, clip, loss, grad):
  run = lambda v: losses.value_loss(
    v, floats(old), floats(target), everywhere(v), clip_value=clip
  )
  np.testing.assert_array_equal(run(floats(v)), [[loss]])
  np.testing.assert_array_equal(
    jax.grad(lambda v: run(v).sum())(floats(v)), [[grad]]
  )


@pytest.mark.parametrize("clip_value", [0.0, 0.5])
@pytest.mark.parametrize("garbage", [jnp.nan, jnp.inf])
def test_nothing_on_padding_reaches_the_value_loss(clip_value, garbage):
  mask = jnp.array([[True, False, True]])
  spoil = lambda *x: jnp.where(mask, floats(*x), garbage)
  total = lambda *args: losses.value_loss(
    *args, mask, clip_value=clip_value
  ).sum()
  args = spoil(2.0, 0.0, 1.25), spoil(1.0, 0.0, 1.0), spoil(0.0, 0.0, 3.0)
  value, grads = jax.value_and_grad(total, (0, 1, 2))(*args)
  np.testing.assert_array_equal(value, 2.0 + 1.53125)
  np.testing.assert_array_equal(grads[0], [[2.0, 0.0, -1.75]])
  # Old values and targets are constants.
  np.testing.assert_array_equal(grads[1:], np.zeros((2, 1, 3)))


@pytest.mark.parametrize("clip_value", [0.0, 0.5])
def test_gradient_of_the_value_loss(clip_value):
  rng = np.random.default_rng(5)
  draw = lambda scale: jnp.asarray(rng.normal(0, scale, (4, 5)), jnp.float32)
  old, returns = draw(1.0), draw(1.0)
  steps = rng.choice([-0.9, -0.3, 0.2, 0.8], (4, 5))
  values = old + jnp.asarray(steps, jnp.float32)
  total = lambda v: losses.value_loss(
    jnp.asarray(v), old, returns, everywhere(old), clip_value=clip_value
  ).sum()
  check_grads(total, (values,), order=1, modes=["rev"], atol=1e-2, rtol=1e-2)


@pytest.mark.parametrize(
  "estimator, ref_twice_as_likely, half_as_likely",
  [
    ("k1", -0.6931472, 0.6931472),
    ("k2", 0.2402265, 0.2402265),
    ("k3", 0.3068528, 0.1931472),
  ],
)
def test_kl_by_hand(estimator, ref_twice_as_likely, half_as_likely):
  logprobs = jnp.log(floats(0.25, 0.5, 0.3))
  ref = jnp.log(floats(0.5, 0.25, 0.3))
  out = losses.kl(logprobs, ref, everywhere(ref), estimator=estimator)
  np.testing.assert_allclose(
    out, [[ref_twice_as_likely, half_as_likely, 0.0]], rtol=1e-6
  )


def test_k3_is_never_negative():
  size = np.logspace(-9, 1.9, 20001)
  d = jnp.asarray(np.concatenate([size, -size])[None], jnp.float32)
  out = losses.kl(jnp.zeros(d.shape), d, everywhere(d), estimator="k3")
  assert out.min() >= 0
  np.testing.assert_array_equal(out[d < -1] > 0, True)


def categorical():
  """Log-probabilities of two distributions over five tokens."""
  rng = np.random.default_rng(6)
  logits = jnp.asarray(rng.normal(size=(2, 5)), jnp.float32)
  return logits[:1], jax.nn.log_softmax(logits[1:])


def exact_kl(logprobs, ref):
  p, q = (np.exp(np.asarray(x, np.float64)) for x in (logprobs, ref))
  return float(np.sum(p * np.log(p / q)))


@pytest.mark.parametrize("estimator", ["k1", "k3"])
def test_the_expectation_of_an_unbiased_estimator_is_the_kl(estimator):
  logits, ref = categorical()
  logprobs = jax.nn.log_softmax(logits)
  out = losses.kl(logprobs, ref, everywhere(ref), estimator=estimator)
  np.testing.assert_allclose(
    (jnp.exp(logprobs) * out).sum(), exact_kl(logprobs, ref), rtol=1e-5
  )


def test_the_expected_gradient_of_a_kl_term():
  logits, ref = categorical()

  def term(logits, estimator):  # tokens drawn from π, held fixed
    logprobs = jax.nn.log_softmax(logits)
    drawn = jax.lax.stop_gradient(jnp.exp(logprobs))
    kl = losses.kl(logprobs, ref, everywhere(ref), estimator=estimator)
    return (drawn * kl).sum()

  p, q = (np.exp(jax.nn.log_softmax(x)) for x in (logits, ref))
  log = np.log(p / q)
  for estimator, expected in (
    ("k1", np.zeros((1, 5))),
    ("k2", p * (log - (p * log).sum())),  # that of KL(π || π_ref)
    ("k3", p - q),  # that of KL(π_ref || π)
  ):
    grad = jax.grad(term)(logits, estimator)
    np.testing.assert_allclose(grad, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("estimator", sorted(losses.KL_ESTIMATORS))
def test_gradient_of_a_kl_term(estimator):
  rng = np.random.default_rng(7)
  draw = lambda: jnp.asarray(rng.normal(-1, 0.5, (3, 4)), jnp.float32)
  logprobs, ref = draw(), draw()
  mask = jnp.asarray(np.arange(4) < np.array([[4], [2], [0]]))
  total = lambda x: losses.kl(
    jnp.asarray(x), ref, mask, estimator=estimator
  ).sum()
  check_grads(total, (logprobs,), order=1, modes=["rev"], atol=1e-2, rtol=1e-2)


@pytest.mark.parametrize("estimator", sorted(losses.KL_ESTIMATORS))
@pytest.mark.parametrize("garbage", [jnp.inf, -jnp.inf, jnp.nan])
def test_nothing_on_padding_reaches_the_kl(estimator, garbage):
  mask = jnp.array([[True, False, True]])
  spoil = lambda *x: jnp.where(mask, floats(*x), garbage)
  total = lambda x, ref: losses.kl(x, ref, mask, estimator=estimator).sum()
  run = jax.value_and_grad(total, (0, 1))
  for logprobs, ref in (
    (spoil(-1.0, -1.0, -2.0), floats(-2.0, -1.0, -1.0)),
    (floats(-1.0, -1.0, -2.0), spoil(-2.0, -1.0, -1.0)),
    (spoil(-1.0, -1.0, -2.0), spoil(-2.0, -1.0, -1.0)),
  ):
    value, (grad, ref_grad) = run(logprobs, ref)
    assert np.isfinite(value)
    # d is -1 and 1: k1' = 1, k2' = -d, k3' = 1 - e^d.
    expected = {
      "k1": [1.0, 0.0, 1.0],
      "k2": [1.0, 0.0, -1.0],
      "k3": [0.6321206, 0.0, -1.7182818],
    }[estimator]
    np.testing.assert_allclose(grad, [expected], rtol=1e-6)
    # The reference is a constant.
    np.testing.assert_array_equal(ref_grad, np.zeros((1, 3)))


@pytest.mark.parametrize(
  "mode, expected",
  [
    ("truncate", [1.5, 0.5, 0.8, 1.25, 1.0, 1.0]),
    ("mask", [0.0, 0.0, 0.8, 1.25, 1.0, 1.0]),
  ],
)
def test_importance_weight_by_hand(mode, expected):
  # Ratios 2, 1/2, 4/5, 5/4, 1, and padding; 1/C = 2/3.
  old = jnp.log(floats(0.2, 0.2, 0.4, 0.5, 0.3, 0.0))
  rollout = jnp.log(floats(0.1, 0.4, 0.5, 0.4, 0.3, 0.9))
  mask = jnp.array([[True] * 5 + [False]])
  out = losses.importance_weight(old, rollout, mask, limit=1.5, mode=mode)
  np.testing.assert_allclose(out, [expected], rtol=1e-6)
  same = losses.importance_weight(old, old, mask, limit=1.0, mode=mode)
  np.testing.assert_array_equal(same, np.ones((1, 6)))


def test_the_entropy_coefficient_leads_the_entropy_to_its_target():
  following = functools.partial(losses.next_entropy_coef, target=0.5, step=0.25)
  assert following(0.5, 0.4) == 0.75
  assert following(0.5, 0.6) == 0.25
  assert following(0.125, 0.6) == 0.0
  assert following(0.0, 0.6) == 0.0
  assert following(0.0, 0.4) == 0.25


def test_nll_over_two_correct_responses_of_two_and_four_tokens():
  # (1 + 2 + 3 + 4 + 5 + 6) / 6 = 3.5; the mean of their means is 3.
  logprobs = -jnp.array([
    [1.0, 2.0, jnp.inf, jnp.nan],
    [9.0, 9.0, 9.0, jnp.inf],
    [3.0, 4.0, 5.0, 6.0],
  ])  # fmt: skip
  mask = np.arange(4) < np.array([[2], [3], [4]])
  correct = jnp.asarray(mask & np.array([[True], [False], [True]]))

  def total(logprobs):
    loss = losses.nll(logprobs, correct)
    return masked.metric(loss, correct).value(), loss

  (value, loss), grad = jax.value_and_grad(total, has_aux=True)(logprobs)
  np.testing.assert_array_equal(
    loss, [[1, 2, 0, 0], [0, 0, 0, 0], [3, 4, 5, 6]]
  )
  np.testing.assert_allclose(value, 3.5, rtol=1e-6)
  np.testing.assert_allclose(grad, np.where(correct, -1 / 6, 0), rtol=1e-6)


def test_segment_mean_by_hand():
  x = jnp.array([[1.0, 2.0, jnp.nan, 6.0, jnp.nan], [1.0, 2.0, 3.0, 4.0, 8.0]])
  mask = jnp.array([[True, True, False, True, False], [True] * 5])
  segments = jnp.array([[0, 1, 1, 1, 4], [3, 3, 0, 0, 0]])
  out = masked.segment_mean(x, mask, segments)
  np.testing.assert_array_equal(out, [[1, 4, 4, 4, 0], [1.5, 1.5, 5, 5, 5]])
