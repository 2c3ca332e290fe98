"""Sampling of responses: one compiled loop over tokens.

Each prompt is prefilled once for its G responses, and its keys and values are
held once: a response attends to its prompt's cache and to its own.
"""

from collections.abc import Callable
import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from dapo_jax import sampling
from dapo_jax.models import attention, transformer
from dapo_jax.types import Rollout


def request_keys(
  key: Array,
  uid: Int[Array, "P"],
  first_sample: Int[Array, ""],
  group_size: int,
) -> Array:
  """One random key a response, from its prompt's uid and its sample number.

  A response then depends on its own request alone: not on the batch it is
  sampled in, on its row, or on the number of devices. [P * G] keys.
  """
  fold = jax.random.fold_in
  prompts = jax.vmap(fold, (None, 0))(key, uid)
  samples = first_sample + jnp.arange(group_size)
  return jax.vmap(lambda k: jax.vmap(fold, (None, 0))(k, samples))(
    prompts
  ).reshape(-1)


def prefill(
  model: transformer.Transformer,
  params: dict,
  tokens: Int[Array, "P Lp"],
  prompt_len: Int[Array, "P"],
) -> tuple[Float[Array, "P D"], tuple[Array, Array]]:
  """Runs the prompts; the last hidden state of each, keys and values.

  The cache is a pair (keys, values) of [layers, P, K, Lp, H].
  """
  c = model.config
  prompts, length = tokens.shape
  order = jnp.arange(length)
  positions = jnp.broadcast_to(order, tokens.shape)
  family = (order[None] < prompt_len[:, None]).astype(jnp.int32)
  mask = attention.row_mask(family, jnp.zeros_like(family))

  def attend(q, k, v, cache, layer):
    out = attention.attention(q, k, v, mask)
    cache = tuple(
      jax.lax.dynamic_update_index_in_dim(a, x.swapaxes(1, 2), layer, 0)
      for a, x in zip(cache, (k, v))
    )
    return out, cache

  shape = (c.num_layers, prompts, c.num_kv_heads, length, c.head_width)
  cache = (jnp.zeros(shape, model.dtype), jnp.zeros(shape, model.dtype))
  hidden, cache = model.apply(
    {"params": params}, tokens, positions, attend, cache
  )
  last = jnp.take_along_axis(hidden, prompt_len[:, None, None] - 1, axis=1)
  return last[:, 0], cache


def generate(
  params: dict,
  prompt_tokens: Int[Array, "P Lp"],
  prompt_len: Int[Array, "P"],
  keys: Array,
  temperature: Float[Array, ""],
  top_p: Float[Array, ""],
  *,
  model: transformer.Transformer,
  group_size: int,
  max_response_len: int,
  eos_ids: tuple[int, ...],
  constrain: Callable = lambda x, axis=0: x,
) -> Rollout:
  """Samples G responses to each prompt until all have ended.

  Args:
    params: weights, in the sampler's layout.
    prompt_tokens: prompts, padded on the right; padding is known by length
      alone, its values are never read.
    prompt_len: tokens of each prompt, at least 1.
    keys: one random key a response, see `request_keys`. [B]
    temperature: 0 is greedy.
    top_p: nucleus mass.
    model: the decoder.
    group_size: G.
    max_response_len: T, tokens.
    eos_ids: tokens that end a response.
    constrain: `constrain(x, axis)` splits axis `axis` of x over the mesh.

  Returns:
    The responses, B = P * G rows.
  """
  c = model.config
  rows, limit = prompt_tokens.shape[0] * group_size, max_response_len
  head = transformer.head(params).astype(model.dtype)
  eos = jnp.asarray(eos_ids, jnp.int32)
  start = jnp.repeat(prompt_len, group_size)

  def draw(hidden, t):
    logits = jnp.einsum(
      "bd,vd->bv", hidden, head, preferred_element_type=jnp.float32
    )
    step_keys = jax.vmap(jax.random.fold_in, (0, None))(keys, t)
    return sampling.sample(
      constrain(logits), step_keys, temperature=temperature, top_p=top_p
    )

  def write(state, t, token, logprob):
    tokens, logprobs, length, done, last, cache = state
    tokens = tokens.at[:, t].set(jnp.where(done, 0, token))
    logprobs = logprobs.at[:, t].set(jnp.where(done, 0.0, logprob))
    length = length + ~done
    done = done | jnp.any(token[:, None] == eos[None], axis=1)
    return tokens, logprobs, length, done, token, cache

  def step(carry):
    t, state = carry  # t tokens are written; the last one has no keys yet
    *_, last, cache = state
    attend = functools.partial(_attend_cached, prompt=prompt, t=t - 1)
    hidden, cache = model.apply(
      {"params": params}, last[:, None], (start + t - 1)[:, None], attend, cache
    )
    token, logprob = draw(hidden[:, 0], t)
    return t + 1, write((*state[:-1], cache), t, token, logprob)

  hidden, prompt_cache = prefill(model, params, prompt_tokens, prompt_len)
  visible = jnp.arange(prompt_tokens.shape[1])[None] < prompt_len[:, None]
  prompt = (*prompt_cache, visible)
  shape = (c.num_layers, rows, c.num_kv_heads, limit, c.head_width)
  state = (
    jnp.zeros((rows, limit), jnp.int32),
    jnp.zeros((rows, limit), jnp.float32),
    jnp.zeros(rows, jnp.int32),
    jnp.zeros(rows, bool),
    jnp.zeros(rows, jnp.int32),
    tuple(constrain(jnp.zeros(shape, model.dtype), 1) for _ in "kv"),
  )
  token, logprob = draw(jnp.repeat(hidden, group_size, axis=0), 0)
  state = write(state, 0, token, logprob)
  _, (tokens, logprobs, length, done, _, _) = jax.lax.while_loop(
    lambda carry: (carry[0] < limit) & ~carry[1][3].all(), step, (1, state)
  )
  mask = jnp.arange(limit)[None] < length[:, None]
  return Rollout(tokens, mask, logprobs, length, ~done)


def _attend_cached(q, k, v, cache, layer, *, prompt, t):
  """Appends a token's key and value to the cache, then attends to it all."""
  cache = tuple(
    jax.lax.dynamic_update_slice(a, x.swapaxes(1, 2)[None], (layer, 0, 0, t, 0))
    for a, x in zip(cache, (k, v))
  )
  of_layer = lambda x: jax.lax.dynamic_index_in_dim(x, layer, 0, False)
  prompt_k, prompt_v, visible = prompt
  out = attention.decode_attention(
    q[:, 0],
    (of_layer(prompt_k), of_layer(prompt_v)),
    tuple(of_layer(x) for x in cache),
    visible,
    t,
  )
  return out[:, None], cache
