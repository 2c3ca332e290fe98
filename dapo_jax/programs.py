"""Every compiled program of a run, bound to its config, model and mesh.

Shapes are fixed: whatever the data bring, nothing is compiled twice. Only
`generate` has two, those of a round of training and of evaluation.
"""

from collections.abc import Callable
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from dapo_jax import compiled, optim, sharding
from dapo_jax.models import transformer
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
  optimizer = compiled.adamw(
    c.lr, c.warmup_iters * steps, c.lr_decay_iters * steps, c.lr_floor, *adam
  )
  warm_optimizer = compiled.warm_adamw(c.warm_lr, c.warm_steps)
  policy = compiled.Policy(model_config, mesh)
  policy_objective = compiled.policy_objective(
    model, c.temperature, c.logits_chunk_len, c.objective, c.clip_low,
    c.clip_high, c.dual_clip, c.kl_coef, c.kl_estimator,
  )  # fmt: skip
  nll_objective = compiled.nll_objective(model, c.logits_chunk_len)
  generate = functools.partial(
    compiled.generate, policy, dtype, c.max_response_len, tuple(eos_ids)
  )
  critic_programs = None
  if c.advantage == "gae":
    of_critic = compiled.Critic(model_config, mesh)
    critic_optimizer = compiled.adamw(
      c.critic_lr, c.warmup_iters * steps, 0, 0.0, *adam
    )
    critic_programs = CriticPrograms(
      of_policy=compiled.critic_of_policy(of_critic),
      init_state=compiled.init_state(of_critic, critic_optimizer),
      score=compiled.score(of_critic, compiled.value_forward(model)),
      train_step=compiled.update_step(
        of_critic,
        compiled.value_objective(model, c.clip_value),
        critic_optimizer,
      ),
      state_shape=compiled.state_shape(of_critic, critic_optimizer),
    )
  shards = sharding.batch_shards(mesh)
  return Programs(
    init_params=compiled.init_params(policy),
    init_state=compiled.init_state(policy, optimizer),
    init_warm_state=compiled.init_state(policy, warm_optimizer),
    to_rollout=compiled.to_rollout(policy, dtype),
    to_reference=compiled.to_reference(policy, dtype),
    generate=generate(c.group_size),
    generate_one=generate(1),
    score=compiled.score(
      policy, compiled.logprob_forward(model, c.temperature, c.logits_chunk_len)
    ),
    shape_rewards=compiled.shape_rewards(
      c.overlong_punish, c.max_response_len, c.overlong_cache_len
    ),
    advantages=compiled.estimate(
      mesh, advantage=c.advantage, std_ddof=c.std_ddof, gamma=c.gamma,
      lam_actor=c.lam_actor, lam_alpha=c.lam_alpha, kl_coef=c.kl_coef,
      kl_estimator=c.kl_estimator, tis_limit=c.tis_limit, tis_mode=c.tis_mode,
      max_response_len=c.max_response_len,
    ),
    loss_weights=compiled.loss_weights(
      c.loss_agg, c.group_size, c.max_response_len
    ),
    train_step=compiled.update_step(policy, policy_objective, optimizer),
    warm_step=compiled.update_step(policy, nll_objective, warm_optimizer),
    critic=critic_programs,
    learning_rate=learning_rate,
    state_shape=compiled.state_shape(policy, optimizer),
    params_sharding=compiled.layout(policy, "train"),
    capacity=-(-c.minibatch_size // c.microbatch_size) * c.microbatch_size,
    max_groups=-(-c.prompts_per_batch // shards) * shards,
  )  # fmt: skip
