"""Rule-based rewards: is the final answer of a response right?

`score` is what training calls, `verify` says in addition what was found and
what could not be decided. Three rules to choose from by name:

  paper     exactly the rule of the published recipe; string equality
  integer   strict integers (DAPO-Math, AIME); never needs a worker
  symbolic  mathematical equality; the default

Importing this package imports neither jax nor sympy; multiple precision
arithmetic (mpmath, which sympy brings along) is loaded in the workers only.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from dapo_jax.rewards import (
  integer_rule,
  math_answer,
  math_equal,
  paper_rule,
  pool as _pool,
)
from dapo_jax.rewards.math_values import NeedsWorker
from dapo_jax.rewards.pool import WorkerError
from dapo_jax.rewards.shaping import outcome, overlong_penalty

TIMEOUT_SEC = 1.0
MAX_RESPONSE_CHARS = 2_000_000
STATUSES = ("ok", "no_answer", "timeout", "error")  # of a verdict
# A batch smaller than this says nothing about the verifier's health.
_MIN_FAILED = 8


class Verdict(NamedTuple):
  """What the verifier found out about one response.

  `status`, one of STATUSES, is 'ok' when it was decided, 'no_answer' when
  there was nothing to decide, 'timeout' when the deadline passed and 'error'
  when the verifier failed; the last three are never correct.
  """

  correct: bool
  prediction: str | None
  status: str


class Rule(NamedTuple):
  """How to find an answer and how to compare it with the gold answer."""

  find_answer: Callable[[str], str | None]
  equal: Callable[[str, str], bool]


def _symbolic(prediction: str, answer: str) -> bool:
  return math_equal.equal_texts(prediction, answer, heavy=False)


RULES = {
  "paper": Rule(paper_rule.find_answer, paper_rule.equal),
  "integer": Rule(math_answer.find_answer, integer_rule.equal),
  "symbolic": Rule(math_answer.find_answer, _symbolic),
}


def verify(
  responses: Sequence[str],
  answers: Sequence[str],
  *,
  rule: str = "symbolic",
  timeout_sec: float = TIMEOUT_SEC,
  workers: int = 0,
) -> list[Verdict]:
  """Scores responses and says what was found in each.

  Most responses are decided here; those whose equality takes multiple
  precision arithmetic go to worker processes, each under a hard deadline.

  Args:
    responses: B responses, as decoded text.
    answers: B gold answers, in the same order.
    rule: A name in RULES.
    timeout_sec: Wall-clock seconds for one response in a worker.
    workers: Worker processes at most; 0 for one per usable core.

  Returns:
    B verdicts.

  Raises:
    ValueError: An unknown rule, or lengths that differ.
    WorkerError: A worker process was needed and could not be started.
  """
  if rule not in RULES:
    raise ValueError(f"unknown rule {rule!r}; choose from {', '.join(RULES)}")
  if len(responses) != len(answers):
    raise ValueError(f"{len(responses)} responses for {len(answers)} answers")
  if timeout_sec <= 0:
    raise ValueError(f"timeout_sec must be positive, got {timeout_sec}")
  found = []
  for response in responses:
    try:
      # An answer stands at the end; a longer text is not a response.
      found.append(RULES[rule].find_answer(response[-MAX_RESPONSE_CHARS:]))
    except Exception as error:  # A bug of ours must not stop a run.
      found.append(error)
  return _compare(found, answers, rule, timeout_sec, workers)


def _compare(found, answers, rule, timeout_sec, workers) -> list[Verdict]:
  """Verdicts on answers that were found; None for none, or what was raised."""
  verdicts, pending = [], []
  for index, (prediction, answer) in enumerate(zip(found, answers)):
    status, correct = "ok", False
    try:
      if isinstance(prediction, Exception):
        prediction, status = None, "error"
      elif prediction is None:
        status = "no_answer"
      else:
        correct = RULES[rule].equal(prediction, answer)
    except (NeedsWorker, RecursionError):
      # The caller may stand deep in its stack; a worker never does.
      pending.append(index)
    except Exception:  # A bug of ours must not stop a run; `check` counts it.
      status = "error"
    verdicts.append(Verdict(correct, prediction, status))
  if pending:
    requests = [[verdicts[k].prediction, answers[k]] for k in pending]
    replies = _pool.shared(workers).map(requests, timeout_sec)
    for index, (status, value) in zip(pending, replies, strict=True):
      verdicts[index] = Verdict(
        status == "ok" and value is True, verdicts[index].prediction, status
      )
  return verdicts


def readable(answers: Sequence[str], *, rule: str = "symbolic") -> list[bool]:
  """Whether a response that states a gold answer would be right.

  Args:
    answers: Gold answers.
    rule: A name in RULES.

  Returns:
    For each, whether the rule accepts it from an answer line or a box. Where
    it does not, nobody can be right, and the problem teaches nothing. What ran
    into the deadline counts as readable: the clock must not choose the data.
  """
  passes = lambda v: v.correct or v.status in ("timeout", "error")
  lines = verify([f"Answer: {a}" for a in answers], answers, rule=rule)
  out = [passes(v) for v in lines]
  left = [k for k, is_right in enumerate(out) if not is_right]
  boxes = [rf"\boxed{{{answers[k]}}}" for k in left]
  for k, v in zip(left, verify(boxes, [answers[k] for k in left], rule=rule)):
    out[k] = passes(v)
  return out


def classes(
  predictions: Sequence[str | None],
  *,
  rule: str = "symbolic",
  timeout_sec: float = TIMEOUT_SEC,
) -> list[int]:
  """Groups answers that a rule takes for the same, for majority votes.

  Args:
    predictions: What was found in responses (`Verdict.prediction`), or None.
    rule: A name in RULES.
    timeout_sec: Wall-clock seconds for one comparison in a worker.

  Returns:
    The number of each answer's class, in order of first appearance; -1 for
    None.
  """
  labels: dict[str, int] = {}
  first: list[str] = []  # of each class
  for text in predictions:
    if text is None or text in labels:
      continue
    same = _compare([text] * len(first), first, rule, timeout_sec, 0)
    label = next((k for k, v in enumerate(same) if v.correct), len(first))
    if label == len(first):
      first.append(text)
    labels[text] = label
  return [-1 if text is None else labels[text] for text in predictions]


def score(
  responses: Sequence[str],
  answers: Sequence[str],
  *,
  rule: str = "symbolic",
  timeout_sec: float = TIMEOUT_SEC,
  workers: int = 0,
  max_failed: float = 0.5,
):
  """Whether each response ends in the right answer.

  Args:
    responses: B responses, as decoded text.
    answers: B gold answers, in the same order.
    rule: A name in RULES.
    timeout_sec: Wall-clock seconds for one response in a worker.
    workers: Worker processes at most; 0 for one per usable core.
    max_failed: Largest share of the batch which may fail to verify, as
      opposed to being wrong.

  Returns:
    Boolean numpy array [B].

  Raises:
    ValueError: An unknown rule, or lengths that differ.
    WorkerError: No worker could be started, or more than `max_failed` of the
      batch (and at least 8) ended in a timeout or an error.
  """
  import numpy as np

  verdicts = verify(
    responses, answers, rule=rule, timeout_sec=timeout_sec, workers=workers
  )
  check(verdicts, max_failed=max_failed)
  return np.array([v.correct for v in verdicts], bool)


def check(verdicts: Sequence[Verdict], *, max_failed: float = 0.5) -> None:
  """Raises WorkerError when too much of a batch failed to verify.

  Args:
    verdicts: Of one batch.
    max_failed: Largest share which may end in a timeout or an error.
  """
  counts = count(verdicts)
  failed = counts["timeout"] + counts["error"]
  if failed >= _MIN_FAILED and failed > max_failed * len(verdicts):
    example = next(v for v in verdicts if v.status in ("timeout", "error"))
    raise WorkerError(
      f"{failed} of {len(verdicts)} responses failed to verify "
      f"({counts['timeout']} timeouts, {counts['error']} errors), more than "
      f"max_failed={max_failed}; first: {example.status} on "
      f"{(example.prediction or '')[:80]!r}"
    )


def count(verdicts: Sequence[Verdict]) -> dict[str, int]:
  """How many verdicts have each status, for the metrics."""
  counts = dict.fromkeys(STATUSES, 0)
  for verdict in verdicts:
    counts[verdict.status] += 1
  return counts


def is_equivalent(prediction: str, answer: str) -> bool:
  """Whether a response, or a bare answer, states the gold answer.

  Args:
    prediction: A response or an answer.
    answer: The gold answer; an empty one equals nothing.

  Returns:
    The symbolic rule's verdict. False too when the deadline passed; use
    `verify` to tell these apart.

  Raises:
    WorkerError: A worker process was needed and could not be started.
  """
  return verify([prediction], [answer])[0].correct


__all__ = [
  "RULES",
  "STATUSES",
  "Rule",
  "Verdict",
  "WorkerError",
  "check",
  "classes",
  "count",
  "is_equivalent",
  "outcome",
  "overlong_penalty",
  "readable",
  "score",
  "verify",
]
