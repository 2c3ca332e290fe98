"""The sampler draws what it says it draws."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dapo_jax import sampling

ONE = jnp.float32(1.0)


def draw(logits, n, temperature=ONE, top_p=ONE, seed=0):
  """n tokens from one row of logits, with their log-probabilities."""
  keys = jax.random.split(jax.random.key(seed), n)
  rows = jnp.broadcast_to(logits, (n, logits.shape[-1]))
  return jax.device_get(
    jax.jit(sampling.sample)(
      rows, keys, temperature=jnp.float32(temperature),
      top_p=jnp.float32(top_p),
    )
  )  # fmt: skip


@pytest.mark.parametrize("vocab", [5, 256, 700])
@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_frequencies_and_logprobs(vocab, temperature):
  logits = 2.0 * jax.random.normal(jax.random.key(1), (vocab,))
  expected = np.asarray(jax.nn.log_softmax(logits / temperature))
  n = 20_000
  tokens, logprobs = draw(logits, n, temperature)
  np.testing.assert_allclose(logprobs, expected[tokens], atol=2e-5)
  # Pearson's χ² over cells of at least ten expected draws; the rest is one.
  p = np.exp(expected)
  counts = np.bincount(tokens, minlength=vocab)
  big = p * n >= 10
  cells = np.append(counts[big], counts[~big].sum())
  means = np.append(p[big], p[~big].sum()) * n
  keep = means > 0
  chi2 = np.sum((cells - means)[keep] ** 2 / means[keep])
  freedom = keep.sum() - 1
  assert chi2 < freedom + 5 * np.sqrt(2 * freedom)


def test_never_draws_what_has_no_probability():
  logits = (
    jnp.full(600, -jnp.inf)
    .at[jnp.array([3, 299, 511])]
    .set(jnp.array([0.0, 1.0, -2.0]))
  )
  tokens, logprobs = draw(logits, 2000)
  assert set(tokens) == {3, 299, 511}
  assert np.isfinite(logprobs).all()


@pytest.mark.parametrize("top_p", [0.1, 0.7, 0.95])
def test_nucleus_is_the_smallest_set_with_the_mass(top_p):
  logits = jax.random.normal(jax.random.key(2), (400,)) * 2
  p = np.asarray(jax.nn.softmax(logits), np.float64)
  order = np.argsort(-p)
  size = int(np.searchsorted(np.cumsum(p[order]), top_p) + 1)
  nucleus = set(order[:size].tolist())
  kept = sampling.nucleus(jnp.asarray(p, jnp.float32)[None], jnp.float32(top_p))
  assert set(np.flatnonzero(kept[0]).tolist()) == nucleus
  tokens, logprobs = draw(logits, 4000, top_p=top_p)
  assert set(tokens.tolist()) <= nucleus
  mass = p[order[:size]].sum()
  np.testing.assert_allclose(logprobs, np.log(p[tokens] / mass), atol=1e-4)


def test_temperature_zero_is_greedy_whatever_top_p():
  logits = jax.random.normal(jax.random.key(3), (300,))
  for top_p in (1.0, 0.5):
    tokens, logprobs = draw(logits, 10, temperature=0.0, top_p=top_p)
    assert set(tokens) == {int(jnp.argmax(logits))}
    np.testing.assert_allclose(
      logprobs, jax.nn.log_softmax(logits).max(), atol=1e-5
    )


def test_a_row_depends_on_its_own_key_and_logits_only():
  logits = jax.random.normal(jax.random.key(4), (6, 300))
  keys = jax.random.split(jax.random.key(5), 6)
  knobs = dict(temperature=ONE, top_p=ONE)
  together, _ = sampling.sample(logits, keys, **knobs)
  for i in (0, 3, 5):
    alone, _ = sampling.sample(logits[i : i + 1], keys[i : i + 1], **knobs)
    assert alone[0] == together[i]
