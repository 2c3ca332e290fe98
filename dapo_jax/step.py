"""The two programs of an update: scoring a batch, and one optimizer step.

Both loop over microbatches [W, R] of packed rows. The number of microbatches
in use is an argument, not a shape: a batch of any fill runs in one compiled
program and costs what it holds.
"""

from collections.abc import Callable
import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int
import optax

from dapo_jax import logprobs as logprobs_lib, losses, masked
from dapo_jax.models import attention, critic, transformer
from dapo_jax.types import (
  Metric,
  Rows,
  Targets,
  TrainState,
  ValueTargets,
  add_metrics,
)


def forward(
  params: dict,
  rows: Rows,
  *,
  model: transformer.Transformer,
  temperature: float,
  logits_chunk_len: int,
) -> tuple[Float[Array, "W R"], Float[Array, "W R"]]:
  """Log-probability and entropy of response tokens, 0 at other positions."""
  return logprobs_lib.token_logprobs(
    _hidden(params, rows, model),
    transformer.head(params).astype(model.dtype),
    rows.tokens,
    rows.source,
    rows.response_mask,
    temperature=temperature,
    chunk_len=logits_chunk_len,
  )


def forward_values(
  params: dict, rows: Rows, *, model: transformer.Transformer
) -> Float[Array, "W R"]:
  """V before each response token is drawn, 0 at other positions.

  The hidden state that predicts a token is the one that judges it: `source`.
  """
  values = critic.value(params, _hidden(params["body"], rows, model))
  values = jnp.take_along_axis(values, rows.source, axis=1)
  return jnp.where(rows.response_mask, values, 0.0)


def _hidden(params: dict, rows: Rows, model) -> Float[Array, "W R D"]:
  mask = attention.row_mask(rows.family, rows.response)

  def attend(q, k, v, cache, layer):
    del layer
    return attention.attention(q, k, v, mask), cache

  return model.apply({"params": params}, rows.tokens, rows.positions, attend)[0]


def segments(rows: Rows) -> Int[Array, "W R"]:
  """A number in [0, R) of each prompt or response of a row."""
  both = jnp.stack([rows.family, rows.response])
  starts = (both[:, :, 1:] != both[:, :, :-1]).any(0)
  return jnp.pad(jnp.cumsum(starts, axis=1, dtype=jnp.int32), ((0, 0), (1, 0)))


def score(
  params: dict,
  rows: Rows,
  num_microbatches: Int[Array, ""],
  *,
  forward: Callable,
) -> Float[Array, "M W R"]:
  """One number a token of a batch, without a gradient: log π, or V.

  Args:
    params: weights.
    rows: packed rows, [M, W, R].
    num_microbatches: how many of the M to run; the rest stays 0.
    forward: (params, rows of a microbatch) -> [W, R].
  """

  def body(m, out):
    new = forward(params, jax.tree.map(lambda x: x[m], rows))
    return out.at[m].set(new)

  zeros = jnp.zeros(rows.tokens.shape, jnp.float32)
  return jax.lax.fori_loop(0, num_microbatches, body, zeros)


def policy_objective(
  params: dict,
  rows: Rows,
  targets: Targets,
  *,
  forward: Callable,
  policy_loss: Callable,
  kl_coef: float = 0.0,
  kl_estimator: str = "k3",
) -> tuple[Float[Array, ""], dict]:
  """Numerator of the minibatch's loss in one microbatch, and its metrics.

  Σ w (policy loss + β KL) - Σ w_H entropy + Σ w_NTP NLL; the weights come with
  the targets, and a term whose targets are None is left out.
  """
  logprobs, entropy = forward(params, rows)
  valid = targets.loss_mask
  loss, metrics = policy_loss(
    logprobs, targets.old_logprobs, targets.advantages, valid,
    segments=segments(rows),
  )  # fmt: skip
  if targets.ref_logprobs is not None:
    kl = losses.kl(
      logprobs, targets.ref_logprobs, valid, estimator=kl_estimator
    )
    loss += kl_coef * kl
    metrics["kl"] = masked.metric(kl, valid)
  numerator = jnp.sum(loss * targets.loss_weight)
  if targets.entropy_weight is not None:
    numerator -= jnp.sum(entropy * targets.entropy_weight)
  if targets.ntp_weight is not None:
    positive = targets.ntp_weight > 0
    nll = losses.nll(logprobs, positive)
    numerator += jnp.sum(nll * targets.ntp_weight)
    metrics["ntp_loss"] = masked.metric(nll, positive)
  # Probability of the sampled token: falls as the policy spreads, beside the
  # entropy one of the two monitors of DAPO fig. 7.
  metrics["prob_mean"] = masked.metric(jnp.exp(logprobs), valid)
  metrics["entropy"] = masked.metric(entropy, valid)
  return numerator, jax.lax.stop_gradient(metrics)


def nll_objective(
  params: dict, rows: Rows, targets: Targets, *, forward: Callable
) -> tuple[Float[Array, ""], dict]:
  """Numerator of the negative log-likelihood: the supervised warm start."""
  logprobs, _ = forward(params, rows)
  loss = losses.nll(logprobs, targets.loss_mask)
  return jnp.sum(loss * targets.loss_weight), {}


def value_objective(
  params: dict,
  rows: Rows,
  targets: ValueTargets,
  *,
  forward: Callable,
  clip_value: float = 0.0,
) -> tuple[Float[Array, ""], dict]:
  """Numerator of the critic's loss in one microbatch, and its metrics."""
  loss = losses.value_loss(
    forward(params, rows), targets.old_values, targets.returns,
    targets.loss_mask, clip_value=clip_value,
  )  # fmt: skip
  return jnp.sum(loss * targets.loss_weight), {}


def train_step(
  state: TrainState,
  rows: Rows,
  targets: Targets | ValueTargets,
  divisor: Float[Array, ""],
  num_microbatches: Int[Array, ""],
  *,
  objective: Callable,
  optimizer: optax.GradientTransformation,
) -> tuple[TrainState, dict]:
  """One optimizer step over a minibatch.

  loss = Σ numerators / divisor; the divisor is the whole minibatch's, so the
  split into microbatches, devices and rows changes nothing. An update that is
  not finite, or that has no token to learn from, leaves params and optimizer
  state as they are and is counted.

  Args:
    state: donated.
    rows: packed rows, [M, W, R].
    targets: same layout.
    divisor: count of the aggregation over the minibatch.
    num_microbatches: how many of the M to run.
    objective: `policy_objective` or another of its form, bound.
    optimizer: optax chain.

  Returns:
    The new state; metrics, those of tokens as Metric and Maximum, so that the
    steps of an iteration can be added before they are divided.
  """
  grad_fn = jax.value_and_grad(objective, has_aux=True)
  pick = lambda m: jax.tree.map(lambda x: x[m], (rows, targets))

  def body(m, carry):
    numerator, grads, metrics = carry
    (value, new), grad = grad_fn(state.params, *pick(m))
    grads = jax.tree.map(jnp.add, grads, grad)
    return numerator + value, grads, add_metrics(metrics, new)

  # An empty microbatch has the neutral element of every metric; evaluating
  # its shapes costs nothing.
  _, shapes = jax.eval_shape(objective, state.params, *pick(0))
  metrics = jax.tree_util.tree_map_with_path(
    lambda path, s: jnp.full(
      s.shape, -jnp.inf if path[-1].name == "maximum" else 0.0, s.dtype
    ),
    shapes,
  )
  zeros = jax.tree.map(jnp.zeros_like, state.params)
  numerator, grads, metrics = jax.lax.fori_loop(
    0, num_microbatches, body, (jnp.float32(0), zeros, metrics)
  )
  loss = Metric(numerator, divisor).value()
  grads = jax.tree.map(lambda g: Metric(g, divisor).value(), grads)
  grad_norm = optax.tree.norm(grads)
  updates, opt_state = optimizer.update(grads, state.opt_state, state.params)
  is_finite = jnp.isfinite(loss) & jnp.isfinite(grad_norm)
  # A finite gradient can still overflow in the optimizer.
  is_finite &= jnp.isfinite(optax.tree.norm(updates))
  apply = is_finite & (divisor > 0)
  params = optax.apply_updates(state.params, updates)
  keep = functools.partial(jnp.where, apply)
  state = TrainState(
    state.step + apply.astype(jnp.int32),
    jax.tree.map(keep, params, state.params),
    jax.tree.map(keep, opt_state, state.opt_state),
  )
  return state, metrics | {
    "loss": loss,
    "grad_norm": grad_norm,
    "skipped_nonfinite": (~is_finite).astype(jnp.int32),
    "skipped_empty": (divisor <= 0).astype(jnp.int32),
  }
