"""avg@k, pass@k and the order of the samples."""

import math

import numpy as np
import pytest

from dapo_jax import evaluate
from dapo_jax.data.prompts import Problems
from dapo_jax.types import Rollout


def test_average_clusters_by_problem():
  verdicts = np.array([[1, 1, 1, 1], [0, 0, 0, 0]], bool)
  mean, error = evaluate.average(verdicts)
  # Two problems, means 1 and 0: std 0.7071 with ddof 1, / √2.
  assert mean == 0.5
  np.testing.assert_allclose(error, 0.5)
  assert evaluate.average(verdicts[:1]) == (1.0, 0.0)


@pytest.mark.parametrize("k", [1, 3, 8])
def test_pass_at_k_is_the_closed_form(k):
  right = np.array([0, 1, 3, 8])
  verdicts = np.arange(8) < right[:, None]
  expected = np.mean([1 - math.comb(8 - c, k) / math.comb(8, k) for c in right])
  np.testing.assert_allclose(evaluate.pass_at_k(verdicts, k), expected)
  if k == 1:
    np.testing.assert_allclose(expected, verdicts.mean())


def test_pass_at_more_than_was_sampled_is_refused():
  with pytest.raises(ValueError, match="pass@9"):
    evaluate.pass_at_k(np.ones((2, 8), bool), 9)


@pytest.mark.parametrize("n, k, size, group", [(5, 4, 2, 4), (3, 5, 4, 2)])
def test_every_problem_and_sample_is_judged_once(n, k, size, group):
  problems = Problems(
    [[i] for i in range(n)], [""] * n, [str(i) for i in range(n)], [], [], 0
  )

  def sample(tokens, lengths, index, answers, first):
    del tokens, lengths
    numbers = np.arange(first, first + group)
    grid = (index[:, None] * 100 + numbers).reshape(-1)
    assert answers == [str(i) for i in index]
    rollout = Rollout(None, None, None, grid, grid % 2 == 0)
    return grid % 3 == 0, rollout

  out = evaluate.run(
    problems, sample, num_samples=k, prompts_per_round=size,
    group_size=group, max_prompt_len=2,
  )  # fmt: skip
  grid = np.arange(n)[:, None] * 100 + np.arange(k)
  np.testing.assert_array_equal(out.response_len, grid)
  np.testing.assert_array_equal(out.is_correct, grid % 3 == 0)
