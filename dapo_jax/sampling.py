"""Draws a token from logits, with its log-probability as it was drawn."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

# Categories of the inner level; 49,152 tokens are 192 blocks of it.
_BLOCK = 256


def nucleus(
  probs: Float[Array, "B V"], top_p: Float[Array, ""]
) -> Float[Array, "B V"]:
  """Zeroes all but the smallest set of likeliest tokens whose mass is top_p.

  The set is {p >= θ} with the largest θ that leaves at least top_p of the
  total; tokens as likely as the last one stay too. θ is found by bisection on
  the bits of a float, which order like the floats do: exact after 31 halvings
  of 2^31, and cheaper than a sort of the vocabulary.

  Args:
    probs: non-negative weights, not necessarily normalised.
    top_p: mass to keep, in (0, 1].
  """
  bits = jax.lax.bitcast_convert_type(probs, jnp.int32)
  wanted = top_p * probs.sum(-1, keepdims=True)

  def halve(_, bounds):
    low, high = bounds  # mass(low) >= wanted > mass(high)
    middle = low + (high - low) // 2
    mass = jnp.where(bits >= middle, probs, 0.0).sum(-1, keepdims=True)
    enough = mass >= wanted
    return jnp.where(enough, middle, low), jnp.where(enough, high, middle)

  low = jnp.zeros_like(bits[:, :1])
  high = jnp.full_like(low, jnp.iinfo(jnp.int32).max)
  low, _ = jax.lax.fori_loop(0, 31, halve, (low, high))
  return jnp.where(bits >= low, probs, 0.0)


def _draw(
  weights: Float[Array, "B C"], uniform: Float[Array, "B"]
) -> Int[Array, "B"]:
  """Inverse CDF: the first index whose cumulated weight exceeds u * total."""
  cdf = jnp.cumsum(weights, axis=-1)
  below = cdf <= uniform[:, None] * cdf[:, -1:]
  # Rounding can put u * total onto the total itself; a drawn index must have
  # weight, so never go past the last one that has.
  last = weights.shape[1] - 1 - jnp.argmax(weights[:, ::-1] > 0, axis=-1)
  return jnp.minimum(below.sum(-1), last).astype(jnp.int32)


def sample(
  logits: Float[Array, "B V"],
  keys: Array,
  *,
  temperature: Float[Array, ""],
  top_p: Float[Array, ""],
) -> tuple[Int[Array, "B"], Float[Array, "B"]]:
  """Draws one token a row.

  p = softmax(logits / temperature), cut to the nucleus of mass top_p and
  renormalised. Two levels of inverse CDF, blocks of tokens and tokens of a
  block, each with a uniform number of its own (so that 24 random bits are
  spent on each level); far cheaper than one Gumbel number a token.

  Args:
    logits: unnormalised log-probabilities.
    keys: one random key a row; nothing else is random.
    temperature: 0 takes the likeliest token, with log-probability at
      temperature 1.
    top_p: 1 keeps all tokens.

  Returns:
    The tokens, and log p of each under the distribution it was drawn from.
  """
  rows, vocab = logits.shape
  logits = logits.astype(jnp.float32)
  greedy = temperature <= 0
  logits = logits / jnp.where(greedy, 1.0, temperature)
  top = logits.max(-1, keepdims=True)
  probs = jnp.exp(logits - top)
  probs = jax.lax.cond(
    (top_p < 1) & ~greedy, lambda p: nucleus(p, top_p), lambda p: p, probs
  )

  blocks = -(-vocab // _BLOCK)
  padded = jnp.pad(probs, ((0, 0), (0, blocks * _BLOCK - vocab)))
  padded = padded.reshape(rows, blocks, _BLOCK)
  mass = padded.sum(-1)
  uniform = jax.vmap(lambda key: jax.random.uniform(key, (2,)))(keys)
  block = _draw(mass, uniform[:, 0])
  inner = jnp.take_along_axis(padded, block[:, None, None], axis=1)[:, 0]
  token = block * _BLOCK + _draw(inner, uniform[:, 1])
  token = jnp.where(greedy, jnp.argmax(logits, -1).astype(jnp.int32), token)

  logit = jnp.take_along_axis(logits, token[:, None], axis=1)[:, 0]
  return token, logit - top[:, 0] - jnp.log(mass.sum(-1))
