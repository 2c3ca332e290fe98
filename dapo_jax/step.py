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

from dapo_jax import logprobs as logprobs_lib
from dapo_jax import masked
from dapo_jax.models import attention, transformer
from dapo_jax.types import Metric, Rows, Targets, TrainState, add_metrics


def forward(
  params: dict,
  rows: Rows,
  *,
  model: transformer.Transformer,
  temperature: float,
  logits_chunk_len: int,
) -> tuple[Float[Array, "W R"], Float[Array, "W R"]]:
  """Log-probability and entropy of response tokens, 0 at other positions."""
  mask = attention.row_mask(rows.family, rows.response)

  def attend(q, k, v, cache, layer):
    del layer
    return attention.attention(q, k, v, mask), cache

  hidden, _ = model.apply(
    {"params": params}, rows.tokens, rows.positions, attend
  )
  return logprobs_lib.token_logprobs(
    hidden,
    transformer.head(params).astype(model.dtype),
    rows.tokens,
    rows.source,
    rows.response_mask,
    temperature=temperature,
    chunk_len=logits_chunk_len,
  )


def score(
  params: dict,
  rows: Rows,
  num_microbatches: Int[Array, ""],
  *,
  forward: Callable,
) -> Float[Array, "M W R"]:
  """Log-probabilities of the tokens of a batch, without a gradient.

  Args:
    params: weights.
    rows: packed rows, [M, W, R].
    num_microbatches: how many of the M to run; the rest stays 0.
    forward: `step.forward` with its model bound.
  """

  def body(m, out):
    logprobs, _ = forward(params, jax.tree.map(lambda x: x[m], rows))
    return out.at[m].set(logprobs)

  zeros = jnp.zeros(rows.tokens.shape, jnp.float32)
  return jax.lax.fori_loop(0, num_microbatches, body, zeros)


def policy_objective(
  params: dict,
  rows: Rows,
  targets: Targets,
  *,
  forward: Callable,
  policy_loss: Callable,
) -> tuple[Float[Array, ""], dict]:
  """Numerator of the minibatch's loss in one microbatch, and its metrics."""
  logprobs, entropy = forward(params, rows)
  loss, metrics = policy_loss(
    logprobs, targets.old_logprobs, targets.advantages, targets.loss_mask
  )
  numerator = jnp.sum(loss * targets.loss_weight)
  valid = targets.loss_mask
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
  loss = jnp.where(targets.loss_mask, -logprobs, 0.0)
  return jnp.sum(loss * targets.loss_weight), {}


def train_step(
  state: TrainState,
  rows: Rows,
  targets: Targets,
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
