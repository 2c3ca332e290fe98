"""Every compiled program of a run, bound to its config, model and mesh.

Shapes are fixed: whatever the data bring, nothing is compiled twice. Only
`generate` has two, those of a round of training and of evaluation.

Each program is made by a cached function of what it depends on, so that runs
of one process that differ in other things share what is compiled.
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


class CriticPrograms(NamedTuple):
  """The programs of the critic.

  Attributes:
    of_policy: policy params -> params of a critic with a copy of their body.
    init_state: params -> TrainState.
    score: (params, rows, num_microbatches) -> values.
    train_step: (state, rows, value targets, divisor, num_microbatches) ->
      state, metrics; donates the state.
    state_shape: shapes and layout of the TrainState.
  """

  of_policy: Callable
  init_state: Callable
  score: Callable
  train_step: Callable
  state_shape: TrainState

  @property
  def params_shape(self):
    """Shapes and layout of the params."""
    return self.state_shape.params


class Programs(NamedTuple):
  """The programs, in the order a batch meets them.

  Attributes:
    init_params: key -> random params, laid out.
    init_state: params -> TrainState.
    init_warm_state: params -> TrainState of the supervised warm start.
    to_rollout: params -> weights in the sampler's dtype and layout.
    to_reference: params -> a copy in the compute dtype, for `score`.
    generate: (weights, key, prompt_tokens, prompt_len, uid, first_sample,
      temperature, top_p) -> Rollout of P x G.
    generate_one: the same with one response a prompt.
    score: (params, rows, num_microbatches) -> logprobs.
    shape_rewards: (is_correct, response_len) [P, G] -> rewards, overlong
      penalties.
    advantages: `advantages.estimate`.
    loss_weights: loss_mask [B, T] -> weights [B, T], divisor.
    train_step: (state, rows, targets, divisor, num_microbatches) -> state,
      metrics; donates the state.
    warm_step: the same for the supervised warm start.
    critic: programs of the critic, or None.
    learning_rate: optimizer step -> its learning rate.
    state_shape: shapes and layout of the TrainState.
    params_sharding: layout of the params.
    capacity: rows of a minibatch, in use or not.
    max_groups: groups that `shape_rewards` and `advantages` take.
  """

  init_params: Callable
  init_state: Callable
  init_warm_state: Callable
  to_rollout: Callable
  to_reference: Callable
  generate: Callable
  generate_one: Callable
  score: Callable
  shape_rewards: Callable
  advantages: Callable
  loss_weights: Callable
  train_step: Callable
  warm_step: Callable
  critic: CriticPrograms | None
  learning_rate: Callable
  state_shape: TrainState
  params_sharding: Any
  capacity: int
  max_groups: int

  @property
  def params_shape(self):
    """Shapes and layout of the params."""
    return self.state_shape.params


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
  model = transformer.Transformer(model_config, dtype, remat=c.remat)
  steps = updates_per_iter(c)
  adam = (c.b1, c.b2, c.adam_eps, c.weight_decay, c.max_grad_norm)
  learning_rate = optim.learning_rate(
    c.lr,
    warmup_steps=c.warmup_iters * steps,
    decay_steps=c.lr_decay_iters * steps,
    floor=c.lr_floor,
  )
  optimizer = _adamw(
    c.lr, c.warmup_iters * steps, c.lr_decay_iters * steps, c.lr_floor, *adam
  )
  warm_optimizer = _warm_adamw(c.warm_lr, c.warm_steps)
  policy = _Policy(model_config, mesh)
  policy_objective = _policy_objective(
    model, c.temperature, c.logits_chunk_len, c.objective, c.clip_low,
    c.clip_high, c.dual_clip, c.kl_coef, c.kl_estimator,
  )  # fmt: skip
  nll_objective = _nll_objective(model, c.logits_chunk_len)
  generate = functools.partial(
    _generate, policy, dtype, c.max_response_len, tuple(eos_ids)
  )
  critic_programs = None
  if c.advantage == "gae":
    of_critic = _Critic(model_config, mesh)
    critic_optimizer = _adamw(
      c.critic_lr, c.warmup_iters * steps, 0, 0.0, *adam
    )
    critic_programs = CriticPrograms(
      of_policy=_critic_of_policy(of_critic),
      init_state=_init_state(of_critic, critic_optimizer),
      score=_score(of_critic, _value_forward(model)),
      train_step=_update(
        of_critic, _value_objective(model, c.clip_value), critic_optimizer
      ),
      state_shape=_state_shape(of_critic, critic_optimizer),
    )
  shards = sharding.batch_shards(mesh)
  return Programs(
    init_params=_init_params(policy),
    init_state=_init_state(policy, optimizer),
    init_warm_state=_init_state(policy, warm_optimizer),
    to_rollout=_to_rollout(policy, dtype),
    to_reference=_to_reference(policy, dtype),
    generate=generate(c.group_size),
    generate_one=generate(1),
    score=_score(
      policy, _logprob_forward(model, c.temperature, c.logits_chunk_len)
    ),
    shape_rewards=_shape_rewards(
      c.overlong_punish, c.max_response_len, c.overlong_cache_len
    ),
    advantages=_advantages(
      mesh, advantage=c.advantage, std_ddof=c.std_ddof, gamma=c.gamma,
      lam_actor=c.lam_actor, lam_alpha=c.lam_alpha, kl_coef=c.kl_coef,
      kl_estimator=c.kl_estimator, tis_limit=c.tis_limit, tis_mode=c.tis_mode,
      max_response_len=c.max_response_len,
    ),
    loss_weights=_loss_weights(c.loss_agg, c.group_size, c.max_response_len),
    train_step=_update(policy, policy_objective, optimizer),
    warm_step=_update(policy, nll_objective, warm_optimizer),
    critic=critic_programs,
    learning_rate=learning_rate,
    state_shape=_state_shape(policy, optimizer),
    params_sharding=_layout(policy, "train"),
    capacity=-(-c.minibatch_size // c.microbatch_size) * c.microbatch_size,
    max_groups=-(-c.prompts_per_batch // shards) * shards,
  )  # fmt: skip


# ---- Layouts: what parameters look like and where they live ----------------


class _Policy(NamedTuple):
  """The policy's parameters on a mesh."""

  config: transformer.ModelConfig
  mesh: Any
  init: Callable = transformer.init_params


class _Critic(NamedTuple):
  """The critic's parameters on a mesh."""

  config: transformer.ModelConfig
  mesh: Any
  init: Callable = critic.init_params


@functools.cache
def _boxed(of):
  return jax.eval_shape(
    functools.partial(of.init, of.config), jax.random.key(0)
  )


@functools.cache
def _layout(of, name: str):
  return sharding.of_params(of.mesh, _boxed(of), name)


@functools.cache
def _shapes(of):
  return jax.tree.map(
    lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), nn.unbox(_boxed(of))
  )


@functools.cache
def _state_layout(of, optimizer) -> TrainState:
  shapes, layout = _shapes(of), _layout(of, "train")
  moments = sharding.like_params(
    jax.eval_shape(optimizer.init, shapes), shapes, layout, of.mesh
  )
  return TrainState(sharding.replicated(of.mesh), layout, moments)


@functools.cache
def _state_shape(of, optimizer) -> TrainState:
  return jax.tree.map(
    lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s),
    jax.eval_shape(_init_state(of, optimizer), _shapes(of)),
    _state_layout(of, optimizer),
  )


# ---- Parameters and states -------------------------------------------------


@functools.cache
def _init_params(of):
  return jax.jit(
    lambda key: nn.unbox(of.init(of.config, key)),
    out_shardings=_layout(of, "train"),
  )


@functools.cache
def _critic_of_policy(of):
  return jax.jit(critic.of_policy, out_shardings=_layout(of, "train"))


@functools.cache
def _init_state(of, optimizer):
  return jax.jit(
    lambda params: TrainState(
      jnp.zeros((), jnp.int32), params, optimizer.init(params)
    ),
    out_shardings=_state_layout(of, optimizer),
  )


@functools.cache
def _to_rollout(of, dtype):
  return jax.jit(
    lambda params: jax.tree.map(lambda x: x.astype(dtype), params),
    in_shardings=(_layout(of, "train"),),
    out_shardings=_layout(of, "rollout"),
  )


@functools.cache
def _to_reference(of, dtype):
  # A copy even where the dtype is the same: the original will be donated.
  return jax.jit(
    lambda params: jax.tree.map(
      lambda x: jnp.array(x, dtype, copy=True), params
    ),
    out_shardings=_layout(of, "train"),
  )


@functools.cache
def _adamw(
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
def _warm_adamw(lr, steps):
  return optim.adamw(optax.linear_schedule(lr, 0.0, steps), max_grad_norm=1.0)


# ---- Forward passes and objectives -----------------------------------------


@functools.cache
def _forward(model, temperature, logits_chunk_len):
  return functools.partial(
    step.forward, model=model, temperature=temperature,
    logits_chunk_len=logits_chunk_len,
  )  # fmt: skip


@functools.cache
def _logprob_forward(model, temperature, logits_chunk_len):
  forward = _forward(model, temperature, logits_chunk_len)
  return lambda params, rows: forward(params, rows)[0]


@functools.cache
def _value_forward(model):
  body = model.clone(config=critic.body_config(model.config))
  return functools.partial(step.forward_values, model=body)


@functools.cache
def _policy_objective(
  model, temperature, logits_chunk_len, objective, clip_low, clip_high,
  dual_clip, kl_coef, kl_estimator,
):  # fmt: skip
  policy_loss = functools.partial(
    losses.OBJECTIVES[objective], clip_low=clip_low, clip_high=clip_high,
    dual_clip=dual_clip,
  )  # fmt: skip
  return functools.partial(
    step.policy_objective,
    forward=_forward(model, temperature, logits_chunk_len),
    policy_loss=policy_loss, kl_coef=kl_coef, kl_estimator=kl_estimator,
  )  # fmt: skip


@functools.cache
def _nll_objective(model, logits_chunk_len):
  # Demonstrations are no samples: their likelihood is at temperature 1.
  forward = _forward(model, 1.0, logits_chunk_len)
  return functools.partial(step.nll_objective, forward=forward)


@functools.cache
def _value_objective(model, clip_value):
  return functools.partial(
    step.value_objective, forward=_value_forward(model), clip_value=clip_value
  )


# ---- Programs of a batch ---------------------------------------------------


@functools.cache
def _generate(of, dtype, max_response_len, eos_ids, group_size):
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
      _layout(of, "rollout"), everywhere, by_row, by_row, by_row,
      *[everywhere] * 3,
    ),
    # Every process reads all responses: the host's decisions are then the
    # same everywhere by construction.
    out_shardings=everywhere,
  )  # fmt: skip


@functools.cache
def _score(of, forward):
  everywhere = sharding.replicated(of.mesh)
  return jax.jit(
    functools.partial(step.score, forward=forward),
    in_shardings=(
      _layout(of, "train"), sharding.rows(of.mesh, axis=1), everywhere
    ),
    out_shardings=everywhere,
  )  # fmt: skip


@functools.cache
def _shape_rewards(overlong_punish, max_response_len, overlong_cache_len):
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
def _advantages(mesh, **knobs):
  by_row, everywhere = sharding.rows(mesh), sharding.replicated(mesh)
  return jax.jit(
    functools.partial(advantages.estimate, **knobs),
    in_shardings=(*[by_row] * 6, everywhere),
    out_shardings=everywhere,
  )


@functools.cache
def _loss_weights(loss_agg, group_size, max_response_len):
  return jax.jit(
    functools.partial(
      losses.AGGREGATIONS[loss_agg],
      group_size=group_size,
      max_response_len=max_response_len,
    )
  )


@functools.cache
def _update(of, objective, optimizer):
  everywhere = sharding.replicated(of.mesh)
  by_microbatch = sharding.rows(of.mesh, axis=1)
  of_state = _state_layout(of, optimizer)
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
