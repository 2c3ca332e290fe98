"""Accuracy on held-out problems: avg@k with its interval, and greedy."""

from collections.abc import Callable
from typing import NamedTuple

from jaxtyping import Bool, Float, Int
import numpy as np

from dapo_jax.data.prompts import Problems, pad


class Evaluation(NamedTuple):
  """Verdicts on n problems x k samples.

  Attributes:
    is_correct: verdicts.
    response_len: tokens, end of sequence included.
    is_truncated: no end of sequence within the limit.
  """

  is_correct: Bool[np.ndarray, "n k"]
  response_len: Int[np.ndarray, "n k"]
  is_truncated: Bool[np.ndarray, "n k"]


def run(
  problems: Problems,
  sample: Callable,
  *,
  num_samples: int,
  prompts_per_round: int,
  group_size: int,
  max_prompt_len: int,
) -> Evaluation:
  """Samples k responses to every problem and judges them.

  Sample s of problem i depends on (i, s) alone, so evaluations of two
  policies share their random numbers and differ by the policies only.

  Args:
    problems: held-out problems.
    sample: `sample(tokens, lengths, index, answers, first_sample) ->
      (is_correct, rollout)` on prompts_per_round prompts x group_size samples.
    num_samples: k.
    prompts_per_round: prompts of one call.
    group_size: samples per prompt of one call.
    max_prompt_len: Lp.
  """
  n, size = problems.num, prompts_per_round
  correct, lengths, truncated = (
    np.zeros((n, num_samples), t) for t in (bool, np.int32, bool)
  )
  for start in range(0, n, size):
    # The last call is filled up with the last problem and cut.
    index = np.minimum(np.arange(start, start + size), n - 1)
    rows = slice(start, min(start + size, n))
    tokens, prompt_len = pad(
      [problems.prompts[i] for i in index], max_prompt_len
    )
    for first in range(0, num_samples, group_size):
      columns = slice(first, min(first + group_size, num_samples))
      answers = [problems.answers[i] for i in index]
      verdict, rollout = sample(tokens, prompt_len, index, answers, first)
      width = columns.stop - columns.start
      cut = lambda x: np.asarray(x).reshape(size, group_size)[
        : rows.stop - start, :width
      ]
      correct[rows, columns] = cut(verdict)
      lengths[rows, columns] = cut(rollout.response_len)
      truncated[rows, columns] = cut(rollout.is_truncated)
  return Evaluation(correct, lengths, truncated)


def average(is_correct: Bool[np.ndarray, "n k"]) -> tuple[float, float]:
  """avg@k and its standard error, clustered by problem.

  Samples of one problem are not independent; the spread of the problems'
  means is what a new set of problems would show.
  """
  means = is_correct.mean(1)
  n = len(means)
  error = float(means.std(ddof=1) / np.sqrt(n)) if n > 1 else 0.0
  return float(means.mean()), error


def pass_at_k(is_correct: Bool[np.ndarray, "n s"], k: int) -> float:
  """Unbiased pass@k: mean over problems of 1 - C(s - c, k) / C(s, k).

  Raises:
    ValueError: k is more than the number of samples.
  """
  samples = is_correct.shape[1]
  if not 1 <= k <= samples:
    raise ValueError(f"pass@{k} needs 1..{samples} samples a problem")
  wrong = samples - is_correct.sum(1)
  # C(w, k) / C(s, k) = Π_{j<k} (w - j) / (s - j), 0 once w < k.
  factors: Float[np.ndarray, "n k"] = (wrong[:, None] - np.arange(k)) / (
    samples - np.arange(k)
  )
  return float(1.0 - np.mean(np.prod(np.maximum(factors, 0.0), axis=1)))
