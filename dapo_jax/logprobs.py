"""Log-probability and entropy of tokens from hidden states, in chunks.

The only place of the one-token shift: the hidden state at `source` predicts a
token. In a packed row that is the position before it, and the prompt's last
one for the first token of each response.
"""

import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int


def token_logprobs(
  hidden: Float[Array, "W R D"],
  head: Float[Array, "V D"],
  tokens: Int[Array, "W R"],
  source: Int[Array, "W R"],
  mask: Bool[Array, "W R"],
  *,
  temperature: float = 1.0,
  chunk_len: int = 256,
) -> tuple[Float[Array, "W R"], Float[Array, "W R"]]:
  """log π of each token and the entropy of the distribution it came from.

  π = softmax(hidden[source] headᵀ / temperature), in f32. The tokens of `mask`
  are gathered to the front of each row, and the head runs up to the fullest
  row's last one: prompts and padding are mostly spared. Logits exist for
  `chunk_len` tokens of a row at a time and are computed anew in the backward
  pass: W * chunk_len * V floats instead of W * R * V.

  Args:
    hidden: normed hidden states.
    head: output matrix.
    tokens: the tokens to be judged.
    source: position whose hidden state predicts each token.
    mask: which tokens are wanted.
    temperature: of the sampled policy, > 0.
    chunk_len: tokens of a row per chunk.

  Returns:
    Log-probabilities and entropies (nats) at the tokens' positions, 0 outside
    the mask. Both are differentiable in hidden and head.
  """
  length = tokens.shape[1]
  chunk_len = min(chunk_len, length)
  order = jnp.argsort(~mask, axis=1, stable=True)  # wanted ones first
  gather = functools.partial(jnp.take_along_axis, axis=1)
  hidden = gather(hidden, gather(source, order)[:, :, None])
  padding = -length % chunk_len
  pad = lambda x: jnp.pad(x, ((0, 0), (0, padding)) + ((0, 0),) * (x.ndim - 2))
  # As many chunks as the fullest row needs.
  num_chunks = -(-mask.sum(1).max() // chunk_len)
  out = _chunked(
    pad(hidden), head, pad(gather(tokens, order)), num_chunks, temperature,
    chunk_len,
  )  # fmt: skip
  back = jnp.argsort(order, axis=1)
  return tuple(jnp.where(mask, gather(x, back), 0.0) for x in out)


@functools.partial(jax.custom_vjp, nondiff_argnums=(4, 5))
def _chunked(hidden, head, tokens, num_chunks, temperature, chunk_len):
  """log π and entropy of the first num_chunks chunks of every row, else 0.

  A loop of its own backward pass, since its length is known at run time only.
  """
  return _forward(hidden, head, tokens, num_chunks, temperature, chunk_len)[0]


def _chunk(x, i, chunk_len):
  return jax.lax.dynamic_slice_in_dim(x, i * chunk_len, chunk_len, axis=1)


def _logits(hidden, head, temperature):
  logits = jnp.einsum(
    "wcd,vd->wcv", hidden, head, preferred_element_type=jnp.float32
  )
  return logits / temperature


def _forward(hidden, head, tokens, num_chunks, temperature, chunk_len):
  def body(i, out):
    logits = _logits(_chunk(hidden, i, chunk_len), head, temperature)
    top = logits.max(-1)
    # Below the top, so that the entropy is no difference of large numbers.
    below = logits - top[..., None]
    weight = jnp.exp(below)
    total, moment = weight.sum(-1), (weight * below).sum(-1)
    log_z = top + jnp.log(total)
    token = _chunk(tokens, i, chunk_len)
    logit = jnp.take_along_axis(logits, token[..., None], axis=-1)[..., 0]
    new = logit - log_z, jnp.log(total) - moment / total, log_z
    return tuple(
      jax.lax.dynamic_update_slice_in_dim(a, x, i * chunk_len, axis=1)
      for a, x in zip(out, new)
    )

  zeros = (jnp.zeros(tokens.shape, jnp.float32),) * 3
  logprob, entropy, log_z = jax.lax.fori_loop(0, num_chunks, body, zeros)
  saved = hidden, head, tokens, num_chunks, entropy, log_z
  return (logprob, entropy), saved


def _backward(temperature, chunk_len, saved, cotangents):
  """Gradients of Σ a log π + b H, with a, b the cotangents.

  By the logits, which are divided by the temperature, with p the probabilities:
  ∂/∂logit_v = a (1[v = token] - p_v) - b p_v (logit_v - log Z + H).
  """
  hidden, head, tokens, num_chunks, entropy, log_z = saved

  def body(i, grads):
    d_hidden, d_head = grads
    cut = lambda x: _chunk(x, i, chunk_len)
    h, (a, b) = cut(hidden), (cut(x)[..., None] for x in cotangents)
    log_p = _logits(h, head, temperature) - cut(log_z)[..., None]
    p = jnp.exp(log_p)
    hit = cut(tokens)[..., None] == jnp.arange(head.shape[0])[None, None]
    d_logits = jnp.where(hit, a, 0.0)
    d_logits -= p * (a + b * (log_p + cut(entropy)[..., None]))
    # Products in the compute dtype, as in every other layer's backward pass.
    d_logits = (d_logits / temperature).astype(head.dtype)
    d_hidden = jax.lax.dynamic_update_slice_in_dim(
      d_hidden, jnp.einsum("wcv,vd->wcd", d_logits, head), i * chunk_len, 1
    )
    d_head += jnp.einsum(
      "wcv,wcd->vd", d_logits, h, preferred_element_type=jnp.float32
    )
    return d_hidden, d_head

  d_hidden, d_head = jax.lax.fori_loop(
    0, num_chunks, body,
    (jnp.zeros_like(hidden), jnp.zeros(head.shape, jnp.float32)),
  )  # fmt: skip
  return d_hidden, d_head.astype(head.dtype), None, None


_chunked.defvjp(_forward, _backward)
