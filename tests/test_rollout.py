"""Sampling: prompts held once, requests independent, ends where it should."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import small

from dapo_jax import packing, rollout, sharding, step
from dapo_jax.models import transformer

NEVER = (-1,)
ONE = jnp.float32(1.0)


def prompts(seed=0):
  b = small.batch(seed)
  return b["prompt_tokens"], b["prompt_len"]


@functools.cache
def program(group_size=small.G, limit=small.T, eos_ids=NEVER):
  return jax.jit(
    functools.partial(
      rollout.generate, model=small.MODEL, group_size=group_size,
      max_response_len=limit, eos_ids=eos_ids,
    )
  )  # fmt: skip


def generate(
  tokens, lengths, uid, *, temperature=ONE, top_p=ONE, first=0, **knobs
):
  size = knobs.get("group_size", small.G)
  keys = rollout.request_keys(jax.random.key(3), jnp.asarray(uid), first, size)
  return jax.device_get(
    program(**knobs)(
      small.params(), tokens, lengths, keys, jnp.float32(temperature),
      jnp.float32(top_p),
    )
  )  # fmt: skip


def score(tokens, lengths, out, share=True):
  slots = packing.pack(
    tokens, lengths, out.tokens, out.response_len, row_len=40, capacity=12,
    share_prompts=share,
  )  # fmt: skip
  rows = packing.microbatches(slots.rows, 12)
  logprobs_of = lambda params, rows: small.forward(params, rows)[0]
  logprobs = jax.jit(functools.partial(step.score, forward=logprobs_of))(
    small.params(), rows, np.int32(1)
  )
  return packing.from_rows(
    np.asarray(logprobs)[0], out.response_len, out.tokens.shape[1], slots
  )


@pytest.mark.parametrize("share", [True, False])
def test_sampler_and_scorer_agree(share):
  tokens, lengths = prompts()
  out = generate(tokens, lengths, np.arange(4), eos_ids=(2, 5))
  np.testing.assert_allclose(
    out.rollout_logprobs, score(tokens, lengths, out, share), atol=1e-5
  )


def test_greedy_is_the_argmax_of_the_full_forward():
  tokens, lengths = prompts()
  out = generate(tokens, lengths, np.arange(4), temperature=0.0)
  length = small.LP + small.T
  causal = jnp.tril(jnp.ones((length, length), bool))[None]

  @jax.jit
  def logits(row):
    hidden, _ = small.MODEL.apply(
      {"params": small.params()}, row[None], jnp.arange(length)[None],
      lambda q, k, v, cache, layer: (
        jax.nn.dot_product_attention(q, k, v, mask=causal[:, None]), cache),
    )  # fmt: skip
    return hidden[0] @ transformer.head(small.params()).T

  for i in (0, 5, 11):
    p = i // small.G
    row = np.zeros(length, np.int32)
    row[: lengths[p]] = tokens[p, : lengths[p]]
    for t in range(small.T):
      n = lengths[p] + t
      best = int(jnp.argmax(logits(row)[n - 1]))
      assert out.tokens[i, t] == best
      row[n] = best


def test_a_response_depends_on_its_own_request_only():
  tokens, lengths = prompts()
  knobs = dict(eos_ids=(2, 5))
  whole = generate(tokens, lengths, np.arange(4), **knobs)
  # Another order of prompts.
  order = np.array([3, 1, 0, 2])
  moved = generate(tokens[order], lengths[order], order, **knobs)
  rows = (order[:, None] * small.G + np.arange(small.G)).reshape(-1)
  np.testing.assert_array_equal(moved.tokens, whole.tokens[rows])
  # A smaller batch, and a smaller group.
  part = generate(tokens[2:3], lengths[2:3], [2], **knobs)
  np.testing.assert_array_equal(part.tokens, whole.tokens[6:9])
  one = generate(tokens, lengths, np.arange(4), group_size=1, first=2, **knobs)
  np.testing.assert_array_equal(one.tokens, whole.tokens[2::3])


def test_samples_of_a_group_differ_and_so_do_prompts_of_one_text():
  tokens, lengths = prompts()
  tokens, lengths = np.repeat(tokens[:1], 4, 0), np.repeat(lengths[:1], 4)
  out = generate(tokens, lengths, np.arange(4))
  assert len({tuple(t) for t in out.tokens}) == 12


def test_padding_behind_a_prompt_is_never_read():
  tokens, lengths = prompts()
  dirty = np.where(np.arange(small.LP) < lengths[:, None], tokens, 19)
  knobs = dict(eos_ids=(2, 5))
  first = generate(tokens, lengths, np.arange(4), **knobs)
  second = generate(dirty.astype(np.int32), lengths, np.arange(4), **knobs)
  for a, b in zip(first, second):
    np.testing.assert_array_equal(a, b)


def test_an_end_of_sequence_token_inside_the_prompt_is_text():
  # SmolLM2: the id of padding is the id of the end of sequence, and stands
  # inside every prompt. Mask by length, never by value.
  tokens, lengths = prompts()
  tokens[:, 0] = 2
  out = generate(tokens, lengths, np.arange(4), eos_ids=(2,))
  np.testing.assert_allclose(
    out.rollout_logprobs, score(tokens, lengths, out), atol=1e-5
  )
  assert (out.response_len > 1).any()


def first_tokens():
  tokens, lengths = prompts()
  return set(generate(tokens, lengths, np.arange(4)).tokens[:, 0].tolist())


def test_end_of_sequence_at_once():
  tokens, lengths = prompts()
  out = generate(
    tokens, lengths, np.arange(4), eos_ids=tuple(sorted(first_tokens()))
  )
  np.testing.assert_array_equal(out.response_len, 1)
  assert not out.is_truncated.any()
  np.testing.assert_array_equal(out.response_mask.sum(1), 1)
  np.testing.assert_array_equal(out.tokens[:, 1:], 0)
  np.testing.assert_array_equal(out.rollout_logprobs[:, 1:], 0)


def test_never_an_end_of_sequence():
  tokens, lengths = prompts()
  out = generate(tokens, lengths, np.arange(4))
  np.testing.assert_array_equal(out.response_len, small.T)
  assert out.is_truncated.all() and out.response_mask.all()


def test_end_of_sequence_at_the_limit_is_not_truncation():
  tokens, lengths = prompts()
  free = generate(tokens, lengths, np.arange(4))
  # An end token that stands in the last place of a response, not before.
  for row in free.tokens:
    eos = int(row[-1])
    if eos not in row[:-1]:
      break
  else:
    pytest.fail("no response with a fresh last token")
  out = generate(tokens, lengths, np.arange(4), eos_ids=(eos,))
  same = (free.tokens == row).all(1)
  assert (out.response_len[same] == small.T).all()
  assert not out.is_truncated[same].any()


def test_a_limit_of_one_token():
  tokens, lengths = prompts()
  out = generate(tokens, lengths, np.arange(4), limit=1)
  np.testing.assert_array_equal(out.response_len, 1)
  assert set(out.tokens[:, 0].tolist()) == first_tokens()


@pytest.mark.parametrize("shape", [(4, 1, 2), (2, 2, 2), (1, 4, 2)])
def test_eight_devices_sample_the_same(shape):
  tokens, lengths = prompts()
  whole = generate(tokens, lengths, np.arange(4), eos_ids=(2, 5))
  mesh = sharding.make_mesh(dict(zip(sharding.AXES, shape)))
  boxed = jax.eval_shape(
    lambda: transformer.init_params(small.CONFIG, jax.random.key(0))
  )
  layout = sharding.of_params(mesh, boxed, "rollout")
  by_row, everywhere = sharding.rows(mesh), sharding.replicated(mesh)
  keys = rollout.request_keys(jax.random.key(3), jnp.arange(4), 0, small.G)
  on_mesh = jax.jit(
    functools.partial(
      rollout.generate, model=small.MODEL, group_size=small.G,
      max_response_len=small.T, eos_ids=(2, 5),
      constrain=functools.partial(sharding.constrain, mesh),
    ),
    in_shardings=(layout, *[by_row] * 3, everywhere, everywhere),
    out_shardings=everywhere,
  )  # fmt: skip
  weights = jax.device_put(small.params(), layout)
  out = on_mesh(weights, tokens, lengths, keys, ONE, ONE)
  np.testing.assert_array_equal(out.tokens, whole.tokens)
  np.testing.assert_allclose(
    out.rollout_logprobs, whole.rollout_logprobs, atol=1e-5
  )
