"""Group advantages against their closed forms."""

import jax.numpy as jnp
import numpy as np
import pytest

from dapo_jax import advantages


def rewards(correct, group_size=16):
  """One group with the first `correct` responses right."""
  return jnp.where(jnp.arange(group_size) < correct, 1.0, -1.0)[None]


@pytest.mark.parametrize(
  "correct, right, wrong",
  [(1, 3.75, -0.25), (8, 0.968, -0.968), (15, 0.25, -3.75)],
)
def test_closed_form_of_the_published_recipe(correct, right, wrong):
  out = advantages.group_normalized(rewards(correct), std_ddof=1)[0]
  np.testing.assert_allclose(out[0], right, atol=1e-3)
  np.testing.assert_allclose(out[-1], wrong, atol=1e-3)


@pytest.mark.parametrize("correct", range(1, 16))
def test_population_std_closed_form(correct):
  # mean 2p - 1, std 2 √(p (1 - p)): A = √((1 - p) / p) and -√(p / (1 - p)).
  p = correct / 16
  out = advantages.group_normalized(rewards(correct))[0]
  np.testing.assert_allclose(out[0], np.sqrt((1 - p) / p), rtol=1e-5)
  np.testing.assert_allclose(out[-1], -np.sqrt(p / (1 - p)), rtol=1e-5)


def test_equal_rewards_have_no_advantage():
  for ddof in (0, 1):
    out = advantages.group_normalized(jnp.full((3, 4), -1.0), std_ddof=ddof)
    np.testing.assert_array_equal(out, np.zeros((3, 4)))


def test_a_group_of_one_has_advantage_zero():
  for ddof in (0, 1):
    for estimator in advantages.ESTIMATORS.values():
      out = estimator(jnp.array([[1.0], [-1.0]]), std_ddof=ddof)
      np.testing.assert_array_equal(out, np.zeros((2, 1)))


def test_centered_has_no_std():
  out = advantages.group_centered(jnp.array([[1.0, -1.0, -1.0, -1.0]]))
  np.testing.assert_allclose(out, [[1.5, -0.5, -0.5, -0.5]])


def test_groups_do_not_touch_each_other():
  both = jnp.concatenate([rewards(3), rewards(12)])
  for estimator in advantages.ESTIMATORS.values():
    np.testing.assert_array_equal(estimator(both)[1:], estimator(rewards(12)))
