"""Attention behind one function, and the masks of packed rows."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int


def attention(
  q: Float[Array, "W Q N H"],
  k: Float[Array, "W R K H"],
  v: Float[Array, "W R K H"],
  mask: Bool[Array, "W Q R"],
) -> Float[Array, "W Q N H"]:
  """Grouped-query attention with an f32 softmax.

  softmax(q kᵀ / √H) v; N / K query heads share a key/value head.

  Args:
    q: queries.
    k: keys.
    v: values.
    mask: which keys a query sees. A query that sees none (padding) gets the
      mean of the values: finite, and read by nobody.

  Returns:
    The attended values, in q's dtype.
  """
  return jax.nn.dot_product_attention(q, k, v, mask=mask[:, None])


def row_mask(
  family: Int[Array, "W R"], response: Int[Array, "W R"]
) -> Bool[Array, "W R R"]:
  """Which tokens of a packed row see which.

  A token sees itself and what stands before it in its own family, if that is
  the prompt or its own response. Padding (family 0) sees padding only.
  """
  order = jnp.arange(family.shape[1])
  causal = order[:, None] >= order[None, :]
  same_family = family[:, :, None] == family[:, None, :]
  visible = (response[:, None, :] == 0) | (
    response[:, :, None] == response[:, None, :]
  )
  return causal[None] & same_family & visible


def decode_attention(
  q: Float[Array, "B N H"],
  prompt: tuple[Float[Array, "P K Lp H"], Float[Array, "P K Lp H"]],
  own: tuple[Float[Array, "B K T H"], Float[Array, "B K T H"]],
  prompt_visible: Bool[Array, "P Lp"],
  t: Int[Array, ""],
) -> Float[Array, "B N H"]:
  """One token a response attends to its prompt's cache and to its own.

  The same softmax as `attention`, over two pieces: a prompt's keys and values
  are held once for its whole group.

  Args:
    q: queries of the newest tokens.
    prompt: keys and values of the prompts.
    own: keys and values of the responses, written up to index t.
    prompt_visible: which prompt positions hold a token.
    t: index of the newest token in its response.
  """
  prompts, kv_heads, prompt_len, width = prompt[0].shape
  limit = own[0].shape[2]
  rows, heads, _ = q.shape
  q = q.reshape(prompts, rows // prompts, kv_heads, heads // kv_heads, width)
  own_k, own_v = (x.reshape(prompts, -1, *x.shape[1:]) for x in own)
  f32 = dict(preferred_element_type=jnp.float32)
  # [P, G, K, N / K, keys]
  on_prompt = jnp.einsum("pgknh,pklh->pgknl", q, prompt[0], **f32)
  on_own = jnp.einsum("pgknh,pgkth->pgknt", q, own_k, **f32)
  visible = prompt_visible[:, None, None, None, :]
  on_prompt = jnp.where(visible, on_prompt * width**-0.5, -jnp.inf)
  written = (jnp.arange(limit) <= t)[None, None, None, None, :]
  on_own = jnp.where(written, on_own * width**-0.5, -jnp.inf)
  weights = jax.nn.softmax(jnp.concatenate([on_prompt, on_own], -1), axis=-1)
  weights = weights.astype(q.dtype)
  out = jnp.einsum("pgknl,pklh->pgknh", weights[..., :prompt_len], prompt[1])
  out += jnp.einsum("pgknt,pgkth->pgknh", weights[..., prompt_len:], own_v)
  return out.reshape(rows, heads, width)
