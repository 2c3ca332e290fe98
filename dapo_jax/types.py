"""The arrays that travel between the parts, and the letters of their shapes.

P prompts, G responses to a prompt (a group), B = P * G responses, Lp prompt
length, T response length, S = Lp + T, V vocabulary, D model width, N heads,
K key/value heads, H head width, F mlp width; R tokens of a packed row, M
microbatches, W rows of a microbatch.
"""

from typing import Any, NamedTuple

from flax import struct
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int
import numpy as np

# A host or a device array: the loop keeps its batches in numpy.
AnyArray = Array | np.ndarray


class PromptBatch(NamedTuple):
  """Prompts of one generation round, padded on the right.

  Attributes:
    prompt_tokens: token ids; behind `prompt_len` anything may stand.
    prompt_len: number of tokens of each prompt.
    uid: position in the stream, unique over the run; seeds the samples.
    index: row of the data set.
  """

  prompt_tokens: Int[AnyArray, "P Lp"]
  prompt_len: Int[AnyArray, "P"]
  uid: Int[AnyArray, "P"]
  index: Int[AnyArray, "P"]


class Rollout(NamedTuple):
  """Sampled responses, rows of a group side by side (row = prompt * G + g).

  Attributes:
    tokens: response token ids, end of sequence included.
    response_mask: 1 on every generated token, 0 behind the end.
    rollout_logprobs: log-probability of each token as the sampler saw it.
    response_len: number of generated tokens, end of sequence included.
    is_truncated: no end of sequence within the limit.
  """

  tokens: Int[AnyArray, "B T"]
  response_mask: Bool[AnyArray, "B T"]
  rollout_logprobs: Float[AnyArray, "B T"]
  response_len: Int[AnyArray, "B"]
  is_truncated: Bool[AnyArray, "B"]


class Rows(NamedTuple):
  """Packed rows, the one layout of scoring and of the update (`packing.py`).

  A row holds families: a prompt, then some of its responses. A response sees
  its prompt and itself. Leading axes are [M, W] (microbatches, rows).

  Attributes:
    tokens: token ids.
    positions: rotary positions; every response starts again at its prompt's
      length.
    family: 0 on padding, else 1, 2, .. for the families of the row.
    response: 0 on prompt tokens, else 1, 2, .. for the responses of a family.
    source: row position whose hidden state predicts this token.
    response_mask: 1 on response tokens that belong to the batch.
  """

  tokens: Int[AnyArray, "*M R"]
  positions: Int[AnyArray, "*M R"]
  family: Int[AnyArray, "*M R"]
  response: Int[AnyArray, "*M R"]
  source: Int[AnyArray, "*M R"]
  response_mask: Bool[AnyArray, "*M R"]


class Targets(NamedTuple):
  """What the update reads beside the rows; same layout, one value a token.

  Attributes:
    old_logprobs: log-probabilities under the policy at the iteration's start.
    advantages: advantage of each token.
    loss_mask: response_mask without the tokens of filtered responses.
    loss_weight: weight of each token in the numerator of the aggregation.
    ref_logprobs: under the reference policy; None without a KL in the loss.
    entropy_weight: weight of each token's entropy bonus; None without one.
    ntp_weight: weight of each token's negative log-likelihood; None without.
  """

  old_logprobs: Float[AnyArray, "*M R"]
  advantages: Float[AnyArray, "*M R"]
  loss_mask: Bool[AnyArray, "*M R"]
  loss_weight: Float[AnyArray, "*M R"]
  ref_logprobs: Float[AnyArray, "*M R"] | None = None
  entropy_weight: Float[AnyArray, "*M R"] | None = None
  ntp_weight: Float[AnyArray, "*M R"] | None = None


class ValueTargets(NamedTuple):
  """What the critic's update reads beside the rows; same layout.

  Attributes:
    old_values: V of the critic at the iteration's start.
    returns: what V is regressed to.
    loss_mask: response_mask.
    loss_weight: weight of each token in the numerator of the aggregation.
  """

  old_values: Float[AnyArray, "*M R"]
  returns: Float[AnyArray, "*M R"]
  loss_mask: Bool[AnyArray, "*M R"]
  loss_weight: Float[AnyArray, "*M R"]


@struct.dataclass
class TrainState:
  """All that an update changes.

  Attributes:
    step: optimizer steps applied so far; skipped ones do not count.
    params: master weights, f32.
    opt_state: state of the optax chain.
  """

  step: Int[Array, ""]
  params: Any
  opt_state: Any


@struct.dataclass
class Metric:
  """A mean that may be split anywhere: totals and counts add, divide once."""

  total: Float[AnyArray, ""]
  count: Float[AnyArray, ""]

  def __add__(self, other: "Metric") -> "Metric":
    return Metric(self.total + other.total, self.count + other.count)

  def value(self):
    """total / count, and 0 where nothing was counted."""
    return self.total / jnp.maximum(self.count, 1e-30)


@struct.dataclass
class Maximum:
  """A maximum that may be split anywhere (a minimum is its negative's)."""

  maximum: Float[AnyArray, ""]

  def __add__(self, other: "Maximum") -> "Maximum":
    return Maximum(jnp.maximum(self.maximum, other.maximum))

  def value(self):
    """The maximum; 0 where nothing was seen."""
    return jnp.where(jnp.isfinite(self.maximum), self.maximum, 0.0)


def add_metrics(a: dict, b: dict) -> dict:
  """Adds two dictionaries of metrics with the same keys."""
  return jax.tree.map(
    lambda x, y: x + y, a, b, is_leaf=lambda x: isinstance(x, (Metric, Maximum))
  )
