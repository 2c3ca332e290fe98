"""Chunked log-probabilities against the plain formula."""

import functools

import chex
import jax
import jax.numpy as jnp
from jax.test_util import check_grads
import numpy as np
import pytest

from dapo_jax import logprobs

ROWS, LENGTH, WIDTH, VOCAB = 3, 11, 4, 13


@functools.cache
def case():
  """Hidden states, head, tokens, sources, a mask with an empty row."""
  rng = np.random.default_rng(0)
  hidden = rng.normal(size=(ROWS, LENGTH, WIDTH)).astype(np.float32)
  head = rng.normal(size=(VOCAB, WIDTH)).astype(np.float32)
  tokens, source = (
    rng.integers(0, high, (ROWS, LENGTH)).astype(np.int32)
    for high in (VOCAB, LENGTH)
  )
  mask = rng.random((ROWS, LENGTH)) < 0.6
  mask[1] = False
  return tuple(map(jnp.asarray, (hidden, head, tokens, source, mask)))


def plain(hidden, head, tokens, source, mask, temperature):
  at = jnp.take_along_axis(hidden, source[..., None], axis=1)
  log_p = jax.nn.log_softmax(at @ head.T / temperature)
  chosen = jnp.take_along_axis(log_p, tokens[..., None], axis=2)[..., 0]
  entropy = -jnp.sum(jnp.exp(log_p) * log_p, axis=-1)
  return tuple(jnp.where(mask, x, 0.0) for x in (chosen, entropy))


@pytest.mark.parametrize("chunk_len", [1, 4, LENGTH, 99])
def test_values_and_gradients_are_those_of_the_plain_formula(chunk_len):
  hidden, head, tokens, source, mask = case()
  weights = np.random.default_rng(1).normal(size=(2, ROWS, LENGTH))

  def total(hidden, head, f):
    out = f(hidden, head, tokens, source, mask)
    return sum(jnp.sum(w * x) for w, x in zip(weights, out))

  chunked = functools.partial(
    logprobs.token_logprobs, temperature=0.7, chunk_len=chunk_len
  )
  reference = functools.partial(plain, temperature=0.7)
  chex.assert_trees_all_close(
    chunked(*case()), reference(*case()), rtol=1e-5, atol=1e-6
  )
  chex.assert_trees_all_close(
    *(
      jax.grad(total, (0, 1))(hidden, head, f) for f in (chunked, reference)
    ),
    rtol=1e-4, atol=1e-6,
  )  # fmt: skip


def test_a_large_vocabulary_costs_no_precision():
  # 49,152 small terms beside a large one: added one after the other in f32,
  # what is below 2^-24 of the sum is lost, 3e-4 of log Z in all.
  rng = np.random.default_rng(0)
  logits = 2.2 * rng.normal(size=(1, 6, 49152))
  logits[0, :, 7] += np.linspace(8, 26, 6)
  logits = logits.astype(np.float32)
  # Hidden states are the unit vectors, so the head's columns are the logits.
  hidden, head = jnp.eye(6)[None], jnp.asarray(logits[0].T)
  order, mask = jnp.arange(6)[None], jnp.ones((1, 6), bool)
  found = logprobs.token_logprobs(hidden, head, 3 + 0 * order, order, mask)
  exact = logits.astype(np.float64)
  top = exact.max(-1, keepdims=True)
  log_p = exact - top - np.log(np.exp(exact - top).sum(-1, keepdims=True))
  entropy = -np.sum(np.exp(log_p) * log_p, axis=-1)
  for a, b in zip(found, (log_p[..., 3], entropy)):
    np.testing.assert_allclose(a, b, atol=1e-5)


def test_gradients_by_finite_differences():
  hidden, head, *rest = case()
  f = lambda *x: logprobs.token_logprobs(
    *map(jnp.asarray, x), *rest, chunk_len=4
  )
  check_grads(f, (hidden, head), order=1, modes=("rev",), rtol=1e-2)


def test_gradients_in_bfloat16_are_those_of_float32():
  hidden, head, *rest = case()
  low = [x.astype(jnp.bfloat16) for x in (hidden, head)]
  f = lambda *x: logprobs.token_logprobs(*x, *rest, chunk_len=4)[0].sum()
  grads = jax.grad(f, (0, 1))(*low)
  assert all(g.dtype == jnp.bfloat16 for g in grads)
  wanted = jax.grad(f, (0, 1))(*(x.astype(jnp.float32) for x in low))
  # 8 bits of mantissa: 2^-8 a product, a few of them in a sum.
  for a, b in zip(grads, wanted):
    scale = float(jnp.abs(b).max())
    np.testing.assert_allclose(a.astype(jnp.float32), b, atol=0.02 * scale)


def test_nothing_wanted_is_nothing_done():
  hidden, head, tokens, source, mask = case()
  f = lambda h: sum(
    x.sum()
    for x in logprobs.token_logprobs(h, head, tokens, source, mask & False)
  )
  value, grad = jax.value_and_grad(f)(jnp.full_like(hidden, jnp.nan))
  assert value == 0 and not grad.any()
