"""Makers of compiled programs: cached functions of what each depends on.

Runs of one process that differ in other things share what is compiled: the
rows of an ablation sample and score with the same programs.
"""

from collections.abc import Callable
import functools
from typing import Any, NamedTuple

from flax import linen as nn
import jax
import jax.numpy as jnp
import optax

from dapo_jax import advantages, losses, optim, rollout, sharding, step
from dapo_jax.models import critic, transformer
from dapo_jax.rewards import shaping
from dapo_jax.types import TrainState

# ---- Layouts: what parameters look like and where they live ----------------


class Policy(NamedTuple):
  """The policy's parameters on a mesh."""

  config: transformer.ModelConfig
  mesh: Any
  init: Callable = transformer.init_params


class Critic(NamedTuple):
  """The critic's parameters on a mesh."""

  config: transformer.ModelConfig
  mesh: Any
  init: Callable = critic.init_params


@functools.cache
def boxed(of):
  return jax.eval_shape(
    functools.partial(of.init, of.config), jax.random.key(0)
  )


@functools.cache
def layout(of, name: str):
  return sharding.of_params(of.mesh, boxed(of), name)


@functools.cache
def shapes(of):
  return jax.tree.map(
    lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), nn.unbox(boxed(of))
  )


@functools.cache
def state_layout(of, optimizer) -> TrainState:
  params = shapes(of)
  moments = sharding.like_params(
    jax.eval_shape(optimizer.init, params), params, layout(of, "train"), of.mesh
  )
  return TrainState(sharding.replicated(of.mesh), layout(of, "train"), moments)


@functools.cache
def state_shape(of, optimizer) -> TrainState:
  return jax.tree.map(
    lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s),
    jax.eval_shape(init_state(of, optimizer), shapes(of)),
    state_layout(of, optimizer),
  )


# ---- Parameters and states -------------------------------------------------


@functools.cache
def init_params(of):
  return jax.jit(
    lambda key: nn.unbox(of.init(of.config, key)),
    out_shardings=layout(of, "train"),
  )


@functools.cache
def critic_of_policy(of):
  return jax.jit(critic.of_policy, out_shardings=layout(of, "train"))


@functools.cache
def init_state(of, optimizer):
  def init_state(params):
    # Folders hold bf16, in which a step of 1e-6 would change nothing.
    params = jax.tree.map(lambda x: x.astype(jnp.float32), params)
    return TrainState(jnp.zeros((), jnp.int32), params, optimizer.init(params))

  return jax.jit(init_state, out_shardings=state_layout(of, optimizer))


@functools.cache
def to_rollout(of, dtype):
  return jax.jit(
    lambda params: jax.tree.map(lambda x: x.astype(dtype), params),
    in_shardings=(layout(of, "train"),),
    out_shardings=layout(of, "rollout"),
  )


@functools.cache
def to_reference(of, dtype):
  # A copy even where the dtype is the same: the original will be donated.
  return jax.jit(
    lambda params: jax.tree.map(
      lambda x: jnp.array(x, dtype, copy=True), params
    ),
    out_shardings=layout(of, "train"),
  )


@functools.cache
def adamw(
  lr, warmup_steps, decay_steps, floor, b1, b2, eps, weight_decay, max_grad_norm
):  # fmt: skip
  schedule = optim.learning_rate(
    lr, warmup_steps=warmup_steps, decay_steps=decay_steps, floor=floor
  )
  return optim.adamw(
    schedule, b1=b1, b2=b2, eps=eps, weight_decay=weight_decay,
    max_grad_norm=max_grad_norm,
  )  # fmt: skip


@functools.cache
def warm_adamw(lr, steps):
  return optim.adamw(optax.linear_schedule(lr, 0.0, steps), max_grad_norm=1.0)


# ---- Forward passes and objectives -----------------------------------------


@functools.cache
def policy_forward(model, temperature, logits_chunk_len):
  return functools.partial(
    step.forward, model=model, temperature=temperature,
    logits_chunk_len=logits_chunk_len,
  )  # fmt: skip


@functools.cache
def logprob_forward(model, temperature, logits_chunk_len):
  forward = policy_forward(model, temperature, logits_chunk_len)
  return lambda params, rows: forward(params, rows)[0]


@functools.cache
def value_forward(model):
  body = model.clone(config=critic.body_config(model.config))
  return functools.partial(step.forward_values, model=body)


@functools.cache
def policy_objective(
  model, temperature, logits_chunk_len, objective, clip_low, clip_high,
  dual_clip, kl_coef, kl_estimator,
):  # fmt: skip
  policy_loss = functools.partial(
    losses.OBJECTIVES[objective], clip_low=clip_low, clip_high=clip_high,
    dual_clip=dual_clip,
  )  # fmt: skip
  return functools.partial(
    step.policy_objective,
    forward=policy_forward(model, temperature, logits_chunk_len),
    policy_loss=policy_loss, kl_coef=kl_coef, kl_estimator=kl_estimator,
  )  # fmt: skip


@functools.cache
def nll_objective(model, logits_chunk_len):
  # Demonstrations are no samples: their likelihood is at temperature 1.
  forward = policy_forward(model, 1.0, logits_chunk_len)
  return functools.partial(step.nll_objective, forward=forward)


@functools.cache
def value_objective(model, clip_value):
  return functools.partial(
    step.value_objective, forward=value_forward(model), clip_value=clip_value
  )


# ---- Programs of a batch ---------------------------------------------------


@functools.cache
def generate(of, dtype, max_response_len, eos_ids, group_size):
  model = transformer.Transformer(of.config, dtype)
  everywhere, by_row = sharding.replicated(of.mesh), sharding.rows(of.mesh)

  def sample(weights, key, tokens, lengths, uid, first, temperature, top_p):
    return rollout.generate(
      weights,
      tokens,
      lengths,
      rollout.request_keys(key, uid, first, group_size),
      temperature,
      top_p,
      model=model,
      group_size=group_size,
      max_response_len=max_response_len,
      eos_ids=eos_ids,
      constrain=functools.partial(sharding.constrain, of.mesh),
    )

  return jax.jit(
    sample,
    in_shardings=(
      layout(of, "rollout"), everywhere, by_row, by_row, by_row,
      *[everywhere] * 3,
    ),
    # Every process reads all responses: the host's decisions are then the
    # same everywhere by construction.
    out_shardings=everywhere,
  )  # fmt: skip


@functools.cache
def score(of, forward):
  everywhere = sharding.replicated(of.mesh)
  return jax.jit(
    functools.partial(step.score, forward=forward),
    in_shardings=(
      layout(of, "train"), sharding.rows(of.mesh, axis=1), everywhere
    ),
    out_shardings=everywhere,
  )  # fmt: skip


@functools.cache
def shape_rewards(overlong_punish, max_response_len, overlong_cache_len):
  def shape_rewards(is_correct, response_len):
    outcome = shaping.outcome(is_correct)
    penalty = jnp.zeros_like(outcome)
    if overlong_punish:
      penalty = shaping.overlong_penalty(
        response_len, max_len=max_response_len, cache_len=overlong_cache_len
      )
    return outcome + penalty, penalty

  return jax.jit(shape_rewards)


@functools.cache
def estimate(mesh, **knobs):
  by_row, everywhere = sharding.rows(mesh), sharding.replicated(mesh)
  return jax.jit(
    functools.partial(advantages.estimate, **knobs),
    in_shardings=(*[by_row] * 6, everywhere),
    out_shardings=everywhere,
  )


@functools.cache
def loss_weights(loss_agg, group_size, max_response_len):
  return jax.jit(
    functools.partial(
      losses.AGGREGATIONS[loss_agg],
      group_size=group_size,
      max_response_len=max_response_len,
    )
  )


@functools.cache
def update_step(of, objective, optimizer):
  everywhere = sharding.replicated(of.mesh)
  by_microbatch = sharding.rows(of.mesh, axis=1)
  of_state = state_layout(of, optimizer)
  return jax.jit(
    functools.partial(
      step.train_step, objective=objective, optimizer=optimizer
    ),
    in_shardings=(
      of_state, by_microbatch, by_microbatch, everywhere, everywhere
    ),
    out_shardings=(of_state, everywhere),
    donate_argnums=0,
  )  # fmt: skip
