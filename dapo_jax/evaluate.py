"""Accuracy on held-out problems: avg@k, pass@k, maj@k, with their intervals."""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import jax
from jaxtyping import Bool, Float, Int
import numpy as np

from dapo_jax import rewards
from dapo_jax.config import UserError
from dapo_jax.data.prompts import Problems, pad

SAMPLES = "eval_samples.jsonl"
# With fewer problems than this on either side their spread says nothing.
_MIN_PROBLEMS = 5
# Standard normal quantile of a 95 % interval.
_Z = 1.959964


class Evaluation(NamedTuple):
  """Verdicts on n problems x k samples.

  Attributes:
    is_correct: verdicts.
    response_len: tokens, end of sequence included.
    is_truncated: no end of sequence within the limit.
    predictions: answers as they were found, None where there is none.
  """

  is_correct: Bool[np.ndarray, "n k"]
  response_len: Int[np.ndarray, "n k"]
  is_truncated: Bool[np.ndarray, "n k"]
  predictions: list[list[str | None]]


class Estimate(NamedTuple):
  """A mean over problems and its 95 % interval.

  Problems are the units: samples of one problem are not independent, and what
  another set of problems would show is what the interval is about.
  """

  value: float
  low: float
  high: float


def run(
  problems: Problems,
  sample: Callable[..., Any],
  judged: Callable[..., list[dict[str, Any]]],
  *,
  num_samples: int,
  prompts_per_round: int,
  group_size: int,
  max_prompt_len: int,
  done: Iterable[dict[str, Any]] = (),
  write: Callable[[dict[str, Any]], None] = lambda row: None,
) -> Evaluation:
  """Samples k responses to every problem and judges them.

  Sample s of problem i depends on (i, s) alone, so evaluations of two
  policies share their random numbers and differ by the policies only; and one
  that was interrupted goes on where it stopped, with the same samples. One
  round is judged while the device samples the next.

  Args:
    problems: held-out problems.
    sample: `sample(tokens, lengths, index, first_sample)` starts a round of
      prompts_per_round x group_size samples; what it returns is not looked at.
    judged: `judged(round, index)` -> its rows in order, with "prediction",
      "correct", "truncated", "response_len" and whatever else is to be kept.
    num_samples: k.
    prompts_per_round: prompts of a round.
    group_size: samples per prompt of a round.
    max_prompt_len: Lp.
    done: rows that `write` has seen earlier.
    write: called with every new row, "problem" (its number) and "sample" first.
  """
  n, size = problems.num, prompts_per_round
  rows = {
    (r["problem"], r["sample"]): r
    for r in done
    if r["problem"] < n and r["sample"] < num_samples
  }

  def finish(started, index, first, wanted):
    found = judged(started, index)
    for i, s in wanted:
      if (i, s) not in rows:
        row = found[(i - index[0]) * group_size + s - first]
        rows[i, s] = {"problem": int(i), "sample": s, **row}
        write(rows[i, s])

  under_way = None
  for start in range(0, n, size):
    # The last round is filled up with the last problem, whose copies are left.
    index = np.minimum(np.arange(start, start + size), n - 1)
    tokens, prompt_len = pad(
      [problems.prompts[i] for i in index], max_prompt_len
    )
    for first in range(0, num_samples, group_size):
      samples = range(first, min(first + group_size, num_samples))
      wanted = [(i, s) for i in range(start, min(start + size, n))
                for s in samples]  # fmt: skip
      if all(place in rows for place in wanted):
        continue
      started = sample(tokens, prompt_len, index, first)
      if under_way:
        finish(*under_way)
      under_way = started, index, first, wanted
  if under_way:
    finish(*under_way)
  grid = [[rows[i, s] for s in range(num_samples)] for i in range(n)]
  column = lambda key: [[row[key] for row in line] for line in grid]
  return Evaluation(
    np.array(column("correct"), bool),
    np.array(column("response_len"), np.int32),
    np.array(column("truncated"), bool),
    column("prediction"),
  )


def estimate(values: Float[np.ndarray, "n"], samples: int = 1) -> Estimate:
  """Mean of a value per problem in [0, 1], with a 95 % interval.

  Wilson's interval at the effective number of independent samples: that of a
  binomial proportion with the variance which the problems show, v (1 - v) /
  Var[mean]. It lies between n (samples of a problem always agree) and n times
  `samples`. Where nearly all problems agree it is n: 0 of 30 is no proof of
  0, and one lucky sample none that problems do not differ.

  Args:
    values: one a problem.
    samples: independent samples that a value is the mean of.
  """
  n = len(values)
  mean = float(np.mean(values))
  variance = float(np.var(values, ddof=1)) / n if n > 1 else 0.0
  if min(np.sum(values > 0), np.sum(values < 1)) < _MIN_PROBLEMS:
    m = float(n)
  else:  # problems that vary less than independent samples would: all count
    m = min(max(mean * (1 - mean) / max(variance, 1e-12), n), n * samples)
  center = (mean + _Z**2 / (2 * m)) / (1 + _Z**2 / m)
  half = np.sqrt(mean * (1 - mean) / m + _Z**2 / (4 * m * m))
  half *= _Z / (1 + _Z**2 / m)
  return Estimate(
    mean, float(max(0.0, center - half)), float(min(1.0, center + half))
  )


def average(is_correct: Bool[np.ndarray, "n k"]) -> Estimate:
  """avg@k: the mean of all samples; its expectation does not depend on k."""
  return estimate(is_correct.mean(1), is_correct.shape[1])


def pass_at_k(is_correct: Bool[np.ndarray, "n s"], k: int) -> Estimate:
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
  values = 1.0 - np.prod(np.maximum(factors, 0.0), axis=1)
  return estimate(values, samples // k)


def majority(
  found: Evaluation, rule: str, timeout_sec: float = rewards.TIMEOUT_SEC
) -> Estimate:
  """maj@k: is the answer that most samples give the right one?

  Answers that the rule takes for equal vote together, responses without an
  answer do not vote. Of a tie each answer counts its share.
  """
  values = []
  for predictions, right in zip(found.predictions, found.is_correct):
    labels = np.array(
      rewards.classes(predictions, rule=rule, timeout_sec=timeout_sec)
    )
    votes = np.bincount(labels[labels >= 0]) if (labels >= 0).any() else []
    leaders = [k for k, v in enumerate(votes) if v == max(votes)]
    won = [bool(right[labels == k].any()) for k in leaders]
    values.append(float(np.mean(won)) if won else 0.0)
  return estimate(np.array(values))


def summarize(
  found: Evaluation, rule: str, timeout_sec: float = rewards.TIMEOUT_SEC
) -> dict[str, Estimate]:
  """avg@k, pass@j for powers of two up to k, maj@k."""
  k = found.is_correct.shape[1]
  out = {f"avg@{k}": average(found.is_correct)}
  powers = [2**p for p in range(1, k.bit_length()) if 2**p < k]
  for j in [*powers, k] if k > 1 else []:
    out[f"pass@{j}"] = pass_at_k(found.is_correct, j)
  if k > 1:
    out[f"maj@{k}"] = majority(found, rule, timeout_sec)
  return out


class Judged(NamedTuple):
  """The host's view of a round of B responses.

  Attributes:
    responses: decoded texts.
    verdicts: of the reward rule.
    is_correct: the verdicts, and with `require_eos` no response that was
      truncated.
    status: a verdict's place in rewards.STATUSES.
  """

  responses: list[str]
  verdicts: list[rewards.Verdict]
  is_correct: Bool[np.ndarray, "B"]
  status: Int[np.ndarray, "B"]


def judge(c, tokenizer, rollout, answers: list[str]) -> Judged:
  """Verdicts on the responses of a round, G to each of the answers.

  Raises:
    UserError: the verifier fails on most of them (that is not: they are wrong).
  """
  group_size = len(rollout.response_len) // len(answers)
  texts = [
    tokenizer.decode(tokens[:n].tolist())
    for tokens, n in zip(rollout.tokens, rollout.response_len)
  ]
  answers = [a for a in answers for _ in range(group_size)]
  try:
    verdicts = rewards.verify(
      texts, answers, rule=c.reward_rule, timeout_sec=c.verify_timeout_sec
    )
    rewards.check(verdicts, max_failed=c.max_failed_verdicts)
  except rewards.WorkerError as error:
    raise UserError(f"the verifier fails: {error}") from error
  is_correct = np.array([v.correct for v in verdicts])
  if c.require_eos:
    is_correct &= ~rollout.is_truncated
  status = [rewards.STATUSES.index(v.status) for v in verdicts]
  return Judged(texts, verdicts, is_correct, np.array(status, np.int32))


def policy(
  c, programs, weights, key, problems: Problems, tokenizer,
  done: Iterable[dict] = (), write: Callable[[dict], None] = lambda row: None,
) -> tuple[Evaluation, Evaluation | None]:  # fmt: skip
  """A policy on held-out problems: k samples each, and greedy if wanted.

  Args:
    c: the config; its `eval_*` fields are used.
    programs: `generate` and `generate_one` are called.
    weights: as `programs.to_rollout` gives them.
    key: root of the random keys.
    problems: held-out problems.
    tokenizer: decodes.
    done: rows that `write` has seen earlier: they are not sampled again.
    write: called with every new row, see `run`, its "temperature" included.
  """

  def sampled(generate, prompts_per_round, group_size, k, temperature):
    def sample(tokens, lengths, index, first):
      return generate(
        weights, key, tokens, lengths, index.astype(np.int32), first,
        temperature, c.eval_top_p,
      )  # fmt: skip

    def judged(rollout, index):
      rollout = jax.device_get(rollout)
      answers = [problems.answers[i] for i in index]
      found = judge(c, tokenizer, rollout, answers)
      return [
        {
          "temperature": temperature,
          "prompt": problems.problems[index[b // group_size]],
          "response": found.responses[b],
          "answer": answers[b // group_size],
          # What was cut off has no vote where an end is required.
          "prediction": None
          if c.require_eos and rollout.is_truncated[b]
          else verdict.prediction,
          "status": verdict.status,
          "correct": bool(found.is_correct[b]),
          "truncated": bool(rollout.is_truncated[b]),
          "response_len": int(rollout.response_len[b]),
        }
        for b, verdict in enumerate(found.verdicts)
      ]

    return run(
      problems, sample, judged, num_samples=k,
      prompts_per_round=prompts_per_round, group_size=group_size,
      max_prompt_len=c.max_prompt_len,
      done=[r for r in done if r["temperature"] == temperature], write=write,
    )  # fmt: skip

  size = c.eval_prompts_per_round or c.prompts_per_round
  samples = sampled(
    programs.generate, size, c.group_size, c.eval_samples, c.eval_temperature
  )
  greedy = None
  if c.eval_greedy and c.eval_temperature:  # else the samples are greedy
    # As many rows as sampling has, or fewer if the problems are fewer.
    rows = min(size * c.group_size, -(-problems.num // size) * size)
    greedy = sampled(programs.generate_one, rows, 1, 1, 0.0)
  return samples, greedy
