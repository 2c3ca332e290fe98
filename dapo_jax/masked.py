"""Masked reductions. An empty mask gives 0, never NaN."""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from dapo_jax.types import Maximum, Metric


def metric(x: Float[Array, "*S"], mask: Bool[Array, "*S"]) -> Metric:
  """Masked total and count of x, to be divided once, at the very end."""
  return Metric(jnp.sum(jnp.where(mask, x, 0.0)), jnp.sum(mask, dtype=x.dtype))


def maximum(x: Float[Array, "*S"], mask: Bool[Array, "*S"]) -> Maximum:
  """Maximum of x over the mask."""
  return Maximum(jnp.max(jnp.where(mask, x, -jnp.inf)))
