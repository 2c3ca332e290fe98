"""Every other term of the loss is exact too: critic, KL, entropy, NTP, GSPO.

Each against one unpacked response a row and a plain softmax, for layouts that
pack, split and pad, and over eight devices.
"""

import functools

import chex
from flax import linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import small

from dapo_jax import losses, packing, sharding, step
from dapo_jax.models import attention, critic, transformer
from dapo_jax.types import Targets, TrainState, ValueTargets

OPTIMIZER = optax.sgd(1.0)  # its update is the gradient
LAYOUTS = [
  dict(row_len=14, capacity=12, microbatch=12, share_prompts=False),
  dict(row_len=30, capacity=12, microbatch=2),
  dict(row_len=200, capacity=2, microbatch=1),
  dict(row_len=37, capacity=40, microbatch=4),
]
KL_COEF, CLIP_VALUE = 0.3, 0.2


def extras(b):
  """Reference log-probabilities, weights of terms, values and returns."""
  rng = np.random.default_rng(5)
  shape = b["tokens"].shape
  mask = np.arange(small.T) < b["response_len"][:, None]
  draw = lambda scale: rng.normal(0, scale, shape).astype(np.float32)
  correct = np.arange(len(mask)) % 3 == 0
  weight = mask / 5.0
  return dict(
    ref_logprobs=(b["old_logprobs"] + draw(0.5)),
    mask=mask,
    weight=weight.astype(np.float32),
    entropy_weight=(0.2 * weight).astype(np.float32),
    ntp_weight=(0.7 * mask * correct[:, None]).astype(np.float32),
    values=draw(0.5),
    returns=draw(1.0),
  )


@functools.cache
def critic_params():
  """Random weights, the head's too."""
  boxed = critic.init_params(small.CONFIG, jax.random.key(3))
  params = jax.tree.map(lambda x: x * 1.5, nn.unbox(boxed))
  w = jax.random.normal(jax.random.key(4), (small.CONFIG.width,))
  return params | {"value": {"w": w, "b": jnp.array([0.3])}}


@functools.partial(jax.jit, static_argnames=("objective", "kl_estimator"))
def policy_reference(
  params, b, more, tokens, predicted, objective, kl_estimator
):
  """Numerator over unpacked responses, from a plain softmax."""
  length = tokens.shape[1]
  logits = jax.nn.log_softmax(
    hidden_of(params, tokens, length) @ transformer.head(params).T
  )
  at = jnp.take_along_axis(logits, predicted[:, :, None], axis=1)
  chosen = jnp.take_along_axis(at, b["tokens"][:, :, None], axis=2)[..., 0]
  mask = more["mask"]
  entropy = jnp.where(mask, -jnp.sum(jnp.exp(at) * at, -1), 0.0)
  loss, _ = losses.OBJECTIVES[objective](
    chosen, b["old_logprobs"], b["advantages"], mask, **small.KNOBS
  )
  loss += KL_COEF * losses.kl(
    chosen, more["ref_logprobs"], mask, estimator=kl_estimator
  )
  total = jnp.sum(loss * more["weight"])
  total -= jnp.sum(entropy * more["entropy_weight"])
  return total - jnp.sum(jnp.where(mask, chosen, 0) * more["ntp_weight"])


def hidden_of(params, tokens, length):
  """Hidden states of one causal sequence a row."""
  causal = jnp.tril(jnp.ones((length, length), bool))[None]
  causal = jnp.broadcast_to(causal, (len(tokens), length, length))
  positions = jnp.broadcast_to(jnp.arange(length), tokens.shape)
  attend = lambda q, k, v, cache, layer: (
    attention.attention(q, k, v, causal), cache
  )  # fmt: skip
  return small.MODEL.apply({"params": params}, tokens, positions, attend)[0]


@jax.jit
def value_reference(params, more, tokens, predicted):
  """Numerator of the critic's loss over unpacked responses."""
  hidden = hidden_of(params["body"], tokens, tokens.shape[1])
  at = jnp.take_along_axis(hidden, predicted[:, :, None], axis=1)
  values = at @ params["value"]["w"] + params["value"]["b"][None]
  held = more["values"] + jnp.clip(
    values - more["values"], -CLIP_VALUE, CLIP_VALUE
  )
  worse = jnp.maximum(
    (values - more["returns"]) ** 2, (held - more["returns"]) ** 2
  )
  return jnp.sum(jnp.where(more["mask"], 0.5 * worse, 0.0) * more["weight"])


def policy_objective(objective, kl_estimator):
  return functools.partial(
    step.policy_objective,
    forward=small.forward,
    policy_loss=functools.partial(losses.OBJECTIVES[objective], **small.KNOBS),
    kl_coef=KL_COEF,
    kl_estimator=kl_estimator,
  )


value_objective = functools.partial(
  step.value_objective,
  forward=functools.partial(step.forward_values, model=small.MODEL),
  clip_value=CLIP_VALUE,
)


def laid_out(b, targets, layout):
  """Rows, targets and their number of microbatches."""
  layout = dict(layout)
  microbatch = layout.pop("microbatch")
  slots = packing.pack(
    b["prompt_tokens"], b["prompt_len"], b["tokens"], b["response_len"],
    **layout,
  )  # fmt: skip
  on_rows = jax.tree.map(
    lambda x: packing.to_rows(x, b["response_len"], slots), targets
  )
  split = lambda tree: packing.microbatches(tree, microbatch)
  used = np.int32(-(-slots.num_rows // microbatch))
  return split(slots.rows), split(on_rows), used


@functools.cache
def program(objective):
  return jax.jit(
    functools.partial(step.train_step, objective=objective, optimizer=OPTIMIZER)
  )


def check(run, params, b, targets, layout, value, grad):
  rows, targets, used = laid_out(b, targets, layout)
  state = TrainState(jnp.int32(0), params, OPTIMIZER.init(params))
  state, metrics = run(state, rows, targets, np.float32(7.0), used)
  np.testing.assert_allclose(metrics["loss"], value / 7, rtol=1e-5, atol=1e-6)
  found = jax.tree.map(lambda a, b: 7 * (a - b), params, state.params)
  scale = float(optax.tree.norm(grad))
  chex.assert_trees_all_close(
    jax.device_get(found), grad, atol=1e-5 * scale, rtol=1e-4
  )


def policy_case(objective, kl_estimator="k3"):
  b = small.batch()
  more = extras(b)
  tokens, predicted, _ = small.plain(b)
  value, grad = jax.value_and_grad(policy_reference)(
    small.params(), b, more, tokens, predicted, objective, kl_estimator
  )
  targets = Targets(
    b["old_logprobs"], b["advantages"], more["mask"], more["weight"],
    more["ref_logprobs"], more["entropy_weight"], more["ntp_weight"],
  )  # fmt: skip
  return b, targets, value, grad


def value_case():
  b = small.batch()
  more = extras(b)
  tokens, predicted, _ = small.plain(b)
  value, grad = jax.value_and_grad(value_reference)(
    critic_params(), more, tokens, predicted
  )
  targets = ValueTargets(
    more["values"], more["returns"], more["mask"], more["weight"]
  )
  return b, targets, value, grad


def test_policy_terms_in_any_layout():
  run = program(policy_objective("gspo", "k3"))
  b, targets, value, grad = policy_case("gspo")
  for layout in LAYOUTS:
    check(run, small.params(), b, targets, layout, value, grad)


@pytest.mark.parametrize(
  "objective, kl_estimator", [("clip", "k1"), ("cispo", "k2")]
)
def test_other_objectives_and_kl_estimators(objective, kl_estimator):
  run = program(policy_objective(objective, kl_estimator))
  b, targets, value, grad = policy_case(objective, kl_estimator)
  check(run, small.params(), b, targets, LAYOUTS[1], value, grad)


def test_the_critics_loss_in_any_layout():
  run = program(value_objective)
  b, targets, value, grad = value_case()
  for layout in LAYOUTS:
    check(run, critic_params(), b, targets, layout, value, grad)


def test_values_are_those_of_the_state_before_each_token():
  b = small.batch()
  rows, _, used = laid_out(b, extras(b)["mask"], LAYOUTS[1])
  forward = functools.partial(step.forward_values, model=small.MODEL)
  found = jax.jit(functools.partial(step.score, forward=forward))(
    critic_params(), rows, used
  )
  slots = packing.pack(
    b["prompt_tokens"], b["prompt_len"], b["tokens"], b["response_len"],
    row_len=30, capacity=12,
  )  # fmt: skip
  found = packing.from_rows(
    np.asarray(found).reshape(12, 30), b["response_len"], small.T, slots
  )
  tokens, predicted, mask = small.plain(b)
  hidden = hidden_of(critic_params()["body"], tokens, tokens.shape[1])
  at = jnp.take_along_axis(hidden, predicted[:, :, None], axis=1)
  expected = at @ critic_params()["value"]["w"] + 0.3
  np.testing.assert_allclose(found, np.where(mask, expected, 0), atol=1e-5)


def test_eight_devices_are_one():
  mesh = sharding.make_mesh(dict(zip(sharding.AXES, (2, 2, 2))))
  by_row, everywhere = sharding.rows(mesh, 1), sharding.replicated(mesh)
  layout = dict(row_len=30, capacity=16, microbatch=8)
  for init, objective, params, case in (
    (transformer.init_params, policy_objective("gspo", "k3"), small.params(),
     policy_case("gspo")),
    (critic.init_params, value_objective, critic_params(), value_case()),
  ):  # fmt: skip
    boxed = jax.eval_shape(
      lambda init=init: init(small.CONFIG, jax.random.key(0))
    )
    of_params = sharding.of_params(mesh, boxed, "train")
    of_state = TrainState(
      everywhere, of_params,
      sharding.like_params(OPTIMIZER.init(params), params, of_params, mesh),
    )  # fmt: skip
    run = jax.jit(
      functools.partial(
        step.train_step, objective=objective, optimizer=OPTIMIZER
      ),
      in_shardings=(of_state, by_row, by_row, everywhere, everywhere),
      out_shardings=(of_state, everywhere),
    )
    b, targets, value, grad = case
    check(
      run, jax.device_put(params, of_params), b, targets, layout, value, grad
    )


@pytest.mark.parametrize("name", ["policy", "value"])
def test_any_fill_of_all_terms_is_one_trace(name):
  chex.clear_trace_counter()
  traced = chex.assert_max_traces(step.train_step, n=1)
  objective, params = policy_objective("clip", "k3"), small.params()
  if name == "value":
    objective, params = value_objective, critic_params()
  program = jax.jit(
    functools.partial(traced, objective=objective, optimizer=OPTIMIZER)
  )
  state = TrainState(jnp.int32(0), params, OPTIMIZER.init(params))
  for lengths in (None, np.ones(12, int), np.zeros(12, int)):
    b = small.batch(response_len=lengths)
    more = extras(b)
    targets = ValueTargets(
      more["values"], more["returns"], more["mask"], more["weight"]
    )
    if name == "policy":
      targets = Targets(
        b["old_logprobs"], b["advantages"], more["mask"], more["weight"],
        more["ref_logprobs"], more["entropy_weight"], more["ntp_weight"],
      )  # fmt: skip
    rows, targets, used = laid_out(b, targets, LAYOUTS[1])
    program.trace(state, rows, targets, np.float32(more["mask"].sum()), used)


def test_segments_number_prompts_and_responses():
  b = small.batch(response_len=np.full(12, 2))
  rows, *_ = laid_out(b, extras(b)["mask"], LAYOUTS[1])
  rows = jax.tree.map(lambda x: x[0], rows)
  found = np.asarray(step.segments(rows))
  for row in range(2):
    pairs = list(zip(rows.family[row], rows.response[row]))
    for i in range(len(pairs)):
      for j in range(i):
        # One number a run of equal pairs; each pair is one run.
        assert (found[row, i] == found[row, j]) == (pairs[i] == pairs[j])
