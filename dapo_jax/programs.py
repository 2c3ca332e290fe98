"""Every compiled program of a run, bound to its config, model and mesh.

Shapes are fixed: whatever the data bring, nothing is compiled twice. Only
`generate` has two, those of a round of training and of evaluation.
"""

from collections.abc import Callable
import functools
from typing import Any, NamedTuple

from flax import linen as nn
import jax
import jax.numpy as jnp
import optax

from dapo_jax import advantages, losses, optim, rollout, sharding, step
from dapo_jax.models import transformer
from dapo_jax.rewards import shaping
from dapo_jax.types import TrainState


class Programs(NamedTuple):
  """The programs, in the order a batch meets them.

  Attributes:
    init_params: key -> random params, laid out.
    init_state: params -> TrainState.
    init_warm_state: params -> TrainState of the supervised warm start.
    to_rollout: params -> weights in the sampler's dtype and layout.
    generate: (weights, key, prompt_tokens, prompt_len, uid, first_sample,
      temperature, top_p) -> Rollout of P x G.
    generate_one: the same with one response a prompt.
    shape_rewards: (is_correct, response_len) [P, G] -> rewards, overlong
      penalties, advantages [P, G].
    loss_weights: loss_mask [B, T] -> weights [B, T], divisor.
    score: (params, rows, num_microbatches) -> logprobs.
    train_step: (state, rows, targets, divisor, num_microbatches) -> state,
      metrics; donates the state.
    warm_step: the same for the supervised warm start.
    learning_rate: optimizer step -> its learning rate.
    state_shape: shapes and layout of the TrainState.
    params_sharding: layout of the params.
    capacity: rows of a minibatch, in use or not.
  """

  init_params: Callable
  init_state: Callable
  init_warm_state: Callable
  to_rollout: Callable
  generate: Callable
  generate_one: Callable
  shape_rewards: Callable
  loss_weights: Callable
  score: Callable
  train_step: Callable
  warm_step: Callable
  learning_rate: Callable
  state_shape: TrainState
  params_sharding: Any
  capacity: int


def row_len(config) -> int:
  """R: tokens of a packed row."""
  return config.row_len or config.max_prompt_len + config.max_response_len


def updates_per_iter(config) -> int:
  """Optimizer steps of a full iteration."""
  return config.prompts_per_batch * config.group_size // config.minibatch_size


def compute_dtype(config) -> Any:
  """dtype 'auto' is bf16 on accelerators, f32 on CPU (bf16 is slower there)."""
  if config.dtype != "auto":
    return jnp.dtype(config.dtype)
  return jnp.dtype(
    jnp.float32 if jax.default_backend() == "cpu" else jnp.bfloat16
  )


def build(
  config, model_config: transformer.ModelConfig, mesh, eos_ids
) -> Programs:
  """Binds the programs of a run; compiles nothing yet."""
  c = config
  dtype = compute_dtype(c)
  trained = transformer.Transformer(model_config, dtype, remat=c.remat)
  sampled = transformer.Transformer(model_config, dtype)
  everywhere = sharding.replicated(mesh)
  by_row = sharding.rows(mesh)
  by_microbatch = sharding.rows(mesh, axis=1)

  boxed = jax.eval_shape(
    functools.partial(transformer.init_params, model_config), jax.random.key(0)
  )
  of_params = sharding.of_params(mesh, boxed, "train")
  of_weights = sharding.of_params(mesh, boxed, "rollout")

  learning_rate = optim.learning_rate(
    c.lr,
    warmup_steps=c.warmup_iters * updates_per_iter(c),
    decay_steps=c.lr_decay_iters * updates_per_iter(c),
    floor=c.lr_floor,
  )
  optimizer = optim.adamw(
    learning_rate,
    b1=c.b1,
    b2=c.b2,
    eps=c.adam_eps,
    weight_decay=c.weight_decay,
    max_grad_norm=c.max_grad_norm,
  )
  warm_optimizer = optim.adamw(
    optax.linear_schedule(c.warm_lr, 0.0, c.warm_steps), max_grad_norm=1.0
  )
  shapes = jax.tree.map(
    lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), nn.unbox(boxed)
  )

  def of_state(tx):
    return TrainState(
      everywhere,
      of_params,
      sharding.like_params(
        jax.eval_shape(tx.init, shapes), shapes, of_params, mesh
      ),
    )

  def init_state(tx):
    return jax.jit(
      lambda params: TrainState(
        jnp.zeros((), jnp.int32), params, tx.init(params)
      ),
      out_shardings=of_state(tx),
    )

  state_shape = jax.tree.map(
    lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s),
    jax.eval_shape(init_state(optimizer), shapes),
    of_state(optimizer),
  )

  forward = functools.partial(
    step.forward,
    model=trained,
    temperature=c.temperature,
    logits_chunk_len=c.logits_chunk_len,
  )
  # Demonstrations are no samples: their likelihood is at temperature 1.
  plain_forward = functools.partial(forward, temperature=1.0)
  policy_loss = functools.partial(
    losses.policy_loss,
    clip_low=c.clip_low,
    clip_high=c.clip_high,
    dual_clip=c.dual_clip,
  )
  policy = functools.partial(
    step.policy_objective, forward=forward, policy_loss=policy_loss
  )
  nll = functools.partial(step.nll_objective, forward=plain_forward)

  def update(objective, tx: optax.GradientTransformation):
    return jax.jit(
      functools.partial(step.train_step, objective=objective, optimizer=tx),
      in_shardings=(
        of_state(tx), by_microbatch, by_microbatch, everywhere, everywhere
      ),
      out_shardings=(of_state(tx), everywhere),
      donate_argnums=0,
    )  # fmt: skip

  def sample(
    weights, key, tokens, lengths, uid, first, temperature, top_p, *, group_size
  ):
    return rollout.generate(
      weights,
      tokens,
      lengths,
      rollout.request_keys(key, uid, first, group_size),
      temperature,
      top_p,
      model=sampled,
      group_size=group_size,
      max_response_len=c.max_response_len,
      eos_ids=tuple(eos_ids),
      constrain=functools.partial(sharding.constrain, mesh),
    )

  def generate(group_size):
    return jax.jit(
      functools.partial(sample, group_size=group_size),
      in_shardings=(
        of_weights, everywhere, by_row, by_row, by_row, *[everywhere] * 3
      ),
      # Every process reads all responses: the host's decisions are then the
      # same everywhere by construction.
      out_shardings=everywhere,
    )  # fmt: skip

  def shape_rewards(is_correct, response_len):
    outcome = shaping.outcome(is_correct)
    penalty = jnp.zeros_like(outcome)
    if c.overlong_punish:
      penalty = shaping.overlong_penalty(
        response_len,
        max_len=c.max_response_len,
        cache_len=c.overlong_cache_len,
      )
    rewards = outcome + penalty
    advantage = advantages.ESTIMATORS[c.advantage](rewards, std_ddof=c.std_ddof)
    return rewards, penalty, advantage

  rows = -(-c.minibatch_size // c.microbatch_size) * c.microbatch_size
  return Programs(
    init_params=jax.jit(
      lambda key: nn.unbox(transformer.init_params(model_config, key)),
      out_shardings=of_params,
    ),
    init_state=init_state(optimizer),
    init_warm_state=init_state(warm_optimizer),
    to_rollout=jax.jit(
      lambda params: jax.tree.map(lambda x: x.astype(dtype), params),
      in_shardings=(of_params,),
      out_shardings=of_weights,
    ),
    generate=generate(c.group_size),
    generate_one=generate(1),
    shape_rewards=jax.jit(shape_rewards),
    loss_weights=jax.jit(
      functools.partial(
        losses.AGGREGATIONS[c.loss_agg],
        group_size=c.group_size,
        max_response_len=c.max_response_len,
      )
    ),
    score=jax.jit(
      functools.partial(step.score, forward=forward),
      in_shardings=(of_params, by_microbatch, everywhere),
      out_shardings=everywhere,
    ),
    train_step=update(policy, optimizer),
    warm_step=update(nll, warm_optimizer),
    learning_rate=learning_rate,
    state_shape=state_shape,
    params_sharding=of_params,
    capacity=rows,
  )
