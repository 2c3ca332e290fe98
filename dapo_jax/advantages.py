"""Advantages of a group of responses: the algorithm, prompt by prompt."""

from collections.abc import Callable

import jax.numpy as jnp
from jaxtyping import Array, Float


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


ESTIMATORS: dict[str, Callable] = {
  "group_normalized": group_normalized,
  "group_centered": group_centered,
}
