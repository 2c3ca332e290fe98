"""The update is exact: however it is split, packed, padded or laid out."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import small

from dapo_jax import losses, optim, packing, sharding, step
from dapo_jax.models import attention, transformer
from dapo_jax.types import TrainState

AGGREGATIONS = sorted(losses.AGGREGATIONS)
OPTIMIZER = optax.sgd(1.0)  # its update is the gradient


def adamw():
  return optim.adamw(
    optim.learning_rate(1e-2, warmup_steps=4), weight_decay=0.1,
    max_grad_norm=1.0,
  )  # fmt: skip


ADAMW = adamw()


@functools.cache
def program(optimizer):
  """One jitted step; it compiles once a layout, for all aggregations."""
  return jax.jit(
    functools.partial(
      step.train_step, objective=small.objective, optimizer=optimizer
    )
  )


def run(b, optimizer=OPTIMIZER, **layout):
  """One train step from a batch; returns new state and metrics."""
  rows, targets, divisor, used, _ = small.laid_out(b, **layout)
  state = TrainState(
    jnp.int32(0), small.params(), optimizer.init(small.params())
  )
  return program(optimizer)(state, rows, targets, divisor, used)


@functools.partial(jax.jit, static_argnames="loss_agg")
def _reference(tokens, predicted, mask, responses, old, advantages, loss_agg):
  length = tokens.shape[1]
  causal = jnp.tril(jnp.ones((length, length), bool))[None]
  causal = jnp.broadcast_to(causal, (len(tokens), length, length))
  positions = jnp.broadcast_to(jnp.arange(length), tokens.shape)
  attend = lambda q, k, v, cache, layer: (
    attention.attention(q, k, v, causal),
    cache,
  )

  def loss(params):
    hidden, _ = small.MODEL.apply({"params": params}, tokens, positions, attend)
    logprobs = jax.nn.log_softmax(hidden @ transformer.head(params).T)
    at = jnp.take_along_axis(logprobs, predicted[:, :, None], axis=1)
    chosen = jnp.take_along_axis(at, responses[:, :, None], axis=2)[..., 0]
    per_token, _ = losses.policy_loss(
      chosen, old, advantages, mask, **small.KNOBS
    )
    return losses.aggregate(
      per_token, mask, loss_agg=loss_agg, group_size=small.G,
      max_response_len=small.T,
    )  # fmt: skip

  return jax.value_and_grad(loss)(small.params())


def reference(b, loss_agg):
  """Loss and gradient from one unpacked response a row and a plain softmax."""
  return _reference(
    *small.plain(b), b["tokens"], b["old_logprobs"], b["advantages"],
    loss_agg=loss_agg,
  )  # fmt: skip


def check(state, metrics, value, grad):
  np.testing.assert_allclose(metrics["loss"], value, rtol=1e-5, atol=1e-7)
  found = jax.tree.map(lambda a, b: a - b, small.params(), state.params)
  scale = float(optax.tree.norm(grad))
  chex.assert_trees_all_close(found, grad, atol=1e-5 * scale, rtol=1e-4)


@pytest.mark.parametrize("loss_agg", AGGREGATIONS)
@pytest.mark.parametrize(
  "layout",
  [
    dict(row_len=14, capacity=12, microbatch=12, share=False),
    dict(row_len=14, capacity=12, microbatch=1, share=False),
    dict(row_len=30, capacity=12, microbatch=2),
    dict(row_len=200, capacity=2, microbatch=1),
    dict(row_len=37, capacity=40, microbatch=4),
  ],
  ids=["one row each", "split", "packed", "one row for all", "padded"],
)
def test_any_layout_is_the_plain_loss_and_gradient(loss_agg, layout):
  b = small.batch()
  state, metrics = run(b, loss_agg=loss_agg, **layout)
  check(state, metrics, *reference(b, loss_agg))


@pytest.mark.parametrize("loss_agg", AGGREGATIONS)
def test_order_changes_nothing(loss_agg):
  b = small.batch()
  layout = dict(loss_agg=loss_agg, row_len=30, capacity=12, microbatch=2)
  order = np.array([2, 0, 3, 1])
  rows = (order[:, None] * small.G + [[1, 2, 0]]).reshape(-1)
  shuffled = {
    k: v[order] if k.startswith("prompt") else v[rows] for k, v in b.items()
  }
  first, second = run(b, **layout), run(shuffled, **layout)
  np.testing.assert_allclose(
    first[1]["loss"], second[1]["loss"], rtol=1e-5, atol=1e-7
  )
  chex.assert_trees_all_close(
    first[0].params, second[0].params, atol=1e-5, rtol=1e-4
  )


@pytest.mark.parametrize("loss_agg", AGGREGATIONS)
def test_an_empty_response_and_an_empty_group_change_nothing(loss_agg):
  lengths = np.array([0, 0, 0, 8, 1, 0, 2, 3, 4, 5, 0, 6])
  b = small.batch(response_len=lengths)
  state, metrics = run(
    b, loss_agg=loss_agg, row_len=30, capacity=12, microbatch=2
  )
  check(state, metrics, *reference(b, loss_agg))


@functools.cache
def on_mesh(shape):
  """The step laid out over eight devices, and the layout of the params."""
  mesh = sharding.make_mesh(dict(zip(sharding.AXES, shape)))
  boxed = jax.eval_shape(
    lambda: transformer.init_params(small.CONFIG, jax.random.key(0))
  )
  layout = sharding.of_params(mesh, boxed, "train")
  params = small.params()
  by_row, everywhere = sharding.rows(mesh, 1), sharding.replicated(mesh)
  of_state = TrainState(
    everywhere, layout,
    sharding.like_params(OPTIMIZER.init(params), params, layout, mesh),
  )  # fmt: skip
  return jax.jit(
    functools.partial(
      step.train_step, objective=small.objective, optimizer=OPTIMIZER
    ),
    in_shardings=(of_state, by_row, by_row, everywhere, everywhere),
    out_shardings=(of_state, everywhere),
  ), layout


@pytest.mark.parametrize("shape", [(8, 1, 1), (2, 4, 1), (2, 2, 2), (1, 2, 4)])
@pytest.mark.parametrize("loss_agg", AGGREGATIONS)
def test_eight_devices_are_one(loss_agg, shape):
  b = small.batch()
  rows, targets, divisor, used, _ = small.laid_out(
    b, loss_agg=loss_agg, row_len=30, capacity=16, microbatch=8
  )
  step_on_mesh, layout = on_mesh(shape)
  params = jax.device_put(small.params(), layout)
  state = TrainState(jnp.int32(0), params, OPTIMIZER.init(params))
  state, metrics = step_on_mesh(state, rows, targets, divisor, used)
  check(jax.device_get(state), metrics, *reference(b, loss_agg))


def test_score_is_the_logprob_of_every_response_token():
  b = small.batch()
  rows, _, _, used, slots = small.laid_out(
    b, loss_agg="token_mean", row_len=30, capacity=12, microbatch=2
  )
  logprobs_of = lambda params, rows: small.forward(params, rows)[0]
  out = jax.jit(functools.partial(step.score, forward=logprobs_of))(
    small.params(), rows, used
  )
  logprobs = packing.from_rows(
    np.asarray(out).reshape(12, 30), b["response_len"], small.T, slots
  )
  tokens, predicted, mask = small.plain(b)
  length = tokens.shape[1]
  causal = jnp.tril(jnp.ones((length, length), bool))[None]

  @jax.jit
  def expected(tokens, predicted, responses):
    hidden, _ = small.MODEL.apply(
      {"params": small.params()}, tokens,
      jnp.broadcast_to(jnp.arange(length), tokens.shape),
      lambda q, k, v, cache, layer: (
        attention.attention(
          q, k, v, jnp.broadcast_to(causal, (len(tokens), length, length))
        ), cache),
    )  # fmt: skip
    logits = jax.nn.log_softmax(hidden @ transformer.head(small.params()).T)
    at = jnp.take_along_axis(logits, predicted[:, :, None], axis=1)
    return jnp.take_along_axis(at, responses[:, :, None], axis=2)[..., 0]

  all_expected = np.asarray(expected(tokens, predicted, b["tokens"]))
  np.testing.assert_allclose(
    logprobs, np.where(mask, all_expected, 0), atol=1e-5
  )


def test_remat_changes_nothing():
  b = small.batch()
  layout = dict(loss_agg="token_mean", row_len=30, capacity=12, microbatch=2)
  rows, targets, *_ = small.laid_out(b, **layout)
  pick = lambda tree: jax.tree.map(lambda x: jnp.asarray(x[0]), tree)
  grads = []
  for remat in (False, True):
    model = transformer.Transformer(small.CONFIG, remat=remat)
    forward = functools.partial(
      step.forward, model=model, temperature=1.0, logits_chunk_len=7
    )
    objective = functools.partial(
      step.policy_objective, forward=forward,
      policy_loss=functools.partial(losses.policy_loss, **small.KNOBS),
    )  # fmt: skip
    grads.append(
      jax.jit(jax.grad(objective, has_aux=True))(
        small.params(), pick(rows), pick(targets)
      )[0]
    )
  chex.assert_trees_all_close(*grads, atol=1e-6, rtol=1e-5)


LAYOUT = dict(loss_agg="token_mean", row_len=30, capacity=12, microbatch=2)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_an_update_that_is_not_finite_is_skipped_and_counted(bad):
  b = small.batch()
  b["advantages"][0, 0] = bad
  state, metrics = run(b, ADAMW, **LAYOUT)
  assert metrics["skipped_nonfinite"] == 1
  chex.assert_trees_all_equal(state.params, small.params())
  chex.assert_trees_all_equal(state.opt_state, adamw().init(small.params()))
  good, metrics = run(small.batch(), ADAMW, **LAYOUT)
  assert metrics["skipped_nonfinite"] == 0
  assert not np.array_equal(good.params["embed"], small.params()["embed"])


def test_no_token_to_learn_from_leaves_everything_as_it_is():
  # Not even weight decay acts, and the moments stay.
  b = small.batch(response_len=np.zeros(12, int))
  state, metrics = run(b, ADAMW, **LAYOUT)
  assert metrics["skipped_empty"] == 1 and metrics["loss"] == 0
  chex.assert_trees_all_equal(state.params, small.params())
  assert int(state.step) == 0


def test_any_fill_runs_in_one_program():
  optimizer = adamw()
  chex.clear_trace_counter()
  traced = chex.assert_max_traces(step.train_step, n=1)
  program = jax.jit(
    functools.partial(traced, objective=small.objective, optimizer=optimizer)
  )
  params = small.params()
  state = TrainState(jnp.int32(0), params, optimizer.init(params))
  for seed, lengths in enumerate([None, np.ones(12, int), np.zeros(12, int)]):
    rows, targets, divisor, used, _ = small.laid_out(
      small.batch(seed, lengths), **LAYOUT
    )
    state, _ = program(state, rows, targets, divisor, used)
  assert int(state.step) == 2  # the third batch had no token


def test_warm_up_is_linear_in_optimizer_steps():
  schedule = optim.learning_rate(1e-6, warmup_steps=320)
  np.testing.assert_allclose(schedule(0), 1e-6 / 320, rtol=1e-5)
  np.testing.assert_allclose(schedule(159), 0.5e-6, rtol=1e-5)
  np.testing.assert_allclose([schedule(319), schedule(9999)], 1e-6, rtol=1e-5)
  for warmup in (0, 1):
    schedule = optim.learning_rate(3.0, warmup_steps=warmup)
    assert schedule(0) == schedule(1) == schedule(99) == 3.0


def test_the_fall_behind_the_warm_up_is_linear_and_ends_at_the_floor():
  schedule = optim.learning_rate(1.0, warmup_steps=4, decay_steps=8, floor=0.2)
  np.testing.assert_allclose(
    [schedule(s) for s in (0, 3, 4, 7, 11, 12, 99)],
    [0.25, 1.0, 0.9, 0.6, 0.2, 0.2, 0.2], rtol=1e-5,
  )  # fmt: skip
  schedule = optim.learning_rate(1.0, warmup_steps=0, decay_steps=2)
  np.testing.assert_allclose([schedule(s) for s in range(4)], [1, 0.5, 0, 0])


def test_matrices_decay_and_norms_and_biases_do_not():
  mask = optim.decay_mask(small.params())
  layers = mask["layers"]
  assert mask["embed"] and layers["wq"] and layers["w_down"]
  assert not (mask["norm"] or layers["attn_norm"] or layers["q_norm"])
  assert not (layers["bq"] or layers["bk"] or layers["bv"])
