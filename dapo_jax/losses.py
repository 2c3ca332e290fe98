"""The policy objective and its aggregations: the algorithm, token by token.

Every function maps arrays of any layout whose tokens are valid where the mask
is set: [B, T] responses or packed rows alike. A log ratio is never called a
ratio.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

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

  Returns:
    The loss of each token, 0 outside the mask, and metrics (totals, counts).
  """
  old_logprobs = jax.lax.stop_gradient(old_logprobs)
  advantages = jax.lax.stop_gradient(advantages)
  # Masked first: whatever stands on padding can neither overflow nor reach
  # the gradient (0 * inf is NaN, also in a backward pass).
  log_ratio = jnp.where(response_mask, logprobs - old_logprobs, 0.0)
  ratio = jnp.exp(log_ratio)
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
  metrics = {
    "ratio_mean": masked.metric(ratio, response_mask),
    "ratio_max": masked.maximum(ratio, response_mask),
    "ratio_min_negated": masked.maximum(-ratio, response_mask),
    "clip_frac_high": masked.metric(is_high.astype(loss.dtype), response_mask),
    "clip_frac_low": masked.metric(is_low.astype(loss.dtype), response_mask),
  }
  return loss, metrics


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
