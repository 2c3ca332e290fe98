"""What is told of an iteration: its metrics, its lines, its closing table.

Numbers before the filter stand beside those after it, always: what dynamic
sampling keeps is a selection, and a metric of the kept groups alone rises by
selection too.
"""

import functools
import operator
from typing import Any

from jaxtyping import Int
import numpy as np

from dapo_jax.data.prompts import Problems
from dapo_jax.data.tokenizer import Tokenizer
from dapo_jax.evaluate import SAMPLES, Estimate, Evaluation, summarize
from dapo_jax.groups import Groups, is_mixed
from dapo_jax.rewards import STATUSES
from dapo_jax.types import Maximum, Metric
from dapo_jax.update import Batch


def add_tallies(
  tallies: dict | None, found: Groups, status: Int[np.ndarray, "B"]
) -> dict[str, np.ndarray]:
  """Appends what the metrics need of all groups of a round."""
  new = {
    "is_correct": found.is_correct,
    "response_len": found.response_len,
    "is_truncated": found.is_truncated,
    "status": status.reshape(found.is_correct.shape),
  }
  if tallies is None:
    return new
  return {k: np.concatenate([tallies[k], v]) for k, v in new.items()}


def before_filter(tallies: dict | None, group_size: int) -> dict[str, Any]:
  """Metrics over everything that was sampled; {} if nothing had to be."""
  if tallies is None:
    return {"prompts_generated": 0}
  right = tallies["is_correct"].sum(1)
  status = tallies["status"]
  return {
    "accuracy_before_filter": tallies["is_correct"].mean(),
    "response_len_before_filter": tallies["response_len"].mean(),
    "truncated_before_filter": tallies["is_truncated"].mean(),
    "share_all_right": np.mean(right == group_size),
    "share_all_wrong": np.mean(right == 0),
    "share_kept": is_mixed(tallies["is_correct"]).mean(),
    # groups with 0, 1, .. G correct responses
    "groups_by_correct": np.bincount(right, minlength=group_size + 1),
    "prompts_generated": len(right),
    "prompts_kept": is_mixed(tallies["is_correct"]).sum(),
    "tokens_generated": tallies["response_len"].sum(),
    "verifier_no_answer": np.mean(status == STATUSES.index("no_answer")),
    "verifier_timeouts": np.sum(status == STATUSES.index("timeout")),
    "verifier_errors": np.sum(status == STATUSES.index("error")),
  }


def after_filter(batch: Batch) -> dict[str, Any]:
  """Metrics over the batch that the update sees."""
  groups = batch.groups
  mask = _mask(groups)
  gap = np.abs(groups.old_logprobs - groups.rollout_logprobs)[mask]
  return {
    "accuracy_after_filter": groups.is_correct.mean(),
    "response_len_after_filter": groups.response_len.mean(),
    "truncated_after_filter": groups.is_truncated.mean(),
    "reward_mean": batch.rewards.mean(),
    "overlong_penalty_mean": batch.penalties.mean(),
    "groups_in_batch": groups.num,
    "logprob_gap_mean": gap.mean(),
    "logprob_gap_max": gap.max(),
    **{name: float(m.value()) for name, m in batch.metrics.items()},
  }


def _mask(groups: Groups) -> np.ndarray:
  """Which of the tokens [n, G, T] are there."""
  return np.arange(groups.tokens.shape[2]) < groups.response_len[:, :, None]


def of_critic(batch: Batch, updates: list[dict]) -> dict[str, Any]:
  """Metrics of the critic: on samples it has not seen yet, and of its steps.

  explained_variance = 1 - Var[target - V] / Var[target] over tokens, and
  value_error = mean (target - V)² / 2, both before the critic learns from
  them; with lam_critic < 1 the targets contain V themselves.
  """
  mask = _mask(batch.groups)
  values, returns = (
    x[mask].astype(np.float64) for x in (batch.values, batch.returns)
  )
  error, spread = returns - values, returns.var()
  applied = [u for u in updates if not is_skipped(u)]
  return {
    "explained_variance": 1 - error.var() / spread if spread else 0.0,
    "value_error": 0.5 * np.mean(error**2),
    "value_mean": values.mean(),
    "return_mean": returns.mean(),
    **{
      f"value_{name}": float(np.mean([u[name] for u in applied]))
      for name in (("loss", "grad_norm") if applied else ())
    },
    "value_updates": len(applied),
    "value_skipped_nonfinite": sum(
      int(u["skipped_nonfinite"]) for u in updates
    ),
  }


def has_settled(history: list[list[float]], iters: int, tol: float) -> bool:
  """Value pretraining gains no more.

  Args:
    history: [explained variance, value error] of each iteration.
    iters: the means of so many iterations are compared with those of as many
      before; 0: never settled.
    tol: the least gain: of explained variance, and of the value error as a
      share of it.
  """
  if not iters or len(history) < 2 * iters:
    return False
  before, now = (
    np.mean(history[-2 * iters : -iters], 0),
    np.mean(history[-iters:], 0),
  )
  return bool(now[0] - before[0] < tol and before[1] - now[1] < tol * before[1])


def value_line(row: dict, iters: int) -> str:
  """One line of progress of value pretraining."""
  return (
    f"value {row['iter']:>3}/{iters}  accuracy {row['accuracy']:.2f}  "
    f"explained variance {row['explained_variance']:+.3f}  error "
    f"{row['value_error']:.3f}  {row['iter_sec']:.1f} s"
  )


def of_updates(updates: list[dict]) -> dict[str, Any]:
  """Metrics of the optimizer steps of an iteration.

  Those of tokens are added over the steps and divided once; loss and gradient
  norm are means over the steps that were applied.
  """
  applied = [u for u in updates if not is_skipped(u)]
  out: dict[str, Any] = {
    "updates": len(applied),
    "skipped_nonfinite": sum(int(u["skipped_nonfinite"]) for u in updates),
    "skipped_empty": sum(int(u["skipped_empty"]) for u in updates),
  }
  for name in applied[0] if applied else ():
    values = [u[name] for u in applied]
    if isinstance(values[0], (Metric, Maximum)):
      out[name] = float(functools.reduce(operator.add, values).value())
    elif name not in out:
      out[name] = float(np.mean(values))
  if "ratio_min_negated" in out:
    out["ratio_min"] = -out.pop("ratio_min_negated")
  return out


def is_skipped(step_metrics: dict) -> bool:
  """The step left parameters and optimizer state as they were."""
  return bool(
    step_metrics["skipped_nonfinite"] or step_metrics["skipped_empty"]
  )


def skipped_in_a_row(so_far: int, updates: list[dict]) -> tuple[int, int]:
  """Steps in a row that were not finite: up to now, and the longest row."""
  longest = so_far
  for u in updates:
    so_far = so_far + 1 if u["skipped_nonfinite"] else 0
    longest = max(longest, so_far)
  return so_far, longest


def rates(row: dict, seconds: dict, groups: Groups | None) -> dict[str, float]:
  """Useful (response) tokens by second of the phases that make or use them."""
  out = {}
  if seconds.get("generate_sec"):
    out["generate_tokens_per_sec"] = (
      row["tokens_generated"] / seconds["generate_sec"]
    )
  if groups is not None and seconds.get("update_sec"):
    out["update_tokens_per_sec"] = (
      groups.response_len.sum() / seconds["update_sec"]
    )
  return out


def of_evaluation(
  sampled: Evaluation, greedy: Evaluation | None, rule: str, timeout_sec: float
) -> dict[str, Any]:
  """eval_* metrics: avg@k, pass@k and maj@k with their intervals, greedy."""
  k = sampled.is_correct.shape[1]
  names = {f"avg@{k}": "accuracy", f"pass@{k}": f"pass_at_{k}",
           f"maj@{k}": f"maj_at_{k}"}  # fmt: skip
  out = {}
  for name, found in summarize(sampled, rule, timeout_sec).items():
    if name in names:
      key = f"eval_{names[name]}"
      out |= {key: found.value, f"{key}_low": found.low}
      out[f"{key}_high"] = found.high
  out["eval_response_len"] = sampled.response_len.mean()
  out["eval_truncated"] = sampled.is_truncated.mean()
  if greedy is not None:
    out["eval_greedy_accuracy"] = greedy.is_correct.mean()
  return out


def evaluation_table(
  sampled: Evaluation, found: dict[str, Estimate], workdir
) -> str:
  """What an evaluation prints: every estimate with its 95 % interval."""
  n, k = sampled.is_correct.shape
  lines = ["", f"{n} problems x {k} samples", f"{'':<10}{'value':>8}  95 %"]
  lines += [
    f"{name:<10}{x.value:>8.3f}  {x.low:.3f} to {x.high:.3f}"
    for name, x in found.items()
  ]
  return "\n".join(
    [
      *lines,
      f"length {sampled.response_len.mean():.0f} tokens, "
      f"{sampled.is_truncated.mean():.1%} truncated",
      f"samples    {workdir / SAMPLES}",
    ]
  )


def sample_rows(
  iteration: int, batch: Batch, problems: Problems, tokenizer: Tokenizer,
  limit: int,
):  # fmt: skip
  """Rows of samples.jsonl: the first `limit` responses of the batch.

  The advantage is the mean over the tokens of the response.
  """
  groups = batch.groups
  size = groups.is_correct.shape[1]
  for b in range(min(limit, groups.is_correct.size)):
    i, g = divmod(b, size)
    tokens = groups.tokens[i, g, : groups.response_len[i, g]]
    index = int(groups.index[i])
    yield {
      "iter": iteration,
      "uid": groups.uid[i],
      "kind": problems.kinds[index],
      "prompt": problems.problems[index],
      "response": tokenizer.decode(tokens.tolist()),
      "answer": problems.answers[index],
      "correct": groups.is_correct[i, g],
      "truncated": groups.is_truncated[i, g],
      "response_len": groups.response_len[i, g],
      "reward": {
        "outcome": batch.rewards[i, g] - batch.penalties[i, g],
        "overlong_penalty": batch.penalties[i, g],
      },
      "advantage": batch.advantages[i, g, : groups.response_len[i, g]].mean(),
    }


def brief(row: dict) -> str:
  """What stands behind the progress bar."""
  shown = (
    ("accuracy_before_filter", "accuracy {:.2f}"),
    ("reward_mean", "reward {:+.2f}"),
    ("response_len_before_filter", "length {:.0f}"),
  )
  return " ".join(f.format(row[k]) for k, f in shown if row.get(k) is not None)


def line(row: dict, iters: int) -> str:
  """One line of progress."""
  parts = [f"iter {row['iter']:>3}/{iters}"]
  shown = (
    ("accuracy_before_filter", "accuracy {:.2f}"),
    ("accuracy_after_filter", "(kept {:.2f})"),
    ("reward_mean", "reward {:+.2f}"),
    ("response_len_before_filter", "length {:.1f}"),
    ("groups_in_batch", "groups {}"),
    ("entropy", "entropy {:.3f}"),
    ("kl", "KL {:.3f}"),
    ("explained_variance", "explained variance {:.2f}"),
    ("eval_accuracy", "held-out {:.3f}"),
    ("eval_greedy_accuracy", "greedy {:.3f}"),
    ("iter_sec", "{:.1f} s"),
  )
  parts += [f.format(row[k]) for k, f in shown if row.get(k) is not None]
  left = iters - row["iter"]
  if left and row.get("iter_sec"):
    parts.append(f"about {left * row['iter_sec'] / 60:.0f} min left")
  if row["iter"] and not row.get("updates"):
    parts.append("nothing to learn from, no update")
  if row.get("skipped_nonfinite"):
    parts.append(f"{row['skipped_nonfinite']} updates not finite, skipped")
  return "  ".join(parts)


def reason_to_stop(c, empty_iters: int, skipped: int, row: dict) -> str | None:
  """Why a run cannot go on, with the remedies; None if it can."""
  if empty_iters >= c.max_empty_iters:
    pass_rate = row.get("accuracy_before_filter", 0.0)
    remedy = (
      "the problems are too hard: give easier ones, a longer "
      "max_response_len, or a stronger model"
      if pass_rate < 0.5
      else "the problems are too easy: give harder ones"
    )
    return (
      f"{empty_iters} iterations in a row without a mixed group (pass rate "
      f"{pass_rate:.3f}, {row['prompts_generated']} prompts tried in the last "
      f"one); {remedy}, or raise group_size or max_rounds. The last "
      "checkpoint is kept"
    )
  if skipped >= c.max_skipped_steps:
    return (
      f"{skipped} optimizer steps in a row had a loss or gradient that is not "
      f"finite; lower lr={c.lr:g}"
      + (f" or critic_lr={c.critic_lr:g}" * (c.advantage == "gae"))
      + ", or look at the samples. The last "
      "checkpoint is kept"
    )
  return None


def summary(
  rows: list[dict], c, totals: dict, value_history: list
) -> dict[str, Any]:
  """summary.json: what the run did, from its own rows."""
  tested = [r for r in rows if "eval_accuracy" in r]
  first, last = tested[0], tested[-1]
  out = {
    "algorithm": c.algorithm,
    "variant": c.variant,
    "seed": c.seed,
    "accuracy_before": first["eval_accuracy"],
    "accuracy_after": last["eval_accuracy"],
    "accuracy_after_low": last["eval_accuracy_low"],
    "accuracy_after_high": last["eval_accuracy_high"],
    "iterations": last["iter"],
    "optimizer_steps": sum(r.get("updates", 0) for r in rows),
    **totals,
  }
  if value_history:
    # One iteration's is noisy: the mean of the last ten.
    last_ten = np.mean([h[0] for h in value_history[-10:]])
    out["value_iterations"] = len(value_history)
    out["explained_variance_pretrained"] = float(last_ten)
  if "eval_greedy_accuracy" in first:
    out["greedy_before"] = first["eval_greedy_accuracy"]
    out["greedy_after"] = last["eval_greedy_accuracy"]
  return out


def closing(out: dict, c, workdir) -> str:
  """The table at the end, and what to try next."""
  k = c.eval_samples
  table = [f"{'held-out':<22}{'before':>9}{'after':>9}"]
  names = [(f"accuracy (avg@{k})", "accuracy")]
  if "greedy_before" in out:
    names.append(("greedy accuracy", "greedy"))
  for title, key in names:
    before, after = out[f"{key}_before"], out[f"{key}_after"]
    table.append(f"{title:<22}{before:>9.3f}{after:>9.3f}")
  return "\n".join(
    [
      "",
      *table,
      f"{out['iterations']} iterations, {out['optimizer_steps']} optimizer "
      f"steps, {out['wall_sec']:.0f} s ({out['compile_sec']:.0f} s of it "
      "compilation)",
      "",
      f"metrics    {workdir / 'metrics.jsonl'}, tensorboard --logdir {workdir}",
      f"samples    {workdir / 'samples.jsonl'}, of the evaluations "
      f"{workdir / SAMPLES}",
      f"next       longer: add --config.iters={2 * c.iters}; with a --workdir "
      f"of its own, another seed: --config.seed={c.seed + 1}, or without "
      f"Clip-Higher: --config.clip_high={c.clip_low:g}",
    ]
  )
