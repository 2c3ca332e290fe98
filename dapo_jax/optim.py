"""The optimizer: AdamW behind gradient clipping; warm-up, then constant."""

import jax
import optax


def learning_rate(
  lr: float, *, warmup_steps: int, decay_steps: int = 0, floor: float = 0.0
) -> optax.Schedule:
  """lr * min(1, (step + 1) / warmup_steps), then constant.

  Counted in optimizer steps, so that it does not depend on how many rounds
  dynamic sampling takes (DAPO 4.1: warm-up over 20 rollout iterations).

  Args:
    lr: the highest rate.
    warmup_steps: 0 or 1: none.
    decay_steps: 0: constant behind the warm-up (DAPO); else it falls linearly
      over so many steps to lr * floor, and stays there.
    floor: share of lr that is left.
  """
  rise = max(warmup_steps - 1, 0)
  warmup = optax.linear_schedule(lr / max(warmup_steps, 1), lr, rise)
  if not decay_steps:
    return warmup
  decay = optax.linear_schedule(lr, lr * floor, decay_steps)
  return optax.join_schedules([warmup, decay], [rise])


def decay_mask(params) -> dict:
  """True on matrices; norms and biases are not decayed."""

  def decayed(path, _):
    name = path[-1].key
    return not ("norm" in name or name.startswith("b"))

  return jax.tree_util.tree_map_with_path(decayed, params)


def adamw(
  learning_rate: optax.Schedule,
  *,
  b1: float = 0.9,
  b2: float = 0.999,
  eps: float = 1e-8,
  weight_decay: float = 0.0,
  max_grad_norm: float = 0.0,
) -> optax.GradientTransformation:
  """AdamW; `max_grad_norm` clips by the global norm first, 0 = off."""
  clip = (
    optax.clip_by_global_norm(max_grad_norm)
    if max_grad_norm
    else optax.identity()
  )
  return optax.chain(
    clip,
    optax.scale_by_adam(b1, b2, eps),
    optax.add_decayed_weights(weight_decay, mask=decay_mask),
    optax.scale_by_learning_rate(learning_rate),
  )
