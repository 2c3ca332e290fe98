"""The critic: the same decoder with a scalar head instead of the vocabulary's.

Params are {"body": a decoder's without its head, "value": {"w", "b"}}. The
head starts at 0: so does every value.
"""

import dataclasses

from flax import linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from dapo_jax.models import transformer
from dapo_jax.models.transformer import ModelConfig


def body_config(config: ModelConfig) -> ModelConfig:
  """Dimensions of the body: the policy's, whose output matrix it lacks."""
  return dataclasses.replace(config, tied_head=True)


def init_params(config: ModelConfig, key: Array) -> dict:
  """Random parameters, boxed with their logical axis names."""
  zeros = lambda names, size: nn.LogicallyPartitioned(jnp.zeros(size), names)
  return {
    "body": transformer.init_params(body_config(config), key),
    "value": {"w": zeros(("embed",), config.width), "b": zeros(("norm",), 1)},
  }


def of_policy(params: dict) -> dict:
  """A critic with a copy of a policy's body and a new head. Not boxed."""
  body = {k: v for k, v in params.items() if k != "head"}
  width = params["norm"].shape[0]
  return {
    "body": jax.tree.map(lambda x: jnp.array(x, copy=True), body),
    "value": {"w": jnp.zeros(width), "b": jnp.zeros(1)},
  }


def value(params: dict, hidden: Float[Array, "W R D"]) -> Float[Array, "W R"]:
  """V at each position, in f32."""
  w, b = params["value"]["w"], params["value"]["b"]
  out = jnp.einsum("wrd,d->wr", hidden, w, preferred_element_type=jnp.float32)
  return out + b[None]
