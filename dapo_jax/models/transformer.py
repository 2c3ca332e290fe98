"""One decoder for Llama (SmolLM2), Qwen2.5 and Qwen3.

RMSNorm before each half, rotary positions, grouped-query attention, SwiGLU.
The families differ in three switches: biases on q, k, v (Qwen2.5), RMSNorm on
the heads of q and k (Qwen3), and whether the head is the embedding.

Training, prefill and decoding run the same block. They differ in what
`attend` does with q, k, v of a layer, and in the cache that it is handed and
hands on.
"""

from collections.abc import Callable
import dataclasses
from typing import Any

from flax import linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int


@dataclasses.dataclass(frozen=True)
class ModelConfig:
  """Dimensions of a decoder; letters as in `types.py`."""

  vocab_size: int  # V
  num_layers: int
  width: int  # D
  num_heads: int  # N
  num_kv_heads: int  # K
  head_width: int  # H
  mlp_width: int  # F
  rope_theta: float
  norm_eps: float
  tied_head: bool  # logits come from the embedding matrix
  qkv_bias: bool = False  # Qwen2.5
  qk_norm: bool = False  # Qwen3
  max_positions: int = 32768

  def __post_init__(self):
    if self.num_heads % self.num_kv_heads:
      raise ValueError(
        f"num_heads={self.num_heads} is not a multiple of "
        f"num_kv_heads={self.num_kv_heads}"
      )


# attend(q, k, v, cache, layer) -> (attended values, cache)
Attend = Callable[..., tuple[Float[Array, "W Q N H"], Any]]


def rms_norm(
  x: Float[Array, "*W D"], scale: Float[Array, "D"], eps: float
) -> Float[Array, "*W D"]:
  """x / √(mean x² + ε) * scale, the mean in f32."""
  y = x.astype(jnp.float32)
  y = y * jax.lax.rsqrt(jnp.mean(y**2, -1, keepdims=True) + eps)
  scale = scale.reshape((1,) * (x.ndim - 1) + scale.shape)
  return (y * scale).astype(x.dtype)


def rotate(
  x: Float[Array, "W Q N H"], positions: Int[Array, "W Q"], theta: float
) -> Float[Array, "W Q N H"]:
  """Rotary embedding; pairs are the two halves of a head (Hugging Face)."""
  half = x.shape[-1] // 2
  # θ^(-i / half): frequency of pair i.
  freq = theta ** (-jnp.arange(half, dtype=jnp.float32) / half)
  angle = positions[..., None].astype(jnp.float32) * freq[None, None]
  cos, sin = jnp.cos(angle)[:, :, None], jnp.sin(angle)[:, :, None]
  a, b = jnp.split(x.astype(jnp.float32), 2, axis=-1)
  out = jnp.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)
  return out.astype(x.dtype)


def _weight(module, name, shape, axes, dtype, init=None):
  """A parameter with logical axis names, cast to the compute dtype."""
  init = init or nn.initializers.normal(shape[0] ** -0.5)
  init = nn.with_logical_partitioning(init, axes)
  return module.param(name, init, shape, jnp.float32).astype(dtype)


class Block(nn.Module):
  """One layer. Fields: dimensions, `attend`, compute dtype."""

  config: ModelConfig
  attend: Attend
  dtype: Any

  @nn.compact
  def __call__(self, carry, layer, positions):
    x, cache = carry
    c, dtype = self.config, self.dtype
    d, n, k, h, f = (
      c.width,
      c.num_heads,
      c.num_kv_heads,
      c.head_width,
      c.mlp_width,
    )
    ones, zeros = nn.initializers.ones, nn.initializers.zeros

    def weight(name, shape, axes, init=None):
      return _weight(self, name, shape, axes, dtype, init)

    y = rms_norm(x, weight("attn_norm", (d,), ("norm",), ones), c.norm_eps)
    q = jnp.einsum(
      "wqd,dnh->wqnh", y, weight("wq", (d, n, h), ("embed", "heads", "head"))
    )
    key, value = (
      jnp.einsum(
        "wqd,dkh->wqkh", y, weight(w, (d, k, h), ("embed", "kv_heads", "head"))
      )
      for w in ("wk", "wv")
    )
    if c.qkv_bias:
      q += weight("bq", (n, h), ("heads", "head"), zeros)[None, None]
      key += weight("bk", (k, h), ("kv_heads", "head"), zeros)[None, None]
      value += weight("bv", (k, h), ("kv_heads", "head"), zeros)[None, None]
    if c.qk_norm:
      q = rms_norm(q, weight("q_norm", (h,), ("norm",), ones), c.norm_eps)
      key = rms_norm(key, weight("k_norm", (h,), ("norm",), ones), c.norm_eps)
    q = rotate(q, positions, c.rope_theta)
    key = rotate(key, positions, c.rope_theta)
    out, cache = self.attend(q, key, value, cache, layer)
    wo = weight(
      "wo",
      (n, h, d),
      ("heads", "head", "embed"),
      nn.initializers.normal((n * h) ** -0.5),
    )
    x = x + jnp.einsum("wqnh,nhd->wqd", out, wo)

    y = rms_norm(x, weight("mlp_norm", (d,), ("norm",), ones), c.norm_eps)
    gate = y @ weight("w_gate", (d, f), ("embed", "mlp"))
    up = y @ weight("w_up", (d, f), ("embed", "mlp"))
    x = x + (nn.silu(gate) * up) @ weight("w_down", (f, d), ("mlp", "embed"))
    return (x, cache), None


class Transformer(nn.Module):
  """The decoder up to its last norm; logits are `head(params)`'s work.

  Attributes:
    config: dimensions.
    dtype: compute dtype; parameters are f32 masters.
    remat: recompute a layer in the backward pass instead of keeping it.
  """

  config: ModelConfig
  dtype: Any = jnp.float32
  remat: bool = False

  @nn.compact
  def __call__(
    self,
    tokens: Int[Array, "W Q"],
    positions: Int[Array, "W Q"],
    attend: Attend,
    cache: Any = None,
  ) -> tuple[Float[Array, "W Q D"], Any]:
    """Hidden states of the tokens, normed, and the cache handed on.

    Args:
      tokens: token ids.
      positions: rotary position of each token.
      attend: `attend(q, k, v, cache, layer) -> (out, cache)`.
      cache: whatever `attend` wants; carried through the layers.
    """
    c = self.config
    embed = self.param(
      "embed",
      nn.with_logical_partitioning(
        nn.initializers.normal(c.width**-0.5), ("vocab", "embed")
      ),
      (c.vocab_size, c.width),
      jnp.float32,
    )
    x = jnp.take(embed, tokens, axis=0).astype(self.dtype)
    block = Block
    if self.remat:
      block = nn.remat(Block, prevent_cse=False)
    layers = nn.scan(
      block,
      variable_axes={"params": 0},
      split_rngs={"params": True},
      in_axes=(0, nn.broadcast),
      length=c.num_layers,
      metadata_params={nn.PARTITION_NAME: "layers"},
    )(c, attend, self.dtype, name="layers")
    (x, cache), _ = layers((x, cache), jnp.arange(c.num_layers), positions)
    norm = _weight(
      self, "norm", (c.width,), ("norm",), self.dtype, nn.initializers.ones
    )
    if not c.tied_head:
      _weight(
        self, "head", (c.width, c.vocab_size), ("embed", "vocab"), self.dtype
      )
    return rms_norm(x, norm, c.norm_eps), cache


def init_params(config: ModelConfig, key: Array) -> dict:
  """Random parameters, boxed with their logical axis names."""
  token = jnp.zeros((1, 1), jnp.int32)
  model = Transformer(config)
  attend = lambda q, k, v, cache, layer: (q, cache)
  return model.init(key, token, token, attend)["params"]


def head(params: dict) -> Float[Array, "V D"]:
  """The output matrix, one row a token of the vocabulary."""
  return params["head"].T if "head" in params else params["embed"]
