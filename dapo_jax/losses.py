"""The policy objective and its aggregations: the algorithm, token by token.

Every function maps arrays of any layout whose tokens are valid where the mask
is set: [B, T] responses or packed rows alike. A log ratio is never called a
ratio.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from dapo_jax import masked
from dapo_jax.types import Metric


def policy_loss(
  logprobs: Float[Array, "B T"],
  old_logprobs: Float[Array, "B T"],
  advantages: Float[Array, "B T"],
  response_mask: Bool[Array, "B T"],
  *,
  clip_low: float,
  clip_high: float,
  dual_clip: float = 0.0,
  segments: Int[Array, "B T"] | None = None,
) -> tuple[Float[Array, "B T"], dict]:
  """Clipped surrogate loss with decoupled clip range (Clip-Higher).

  loss = -min(r A, clip(r, 1 - ε_low, 1 + ε_high) A),  r = π/π_old
  (DAPO eq. (8), arXiv:2503.14476). With `dual_clip` c > 1 the objective of a
  token with A < 0 is at least c A (arXiv:1912.09729); 0 leaves it out, as the
  paper does.

  Args:
    logprobs: log π of each token; the gradient flows through these alone.
    old_logprobs: log π_old, a constant.
    advantages: A of each token, a constant.
    response_mask: tokens that count.
    clip_low: ε_low.
    clip_high: ε_high.
    dual_clip: c, or 0 for off.
    segments: not used; see `sequence_policy_loss`.

  Returns:
    The loss of each token, 0 outside the mask, and metrics (totals, counts).
  """
  del segments
  log_ratio = _log_ratio(logprobs, old_logprobs, response_mask)
  return _clipped_surrogate(
    jnp.exp(log_ratio), advantages, response_mask, clip_low, clip_high,
    dual_clip,
  )  # fmt: skip


def sequence_policy_loss(
  logprobs: Float[Array, "B T"],
  old_logprobs: Float[Array, "B T"],
  advantages: Float[Array, "B T"],
  response_mask: Bool[Array, "B T"],
  *,
  clip_low: float,
  clip_high: float,
  dual_clip: float = 0.0,
  segments: Int[Array, "B T"] | None = None,
) -> tuple[Float[Array, "B T"], dict]:
  """The clipped surrogate of the ratio of whole responses, at each token.

  GSPO eq. (5-7), arXiv:2507.18071: s = exp(mean over tokens of log π/π_old).
  With `seq_mean_token_mean` its aggregation is the paper's, one term a
  response; clip ranges there are 3e-4 and 4e-4.

  Args and returns as in `policy_loss`.
    segments: the response that a token belongs to where a row holds several,
      packed; numbers in [0, T). Default: a row is one response.
  """
  if segments is None:
    segments = jnp.zeros(logprobs.shape, jnp.int32)
  log_ratio = masked.segment_mean(
    _log_ratio(logprobs, old_logprobs, response_mask), response_mask, segments
  )
  return _clipped_surrogate(
    jnp.exp(log_ratio), advantages, response_mask, clip_low, clip_high,
    dual_clip,
  )  # fmt: skip


def clipped_is_policy_loss(
  logprobs: Float[Array, "B T"],
  old_logprobs: Float[Array, "B T"],
  advantages: Float[Array, "B T"],
  response_mask: Bool[Array, "B T"],
  *,
  clip_low: float,
  clip_high: float,
  dual_clip: float = 0.0,
  segments: Int[Array, "B T"] | None = None,
) -> tuple[Float[Array, "B T"], dict]:
  """-stop(clip(r, 1 - ε_low, 1 + ε_high)) A log π: no token loses its gradient.

  CISPO eq. (4-5), arXiv:2506.13585: the importance weight is clipped, not the
  update. Without a lower limit, as there: clip_low = 1.

  Args and returns as in `policy_loss`; `dual_clip` must be 0.
  """
  del dual_clip, segments
  log_ratio = _log_ratio(logprobs, old_logprobs, response_mask)
  ratio = jax.lax.stop_gradient(jnp.exp(log_ratio))
  advantages = jax.lax.stop_gradient(advantages)
  weight = jnp.clip(ratio, 1.0 - clip_low, 1.0 + clip_high)
  loss = jnp.where(response_mask, weight * advantages, 0.0)
  # Weights are clipped whatever the sign of A.
  return loss * nll(logprobs, response_mask), _ratio_metrics(
    ratio, ratio > 1.0 + clip_high, ratio < 1.0 - clip_low, response_mask
  )


def _log_ratio(logprobs, old_logprobs, response_mask):
  # Masked first: whatever stands on padding can neither overflow nor reach
  # the gradient (0 * inf is NaN, also in a backward pass).
  old_logprobs = jax.lax.stop_gradient(old_logprobs)
  return jnp.where(response_mask, logprobs - old_logprobs, 0.0)


def _clipped_surrogate(
  ratio, advantages, response_mask, clip_low, clip_high, dual_clip
):
  advantages = jax.lax.stop_gradient(advantages)
  clipped = jnp.clip(ratio, 1.0 - clip_low, 1.0 + clip_high)
  objective = jnp.minimum(ratio * advantages, clipped * advantages)
  if dual_clip:
    floor = dual_clip * advantages
    objective = jnp.where(
      advantages < 0, jnp.maximum(objective, floor), objective
    )
  loss = jnp.where(response_mask, -objective, 0.0)
  ratio = jax.lax.stop_gradient(ratio)
  is_high = (ratio > 1.0 + clip_high) & (advantages > 0)
  is_low = (ratio < 1.0 - clip_low) & (advantages < 0)
  return loss, _ratio_metrics(ratio, is_high, is_low, response_mask)


def _ratio_metrics(ratio, is_high, is_low, response_mask):
  share = lambda x: masked.metric(x.astype(ratio.dtype), response_mask)
  return {
    "ratio_mean": masked.metric(ratio, response_mask),
    "ratio_max": masked.maximum(ratio, response_mask),
    "ratio_min_negated": masked.maximum(-ratio, response_mask),
    "clip_frac_high": share(is_high),
    "clip_frac_low": share(is_low),
  }


OBJECTIVES: dict[str, Callable] = {
  "clip": policy_loss,
  "gspo": sequence_policy_loss,
  "cispo": clipped_is_policy_loss,
}


def value_loss(
  values: Float[Array, "B T"],
  old_values: Float[Array, "B T"],
  returns: Float[Array, "B T"],
  response_mask: Bool[Array, "B T"],
  *,
  clip_value: float = 0.0,
) -> Float[Array, "B T"]:
  """0.5 (V - target)² of each token, 0 outside the mask.

  With `clip_value` ε > 0 the larger of it and of the same with V held within
  ε of the old value (PPO's usual form, arXiv:1707.06347's authors' code).

  Args:
    values: V; the gradient flows through these alone.
    old_values: V at the iteration's start.
    returns: the targets.
    response_mask: tokens that count.
    clip_value: ε, or 0 for off.
  """
  fixed = lambda x: jax.lax.stop_gradient(jnp.where(response_mask, x, 0.0))
  values = jnp.where(response_mask, values, 0.0)
  old_values, returns = fixed(old_values), fixed(returns)
  loss = (values - returns) ** 2
  if clip_value:
    held = old_values + jnp.clip(values - old_values, -clip_value, clip_value)
    loss = jnp.maximum(loss, (held - returns) ** 2)
  return 0.5 * loss


def kl(
  logprobs: Float[Array, "B T"],
  ref_logprobs: Float[Array, "B T"],
  response_mask: Bool[Array, "B T"],
  *,
  estimator: str,
) -> Float[Array, "B T"]:
  """KL(π || π_ref) at each sampled token, 0 outside the mask.

  With d = log π_ref - log π (J. Schulman, "Approximating KL divergence"):
  k1 = -d, unbiased; k2 = d²/2; k3 = e^d - d - 1, unbiased and never negative
  (GRPO eq. (4), arXiv:2402.03300). As a term of the loss k1 has no gradient in
  expectation, and k2's is that of the KL itself.

  Raises:
    KeyError: unknown estimator, see KL_ESTIMATORS.
  """
  ref_logprobs = jax.lax.stop_gradient(ref_logprobs)
  d = jnp.where(response_mask, ref_logprobs - logprobs, 0.0)
  return KL_ESTIMATORS[estimator](d)


KL_ESTIMATORS: dict[str, Callable] = {
  "k1": lambda d: -d,
  "k2": lambda d: 0.5 * d**2,
  "k3": lambda d: jnp.expm1(d) - d,
}


def nll(
  logprobs: Float[Array, "B T"], response_mask: Bool[Array, "B T"]
) -> Float[Array, "B T"]:
  """-log π of each token, 0 outside the mask.

  Over correct responses it is VAPO's NTP loss (arXiv:2504.05118), over
  demonstrations supervised learning.
  """
  return jnp.where(response_mask, -logprobs, 0.0)


def importance_weight(
  old_logprobs: Float[Array, "B T"],
  rollout_logprobs: Float[Array, "B T"],
  response_mask: Bool[Array, "B T"],
  *,
  limit: float,
  mode: str,
) -> Float[Array, "B T"]:
  """Correction of each token for a sampler unlike the trainer; 1 on padding.

  w = π_old / π_rollout. 'truncate': min(w, C), truncated importance sampling.
  'mask': w where 1/C <= w <= C, else 0: the token leaves the numerator and
  stays in the divisor. Every objective is homogeneous in A, so that w belongs
  on the advantages.

  Args:
    old_logprobs: of the trainer.
    rollout_logprobs: of the sampler.
    response_mask: tokens of responses.
    limit: C, at least 1.
    mode: 'truncate' or 'mask'.
  """
  d = jnp.where(response_mask, old_logprobs - rollout_logprobs, 0.0)
  weight = jnp.exp(d)
  if mode == "truncate":
    return jnp.minimum(weight, limit)
  return jnp.where(jnp.abs(d) <= jnp.log(limit), weight, 0.0)


def next_entropy_coef(
  coef: float, entropy: float, *, target: float, step: float
) -> float:
  """Coefficient of the entropy bonus that leads the entropy to a target.

  One step up below the target, one down above it, never below 0
  (arXiv:2505.22312).

  Args:
    coef: of the iteration before.
    entropy: nats a token in that iteration.
    target: nats a token.
    step: of the coefficient.
  """
  return max(0.0, coef + (step if entropy < target else -step))


def token_mean(
  response_mask: Bool[Array, "B T"], *, group_size: int, max_response_len: int
) -> tuple[Float[Array, "B T"], Float[Array, ""]]:
  """Sum over all valid tokens / their number (DAPO eq. (12) as it is run)."""
  del group_size, max_response_len
  weight = response_mask.astype(jnp.float32)
  return weight, weight.sum()


def group_token_mean(
  response_mask: Bool[Array, "B T"], *, group_size: int, max_response_len: int
) -> tuple[Float[Array, "B T"], Float[Array, ""]]:
  """Token mean in each group, then the mean over groups.

  DAPO eq. (12) to the letter: sum and divisor stand inside one prompt's
  group, the expectation over prompts outside. A group with no valid token is
  not counted. Rows of a group stand side by side.
  """
  del max_response_len
  mask = response_mask.astype(jnp.float32)
  groups = mask.reshape(-1, group_size * mask.shape[1])
  tokens = groups.sum(1, keepdims=True)
  weight = groups / jnp.maximum(tokens, 1.0)
  return weight.reshape(mask.shape), jnp.sum(tokens > 0, dtype=jnp.float32)


def seq_mean_token_mean(
  response_mask: Bool[Array, "B T"], *, group_size: int, max_response_len: int
) -> tuple[Float[Array, "B T"], Float[Array, ""]]:
  """Mean over responses of the mean over each response's tokens.

  GRPO eq. (5), arXiv:2402.03300. A response with no valid token is not
  counted.
  """
  del group_size, max_response_len
  mask = response_mask.astype(jnp.float32)
  tokens = mask.sum(1, keepdims=True)
  weight = mask / jnp.maximum(tokens, 1.0)
  return weight, jnp.sum(tokens > 0, dtype=jnp.float32)


def seq_mean_token_sum_const(
  response_mask: Bool[Array, "B T"], *, group_size: int, max_response_len: int
) -> tuple[Float[Array, "B T"], Float[Array, ""]]:
  """Sum over tokens / the response limit, mean over responses.

  Dr. GRPO, arXiv:2503.20783. A response with no valid token is not counted.
  """
  del group_size
  weight = response_mask.astype(jnp.float32) / max_response_len
  count = jnp.sum(response_mask.any(1), dtype=jnp.float32)
  return weight, count


# name -> (response_mask) -> numerator weight of each token, divisor of the sum.
# Both are of the whole minibatch of one optimizer step, so that
# sum(weight * loss) / divisor does not depend on how the step is split.
AGGREGATIONS: dict[str, Callable] = {
  "token_mean": token_mean,
  "group_token_mean": group_token_mean,
  "seq_mean_token_mean": seq_mean_token_mean,
  "seq_mean_token_sum_const": seq_mean_token_sum_const,
}


def aggregate(
  loss: Float[Array, "B T"],
  response_mask: Bool[Array, "B T"],
  *,
  loss_agg: str,
  group_size: int,
  max_response_len: int,
) -> Float[Array, ""]:
  """The scalar loss of a whole minibatch held in one array.

  Raises:
    ValueError: unknown `loss_agg`.
  """
  if loss_agg not in AGGREGATIONS:
    raise ValueError(
      f"loss_agg={loss_agg!r} is unknown; choose from {sorted(AGGREGATIONS)}"
    )
  weight, count = AGGREGATIONS[loss_agg](
    response_mask, group_size=group_size, max_response_len=max_response_len
  )
  total = jnp.sum(jnp.where(response_mask, loss * weight, 0.0))
  return Metric(total, count).value()
