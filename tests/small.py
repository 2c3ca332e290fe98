"""A small model and a small batch that several tests share."""

import functools

from flax import linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from dapo_jax import losses, packing, step
from dapo_jax.models import transformer
from dapo_jax.types import Targets

CONFIG = transformer.ModelConfig(
  vocab_size=23, num_layers=2, width=16, num_heads=4, num_kv_heads=2,
  head_width=8, mlp_width=24, rope_theta=1e4, norm_eps=1e-5, tied_head=True,
  qkv_bias=True, qk_norm=True,
)  # fmt: skip
MODEL = transformer.Transformer(CONFIG)
P, G, LP, T = 4, 3, 6, 8  # prompts, group, prompt length, response length
KNOBS = dict(clip_low=0.2, clip_high=0.28)

# Responses that share rows: 0 = prompt or padding, else a response's number.
RESPONSES = np.array([
  [0, 0, 1, 1, 1, 2, 2, 2, 2, 0, 3, 3, 0, 0],
  [1, 2, 3, 3, 4, 0, 0, 5, 5, 5, 5, 5, 5, 6],
  [1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1],
])  # fmt: skip
SEGMENTS = np.cumsum(
  np.diff(RESPONSES, axis=1, prepend=RESPONSES[:, :1]) != 0,
  axis=1, dtype=np.int32,
)  # fmt: skip


@functools.cache
def params():
  """Random weights, larger than an init's so that nothing is uniform."""
  tree = nn.unbox(transformer.init_params(CONFIG, jax.random.key(7)))
  return jax.tree.map(lambda x: x * 1.5, tree)


def forward(params, rows):
  """`step.forward` of the small model."""
  return step.forward(
    params, rows, model=MODEL, temperature=1.0, logits_chunk_len=5
  )


def objective(params, rows, targets):
  """The policy objective of the small model."""
  return step.policy_objective(
    params, rows, targets, forward=forward,
    policy_loss=functools.partial(losses.policy_loss, **KNOBS),
  )  # fmt: skip


def batch(seed=0, response_len=None):
  """Prompts and responses of uneven lengths, with old logprobs, advantages."""
  rng = np.random.default_rng(seed)
  prompt_len = rng.integers(1, LP + 1, P).astype(np.int32)
  if response_len is None:
    response_len = rng.integers(1, T + 1, P * G)
  return dict(
    prompt_tokens=rng.integers(0, 23, (P, LP)).astype(np.int32),
    prompt_len=prompt_len,
    tokens=rng.integers(0, 23, (P * G, T)).astype(np.int32),
    response_len=np.asarray(response_len, np.int32),
    old_logprobs=rng.normal(-3, 0.5, (P * G, T)).astype(np.float32),
    advantages=np.repeat(rng.normal(size=(P * G, 1)), T, 1).astype(np.float32),
  )


def laid_out(b, *, loss_agg, row_len, capacity, microbatch, share=True):
  """A batch as train_step takes it: rows, targets, divisor, microbatches."""
  lengths = b["response_len"]
  mask = np.arange(T) < lengths[:, None]
  weight, divisor = losses.AGGREGATIONS[loss_agg](
    jnp.asarray(mask), group_size=G, max_response_len=T
  )
  slots = packing.pack(
    b["prompt_tokens"], b["prompt_len"], b["tokens"], lengths,
    row_len=row_len, capacity=capacity, share_prompts=share,
  )  # fmt: skip
  targets = Targets(
    *(
      packing.to_rows(np.asarray(x), lengths, slots)
      for x in (b["old_logprobs"], b["advantages"], mask, weight)
    )
  )
  used = -(-slots.num_rows // microbatch)
  split = lambda tree: packing.microbatches(tree, microbatch)
  return split(slots.rows), split(targets), divisor, np.int32(used), slots


def plain(b):
  """The batch as one unpacked response a row, [B, LP + T]."""
  tokens, predicted = [], []
  length = LP + T
  for i, n in enumerate(b["response_len"]):
    p = i // G
    prompt = b["prompt_tokens"][p, : b["prompt_len"][p]]
    row = np.concatenate([prompt, b["tokens"][i, :n]])
    tokens.append(np.pad(row, (0, length - len(row))))
    predicted.append(len(prompt) - 1 + np.minimum(np.arange(T), n))
  mask = np.arange(T) < b["response_len"][:, None]
  return np.array(tokens), np.array(predicted), mask
