"""Advantages: the algorithm, response by response and token by token."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from dapo_jax import losses, masked


def group_normalized(
  rewards: Float[Array, "P G"], *, std_ddof: int = 0, eps: float = 1e-6
) -> Float[Array, "P G"]:
  """A_i = (R_i - mean R) / (std R + ε) inside each group.

  DAPO eq. (9), arXiv:2503.14476. Reading: population standard deviation;
  `std_ddof=1` divides by G - 1, as the published recipe does. A group of one
  has advantage 0 in both.

  Args:
    rewards: reward of each response.
    std_ddof: 0 or 1.
    eps: ε; keeps a group of equal rewards at 0.

  Returns:
    Advantage of each response; the same for each of its tokens.
  """
  centered = group_centered(rewards)
  # ddof 1 in a group of one would divide 0 by 0.
  divisor = max(rewards.shape[1] - std_ddof, 1)
  std = jnp.sqrt(jnp.sum(centered**2, 1, keepdims=True) / divisor)
  return centered / (std + eps)


def group_centered(
  rewards: Float[Array, "P G"], *, std_ddof: int = 0, eps: float = 1e-6
) -> Float[Array, "P G"]:
  """A_i = R_i - mean R inside each group (Dr. GRPO, arXiv:2503.20783)."""
  del std_ddof, eps
  return rewards - jnp.mean(rewards, axis=1, keepdims=True)


def leave_one_out(
  rewards: Float[Array, "P G"], *, std_ddof: int = 0, eps: float = 1e-6
) -> Float[Array, "P G"]:
  """A_i = R_i - mean of the other rewards of the group.

  RLOO, arXiv:2402.14740; equal to G / (G - 1) (R_i - mean R). A group of one
  has advantage 0.
  """
  del std_ddof, eps
  size = rewards.shape[1]
  return group_centered(rewards) * (size / max(size - 1, 1))


def lambda_returns(
  token_rewards: Float[Array, "B T"],
  values: Float[Array, "B T"],
  response_mask: Bool[Array, "B T"],
  *,
  gamma: float,
  lam: float | Float[Array, ""] | Float[Array, "#B #T"],
  segments: Int[Array, "B T"] | None = None,
) -> Float[Array, "B T"]:
  """G_t = r_t + γ ((1 - λ) V_{t+1} + λ G_{t+1}), from the last token back.

  GAE's value targets, A + V (arXiv:1506.02438); V and G are 0 behind a
  response's last token. An associative scan: depth log T. λ = 1 gives
  Monte-Carlo returns.

  Positions outside the mask, wherever they stand, change nothing and get 0.

  Args:
    token_rewards: reward of each token.
    values: V before each token is drawn.
    response_mask: tokens of responses.
    gamma: discount γ.
    lam: λ, one number or one of each response or token.
    segments: the response that a token belongs to where a row holds several,
      packed; default: a row is one response.

  Returns:
    The return at each token.
  """
  length = values.shape[1]
  lam = jnp.broadcast_to(lam, values.shape)
  values = jnp.where(response_mask, values, 0.0)
  # Where the next token of the mask stands; `length`: nowhere.
  here = jnp.where(response_mask, jnp.arange(length)[None], length)
  after = jnp.pad(here[:, 1:], ((0, 0), (0, 1)), constant_values=length)
  after = jax.lax.cummin(after, axis=1, reverse=True)
  has_next = after < length
  at_next = lambda x: jnp.take_along_axis(
    x, jnp.minimum(after, length - 1), axis=1
  )
  if segments is not None:
    has_next &= at_next(segments) == segments
  next_values = jnp.where(has_next, at_next(values), 0.0)
  own = token_rewards + gamma * (1.0 - lam) * next_values
  own = jnp.where(response_mask, own, 0.0)
  # G_t = own_t + (1 - loss_t) G_{t+1}. Kept as 1 - γλ, since powers of a
  # rounded 0.999 drift: its k-th is wrong by k roundings.
  loss = jnp.where(has_next, (1.0 - gamma) + gamma * (1.0 - lam), 1.0)
  loss = jnp.where(response_mask, loss, 0.0)

  def join(later, earlier):
    (loss_2, own_2), (loss_1, own_1) = later, earlier
    kept = 1.0 - loss_1
    return loss_1 + kept * loss_2, own_1 + kept * own_2

  _, out = jax.lax.associative_scan(join, (loss, own), reverse=True, axis=1)
  return jnp.where(response_mask, out, 0.0)


def gae(
  token_rewards: Float[Array, "B T"],
  values: Float[Array, "B T"],
  response_mask: Bool[Array, "B T"],
  *,
  gamma: float,
  lam: float | Float[Array, ""] | Float[Array, "#B #T"],
  segments: Int[Array, "B T"] | None = None,
) -> Float[Array, "B T"]:
  """A_t = Σ_l (γλ)^l δ_{t+l},  δ_t = r_t + γ V_{t+1} - V_t.

  arXiv:1506.02438, eq. (16). Computed as the λ-return less V, which is the
  same and needs no telescoping. Arguments as in `lambda_returns`.
  """
  returns = lambda_returns(
    token_rewards, values, response_mask, gamma=gamma, lam=lam,
    segments=segments,
  )  # fmt: skip
  return jnp.where(response_mask, returns - values, 0.0)


def length_adaptive_lam(
  response_len: Int[Array, "*B"], *, alpha: float
) -> Float[Array, "*B"]:
  """λ = 1 - 1 / (α |y|), in [0, 1] (VAPO, arXiv:2504.05118).

  Reading: clipped at 0 for |y| <= 1/α, where the formula is negative.
  """
  reach = alpha * jnp.maximum(response_len, 1)
  return 1.0 - 1.0 / jnp.maximum(reach, 1.0)


def batch_normalized(
  token_rewards: Float[Array, "B T"],
  response_mask: Bool[Array, "B T"],
  *,
  gamma: float,
  eps: float = 1e-8,
) -> Float[Array, "B T"]:
  """Returns to go, whitened over all tokens of the batch.

  REINFORCE++, arXiv:2501.03262: A_t = R - β Σ_{i>=t} KL_i if the KL is in the
  reward. Reading: mean and population standard deviation over tokens.
  """
  zeros = jnp.zeros_like(token_rewards)
  returns = lambda_returns(
    token_rewards, zeros, response_mask, gamma=gamma, lam=1.0
  )
  mean = masked.metric(returns, response_mask).value()
  centered = jnp.where(response_mask, returns - mean, 0.0)
  std = jnp.sqrt(masked.metric(centered**2, response_mask).value())
  return centered / (std + eps)


# Of a response's reward: [P, G] -> [P, G].
OF_GROUPS: dict[str, Callable] = {
  "group_normalized": group_normalized,
  "group_centered": group_centered,
  "leave_one_out": leave_one_out,
}
# Those of tokens need no group; "gae" needs a critic.
ESTIMATORS = (*OF_GROUPS, "batch_normalized", "gae")


def estimate(
  rewards: Float[Array, "P G"],
  response_len: Int[Array, "P G"],
  old_logprobs: Float[Array, "P G T"] | None,
  rollout_logprobs: Float[Array, "P G T"] | None,
  ref_logprobs: Float[Array, "P G T"] | None,
  values: Float[Array, "P G T"] | None,
  lam_critic: Float[Array, ""],
  *,
  advantage: str,
  max_response_len: int,
  std_ddof: int = 0,
  gamma: float = 1.0,
  lam_actor: float = 0.95,
  lam_alpha: float = 0.0,
  kl_coef: float = 0.0,
  kl_estimator: str = "k3",
  tis_limit: float = 0.0,
  tis_mode: str = "truncate",
) -> tuple[Float[Array, "P G #T"], Float[Array, "P G T"] | None, dict]:
  """Advantages and value targets of a batch, with what the config switches on.

  The reward R of a response sits on its last token; with `ref_logprobs` each
  token's KL is taken off it (a group estimator takes their sum). A group whose
  responses have length 0 changes nothing.

  Args:
    rewards: R.
    response_len: tokens.
    old_logprobs: for the KL and the importance weight, else None.
    rollout_logprobs: for the importance weight, else None.
    ref_logprobs: None without a KL in the reward.
    values: V before each token; None without a critic.
    lam_critic: λ of the value targets.
    advantage: one of ESTIMATORS.
    max_response_len: T.
    std_ddof: of `group_normalized`.
    gamma: discount.
    lam_actor: λ of the advantages.
    lam_alpha: α of `length_adaptive_lam`, instead of lam_actor; 0 = off.
    kl_coef: β.
    kl_estimator: a key of losses.KL_ESTIMATORS.
    tis_limit: C of `losses.importance_weight`; 0 = off.
    tis_mode: its mode.

  Returns:
    Advantages, last axis 1 where all tokens of a response have the same;
    value targets, None without a critic; metrics.
  """
  flat = lambda x: None if x is None else x.reshape(-1, max_response_len)
  back = lambda x: x.reshape(*rewards.shape, -1)
  old, rollout, ref, values = map(
    flat, (old_logprobs, rollout_logprobs, ref_logprobs, values)
  )
  lengths = response_len.reshape(-1, 1)
  order = jnp.arange(max_response_len)[None]
  mask = order < lengths
  token_rewards = jnp.where(order == lengths - 1, rewards.reshape(-1, 1), 0.0)
  returns, metrics = None, {}
  if ref is not None:
    kl = losses.kl(old, ref, mask, estimator=kl_estimator)
    metrics["kl"] = masked.metric(kl, mask)
    rewards = rewards - kl_coef * back(kl).sum(-1)
    token_rewards -= kl_coef * kl
  if advantage in OF_GROUPS:
    out = OF_GROUPS[advantage](rewards, std_ddof=std_ddof)[..., None]
  elif advantage == "batch_normalized":
    out = back(batch_normalized(token_rewards, mask, gamma=gamma))
  else:
    lam = lam_actor
    if lam_alpha:
      lam = length_adaptive_lam(lengths, alpha=lam_alpha)
    batch = token_rewards, values, mask
    out = back(gae(*batch, gamma=gamma, lam=lam))
    returns = back(lambda_returns(*batch, gamma=gamma, lam=lam_critic))
  if tis_limit and old is not None:
    weight = losses.importance_weight(
      old, rollout, mask, limit=tis_limit, mode=tis_mode
    )
    metrics["tis_weight_mean"] = masked.metric(weight, mask)
    out = out * back(weight)
  return out, returns, metrics
