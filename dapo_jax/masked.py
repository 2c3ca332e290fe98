"""Masked reductions. An empty mask gives 0, never NaN."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from dapo_jax.types import Maximum, Metric


def metric(x: Float[Array, "*S"], mask: Bool[Array, "*S"]) -> Metric:
  """Masked total and count of x, to be divided once, at the very end."""
  return Metric(jnp.sum(jnp.where(mask, x, 0.0)), jnp.sum(mask, dtype=x.dtype))


def maximum(x: Float[Array, "*S"], mask: Bool[Array, "*S"]) -> Maximum:
  """Maximum of x over the mask."""
  return Maximum(jnp.max(jnp.where(mask, x, -jnp.inf)))


def segment_mean(
  x: Float[Array, "W R"],
  mask: Bool[Array, "W R"],
  segments: Int[Array, "W R"],
) -> Float[Array, "W R"]:
  """At each position the masked mean of x over its segment of the row.

  Args:
    x: values.
    mask: positions that count.
    segments: numbers in [0, R); a segment lies within one row.
  """

  def of_row(x, mask, segments):
    add = lambda v: jax.ops.segment_sum(v, segments, num_segments=len(x))
    mean = add(jnp.where(mask, x, 0.0)) / jnp.maximum(add(mask * 1.0), 1.0)
    return mean[segments]

  return jax.vmap(of_row)(x, mask, segments)
