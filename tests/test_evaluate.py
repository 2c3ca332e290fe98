"""avg@k, pass@k, maj@k, their intervals, and the order of the samples."""

import math

import numpy as np
import pytest

from dapo_jax import evaluate
from dapo_jax.data.prompts import Problems


def test_the_interval_of_an_average_is_about_problems():
  verdicts = np.array([[1, 1, 1, 1], [0, 0, 0, 0]] * 10, bool)
  found = evaluate.average(verdicts)
  # Samples of a problem agree, so 80 of them are worth 20: Wilson's interval
  # of 10 in 20 at z = 1.96 is 0.299 to 0.701.
  np.testing.assert_allclose(found, (0.5, 0.2993, 0.7007), atol=1e-4)
  # The same share, but every problem half right: worth all 80.
  mixed = evaluate.average(np.array([[1, 1, 0, 0]] * 10 + [[0, 1, 0, 1]] * 10,
                                    bool))  # fmt: skip
  np.testing.assert_allclose(mixed.value, 0.5)
  assert found.high - found.low > mixed.high - mixed.low


def test_nothing_right_is_no_proof_of_zero():
  found = evaluate.average(np.zeros((30, 8), bool))
  # Wilson, 0 of 30: z² / (30 + z²).
  np.testing.assert_allclose(found, (0, 0, 3.8415 / 33.8415), atol=1e-4)
  alone = evaluate.average(np.ones((1, 4), bool))
  assert alone.value == 1.0 and alone.low < 0.5 and alone.high == 1.0


def test_the_interval_covers():
  """Simulated: problems with pass rates of their own, truth 0.3."""
  rng = np.random.default_rng(0)
  inside = 0
  for _ in range(400):
    rates = rng.beta(0.6, 1.4, size=(40, 1))
    found = evaluate.average(rng.random((40, 8)) < rates)
    inside += found.low <= 0.3 <= found.high
  assert 0.92 <= inside / 400 <= 0.98


def test_one_lucky_sample_does_not_shrink_the_interval():
  none = evaluate.average(np.zeros((30, 8), bool))
  verdicts = np.zeros((30, 8), bool)
  verdicts[0, 0] = True
  lucky = evaluate.average(verdicts)
  assert lucky.high > none.high and lucky.value == 1 / 240


def test_averages_do_not_depend_on_k_in_expectation():
  """And pass@1 is avg@k, whatever k."""
  rng = np.random.default_rng(1)
  rates = rng.random((50, 1))
  means = {}
  for k in (1, 4, 16):
    draws = rng.random((50, 20_000 // k, k)) < rates[:, :, None]
    means[k] = [
      np.mean([evaluate.average(draws[:, j]).value for j in range(200)]),
      np.mean([evaluate.pass_at_k(draws[:, j], 1).value for j in range(200)]),
    ]
    np.testing.assert_allclose(*means[k], rtol=1e-12)
    # 200 evaluations of 50 problems: standard error at most 0.5/√10000.
    np.testing.assert_allclose(means[k][0], rates.mean(), atol=0.015)


@pytest.mark.parametrize("k", [1, 3, 8])
def test_pass_at_k_is_the_closed_form(k):
  right = np.array([0, 1, 3, 8])
  verdicts = np.arange(8) < right[:, None]
  expected = np.mean([1 - math.comb(8 - c, k) / math.comb(8, k) for c in right])
  found = evaluate.pass_at_k(verdicts, k)
  np.testing.assert_allclose(found.value, expected)
  assert found.low < found.value < found.high


def test_pass_at_more_than_was_sampled_is_refused():
  with pytest.raises(ValueError, match="pass@9"):
    evaluate.pass_at_k(np.ones((2, 8), bool), 9)


def of(predictions, answer):
  right = [[p is not None and float(p) == answer for p in predictions]]
  shape = np.shape(right)
  return evaluate.Evaluation(
    np.array(right), np.ones(shape, np.int32), np.zeros(shape, bool),
    [predictions],
  )  # fmt: skip


@pytest.mark.parametrize(
  "predictions, expected",
  [
    (["0.5", "0.50", "3", "7"], 1.0),  # two ways to write it vote together
    (["3", "0.5", "3", None], 0.0),
    (["3", "0.5", "4"], 1 / 3),  # of a tie each counts its share
    ([None, None, "0.5"], 1.0),  # no answer, no vote
    ([None, None], 0.0),
  ],
)
def test_majority(predictions, expected):
  found = evaluate.majority(of(predictions, 0.5), "symbolic")
  np.testing.assert_allclose(found.value, expected)


def test_the_summary_of_one_sample_is_its_average():
  found = of(["0.5"], 0.5)
  assert list(evaluate.summarize(found, "symbolic")) == ["avg@1"]
  names = list(evaluate.summarize(of(["1"] * 6, 1.0), "integer"))
  assert names == ["avg@6", "pass@2", "pass@4", "pass@6", "maj@6"]


def a_policy(n, group):
  problems = Problems(
    [[i] for i in range(n)], [""] * n, [str(i) for i in range(n)], [], [], n, {}
  )
  calls = []

  def sample(tokens, lengths, index, first):
    del tokens, lengths
    calls.append((tuple(index), first))
    return first

  def judged(first, index):
    grid = (index[:, None] * 100 + np.arange(first, first + group)).reshape(-1)
    return [
      {"response": "", "prediction": str(x), "correct": x % 3 == 0,
       "truncated": x % 2 == 0, "response_len": x} for x in grid.tolist()
    ]  # fmt: skip

  return problems, sample, judged, calls


@pytest.mark.parametrize("n, k, size, group", [(5, 4, 2, 4), (3, 5, 4, 2)])
def test_every_problem_and_sample_is_judged_once(n, k, size, group):
  *policy, _ = a_policy(n, group)
  written = []
  knobs = dict(num_samples=k, prompts_per_round=size, group_size=group,
               max_prompt_len=2)  # fmt: skip
  out = evaluate.run(*policy, **knobs, write=written.append)
  grid = np.arange(n)[:, None] * 100 + np.arange(k)
  np.testing.assert_array_equal(out.response_len, grid)
  np.testing.assert_array_equal(out.is_correct, grid % 3 == 0)
  np.testing.assert_array_equal(out.is_truncated, grid % 2 == 0)
  assert out.predictions == [[str(x) for x in line] for line in grid]
  places = {(r["problem"], r["sample"]) for r in written}
  assert len(places) == len(written) == n * k

  # Interrupted anywhere, it goes on: nothing twice, the same result.
  for stop in (0, 1, len(written) // 2, len(written)):
    *policy, calls = a_policy(n, group)
    more = []
    again = evaluate.run(
      *policy, **knobs, done=written[:stop], write=more.append
    )
    assert written[:stop] + more == written
    np.testing.assert_array_equal(again.response_len, out.response_len)
    if stop == len(written):
      assert not calls and not more
