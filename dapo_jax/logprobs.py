"""Log-probability and entropy of tokens from hidden states, in chunks.

The only place of the one-token shift: the hidden state at `source` predicts a
token. In a packed row that is the position before it, and the prompt's last
one for the first token of each response.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int


def token_logprobs(
  hidden: Float[Array, "W R D"],
  head: Float[Array, "V D"],
  tokens: Int[Array, "W R"],
  source: Int[Array, "W R"],
  *,
  temperature: float = 1.0,
  chunk_len: int = 256,
) -> tuple[Float[Array, "W R"], Float[Array, "W R"]]:
  """log π of each token and the entropy of the distribution it came from.

  π = softmax(hidden[source] headᵀ / temperature), in f32. Logits exist for
  `chunk_len` positions of each row at a time and are computed anew in the
  backward pass: W * chunk_len * V floats instead of W * R * V.

  Args:
    hidden: normed hidden states.
    head: output matrix.
    tokens: the tokens to be judged.
    source: position whose hidden state predicts each token.
    temperature: of the sampled policy, > 0.
    chunk_len: positions of a row per chunk.

  Returns:
    Log-probabilities and entropies (nats) at the tokens' positions.
  """
  length = tokens.shape[1]
  chunk_len = min(chunk_len, length)
  chunks = -(-length // chunk_len)
  pad = ((0, 0), (0, chunks * chunk_len - length))
  hidden = jnp.take_along_axis(hidden, source[:, :, None], axis=1)

  def split(x):  # [W, R, ..] -> [chunks, W, chunk_len, ..]
    x = jnp.pad(x, pad + ((0, 0),) * (x.ndim - 2))
    x = x.reshape(x.shape[0], chunks, chunk_len, *x.shape[2:])
    return x.swapaxes(0, 1)

  @jax.checkpoint
  def of_chunk(args):
    h, token = args
    logits = jnp.einsum(
      "wcd,vd->wcv", h, head, preferred_element_type=jnp.float32
    )
    logits = logits / temperature
    log_z = jax.nn.logsumexp(logits, axis=-1)
    logit = jnp.take_along_axis(logits, token[..., None], axis=-1)[..., 0]
    # H = log Z - E[logit]
    entropy = log_z - jnp.sum(
      jnp.exp(logits - log_z[..., None]) * logits, axis=-1
    )
    return logit - log_z, jax.lax.stop_gradient(entropy)

  out = jax.lax.map(of_chunk, (split(hidden), split(tokens)))
  return tuple(
    x.swapaxes(0, 1).reshape(x.shape[1], -1)[:, :length] for x in out
  )
