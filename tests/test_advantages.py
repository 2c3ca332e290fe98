"""Advantages against their closed forms and plain float64 loops."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import small

from dapo_jax import advantages

batch_normalized = jax.jit(advantages.batch_normalized, static_argnames="gamma")


def rewards(correct, group_size=16):
  """One group with the first `correct` responses right."""
  return jnp.where(jnp.arange(group_size) < correct, 1.0, -1.0)[None]


@pytest.mark.parametrize(
  "correct, right, wrong",
  [(1, 3.75, -0.25), (8, 0.968, -0.968), (15, 0.25, -3.75)],
)
def test_closed_form_of_the_published_recipe(correct, right, wrong):
  out = advantages.group_normalized(rewards(correct), std_ddof=1)[0]
  np.testing.assert_allclose(out[0], right, atol=1e-3)
  np.testing.assert_allclose(out[-1], wrong, atol=1e-3)


@pytest.mark.parametrize("correct", range(1, 16))
def test_population_std_closed_form(correct):
  # mean 2p - 1, std 2 √(p (1 - p)): A = √((1 - p) / p) and -√(p / (1 - p)).
  p = correct / 16
  out = advantages.group_normalized(rewards(correct))[0]
  np.testing.assert_allclose(out[0], np.sqrt((1 - p) / p), rtol=1e-5)
  np.testing.assert_allclose(out[-1], -np.sqrt(p / (1 - p)), rtol=1e-5)


def test_equal_rewards_have_no_advantage():
  for ddof in (0, 1):
    out = advantages.group_normalized(jnp.full((3, 4), -1.0), std_ddof=ddof)
    np.testing.assert_array_equal(out, np.zeros((3, 4)))


def test_a_group_of_one_has_advantage_zero():
  for ddof in (0, 1):
    for estimator in advantages.OF_GROUPS.values():
      out = estimator(jnp.array([[1.0], [-1.0]]), std_ddof=ddof)
      np.testing.assert_array_equal(out, np.zeros((2, 1)))


def test_centered_has_no_std():
  out = advantages.group_centered(jnp.array([[1.0, -1.0, -1.0, -1.0]]))
  np.testing.assert_allclose(out, [[1.5, -0.5, -0.5, -0.5]])


def test_groups_do_not_touch_each_other():
  both = jnp.concatenate([rewards(3), rewards(12)])
  for estimator in advantages.OF_GROUPS.values():
    np.testing.assert_array_equal(estimator(both)[1:], estimator(rewards(12)))


def test_leave_one_out_subtracts_the_mean_of_the_others():
  out = advantages.leave_one_out(jnp.array([[1.0, -1.0, -1.0, -1.0]]))
  np.testing.assert_allclose(out, [[2, -2 / 3, -2 / 3, -2 / 3]], rtol=1e-6)
  drawn = np.random.default_rng(0).normal(size=(3, 5)).astype(np.float32)
  expected = np.zeros((3, 5))
  for p in range(3):
    for i in range(5):
      others = [float(drawn[p, j]) for j in range(5) if j != i]
      expected[p, i] = drawn[p, i] - sum(others) / 4
  np.testing.assert_allclose(
    advantages.leave_one_out(jnp.asarray(drawn)), expected, atol=1e-6
  )


def on_device(*arrays):
  return tuple(map(jnp.asarray, arrays))


def of_response(rewards, values, gamma, lam):
  """A_t = δ_t + γλ A_{t+1} over one response, in float64."""
  lam = np.broadcast_to(np.asarray(lam, np.float64), len(rewards))
  out, next_advantage, next_value = np.zeros(len(rewards)), 0.0, 0.0
  for t in reversed(range(len(rewards))):
    delta = float(rewards[t]) + gamma * next_value - float(values[t])
    out[t] = delta + gamma * float(lam[t]) * next_advantage
    next_advantage, next_value = out[t], float(values[t])
  return out


@pytest.mark.parametrize("gamma", [1.0, 0.99])
def test_twenty_thousand_tokens_are_exact_to_a_millionth(gamma):
  length, lam = 20480, np.array([[0.95], [1.0], [0.99902]], np.float32)
  rng = np.random.default_rng(0)
  values = rng.normal(size=(3, length)).astype(np.float32)
  rewards = np.zeros((3, length), np.float32)
  rewards[:, -1] = 1.0, -1.0, -1.0
  batch = on_device(rewards, values, np.ones((3, length), bool))

  @jax.jit
  def both(lam):
    knobs = dict(gamma=gamma, lam=lam)
    return (
      advantages.gae(*batch, **knobs),
      advantages.lambda_returns(*batch, **knobs),
    )

  out, returns = both(jnp.asarray(lam))
  for i in range(3):
    expected = of_response(rewards[i], values[i], gamma, lam[i])
    np.testing.assert_allclose(out[i], expected, rtol=0, atol=1e-6)
    expected += values[i]
    np.testing.assert_allclose(returns[i], expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
  "gamma, expected, returns",
  [
    # δ = -0.25, 0.5, 0.25
    (1.0, [0.0625, 0.625, 0.25], [0.5625, 0.875, 1.0]),
    # δ = -0.375, 0.125, 0.25
    (0.5, [-0.328125, 0.1875, 0.25], [0.171875, 0.4375, 1.0]),
  ],
)
def test_three_tokens_by_hand(gamma, expected, returns):
  batch = (
    jnp.array([[0.0, 0.0, 1.0]]), jnp.array([[0.5, 0.25, 0.75]]),
    jnp.ones((1, 3), bool),
  )  # fmt: skip
  out = advantages.gae(*batch, gamma=gamma, lam=0.5)
  np.testing.assert_array_equal(out, [expected])
  out = advantages.lambda_returns(*batch, gamma=gamma, lam=0.5)
  np.testing.assert_array_equal(out, [returns])


# Rows of masks: a plain response, padding on either side, holes, one token at
# an end, nothing at all.
MASKS = np.array([
  [1, 1, 1, 1, 1, 1, 1, 1],
  [1, 1, 1, 1, 1, 0, 0, 0],
  [0, 0, 0, 1, 1, 1, 1, 1],
  [0, 1, 1, 0, 0, 1, 0, 0],
  [1, 0, 1, 0, 1, 0, 1, 0],
  [0, 0, 0, 0, 0, 0, 0, 1],
  [1, 0, 0, 0, 0, 0, 0, 0],
  [0, 0, 0, 0, 0, 0, 0, 0],
], bool)  # fmt: skip


def tokens(mask, seed=1):
  """Rewards and values of each token, NaN outside the mask."""
  rng = np.random.default_rng(seed)
  draw = lambda: rng.normal(size=mask.shape).astype(np.float32)
  return tuple(np.where(mask, draw(), np.float32("nan")) for _ in range(2))


def test_lam_one_is_the_reward_less_the_value():
  _, values = tokens(MASKS)
  last = MASKS & (np.cumsum(MASKS[:, ::-1], 1)[:, ::-1] == 1)
  rewards = np.where(last, np.float32(0.75), 0)
  out = advantages.gae(
    *on_device(rewards, values, MASKS), gamma=1.0, lam=1.0
  )  # fmt: skip
  np.testing.assert_array_equal(out, np.where(MASKS, 0.75 - values, 0))


def test_lam_zero_is_the_error_of_one_step():
  rewards, values = tokens(MASKS)
  out = advantages.gae(*on_device(rewards, values, MASKS), gamma=0.9, lam=0.0)
  for b, mask in enumerate(MASKS):
    r, v = rewards[b, mask], values[b, mask]
    delta = r + 0.9 * np.append(v[1:], 0)[: len(v)] - v
    np.testing.assert_allclose(out[b, mask], delta, rtol=0, atol=1e-6)


@pytest.mark.parametrize("lam_of", ["response", "token"])
@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_positions_outside_the_mask_change_nothing(lam_of, wrap):
  rewards, values = tokens(MASKS)
  width = 1 if lam_of == "response" else MASKS.shape[1]
  lam = np.random.default_rng(2).uniform(size=(len(MASKS), width))
  lam = lam.astype(np.float32)

  def both(rewards, values, mask, lam):
    batch = rewards, values, mask
    return (
      advantages.gae(*batch, gamma=0.9, lam=lam),
      advantages.lambda_returns(*batch, gamma=0.9, lam=lam),
    )

  out, returns = wrap(both)(*on_device(rewards, values, MASKS, lam))
  for b, mask in enumerate(MASKS):
    of_tokens = np.broadcast_to(lam[b], mask.shape)[mask]
    expected = of_response(rewards[b, mask], values[b, mask], 0.9, of_tokens)
    np.testing.assert_allclose(out[b, mask], expected, rtol=0, atol=1e-6)
    expected += values[b, mask]
    np.testing.assert_allclose(returns[b, mask], expected, rtol=0, atol=1e-6)
  np.testing.assert_array_equal(np.asarray(out)[~MASKS], 0)
  np.testing.assert_array_equal(np.asarray(returns)[~MASKS], 0)


def test_packed_responses_are_as_if_alone():
  responses, segments = small.RESPONSES, small.SEGMENTS
  mask = responses > 0
  rewards, values = tokens(mask)
  lam = (0.1 + responses / 7).astype(np.float32)
  packed = rewards, values, mask, lam, segments
  # The same, one response a row.
  numbers = [(row, n) for row in range(3) for n in range(1, 7)]
  alone = np.array([responses[row] == n for row, n in numbers])
  row = [row for row, _ in numbers]
  unpacked = rewards[row], values[row], alone, lam[row]

  @jax.jit
  def both(rewards, values, mask, lam, segments=None):
    batch = rewards, values, mask
    knobs = dict(gamma=0.9, lam=lam, segments=segments)
    return (
      advantages.gae(*batch, **knobs),
      advantages.lambda_returns(*batch, **knobs),
    )

  for out, expected in zip(
    both(*on_device(*packed)), both(*on_device(*unpacked))
  ):
    for row in range(3):
      total = np.asarray(expected)[row * 6 : row * 6 + 6].sum(0)
      np.testing.assert_allclose(out[row], total, rtol=0, atol=1e-6)
  out, _ = both(*on_device(*packed))
  for (row, _), at in zip(numbers, alone):
    by_hand = of_response(rewards[row, at], values[row, at], 0.9, lam[row, at])
    np.testing.assert_allclose(out[row, at], by_hand, rtol=0, atol=1e-6)


def test_no_token_has_no_advantage():
  nothing = jnp.full((2, 5), jnp.nan)
  mask = jnp.zeros((2, 5), bool)
  for of_tokens in (advantages.gae, advantages.lambda_returns):
    out = of_tokens(nothing, nothing, mask, gamma=1.0, lam=0.95)
    np.testing.assert_array_equal(out, np.zeros((2, 5)))
  out = batch_normalized(nothing, mask, gamma=1.0)
  np.testing.assert_array_equal(out, np.zeros((2, 5)))


def test_lam_may_be_one_number_known_only_at_run_time():
  rewards, values = tokens(MASKS[:1])
  batch = on_device(rewards, values, MASKS[:1])
  out = jax.jit(
    lambda lam: advantages.lambda_returns(*batch, gamma=0.9, lam=lam)
  )(jnp.float32(0.5))
  expected = of_response(rewards[0], values[0], 0.9, 0.5) + values[0]
  np.testing.assert_allclose(out[0], expected, rtol=0, atol=1e-6)


def test_length_adaptive_lam_of_a_response():
  lengths = jnp.array([1000, 20, 10, 0, 20480, 100])
  out = advantages.length_adaptive_lam(lengths, alpha=0.05)
  expected = [0.98, 0.0, 0.0, 0.0, 0.99902, 0.8]
  np.testing.assert_allclose(out, expected, rtol=0, atol=1e-5)
  assert out[1] >= 0


def test_batch_normalized_by_hand():
  # Tokens 1, -1, -1, -1: mean -1/2, variance 3/4.
  mask = jnp.array([[True, False, False], [True, True, True]])
  rewards = jnp.array([[1.0, jnp.nan, jnp.nan], [0.0, 0.0, -1.0]])
  out = batch_normalized(rewards, mask, gamma=1.0)
  a, b = 1.5 / np.sqrt(0.75), -0.5 / np.sqrt(0.75)
  np.testing.assert_allclose(out, [[a, 0, 0], [b, b, b]], rtol=1e-6)


@pytest.mark.parametrize("gamma", [1.0, 0.9])
def test_batch_normalized_has_mean_zero_and_std_one_over_tokens(gamma):
  rewards, _ = tokens(MASKS)
  out = batch_normalized(*on_device(rewards, MASKS), gamma=gamma)
  out = np.asarray(out, np.float64)
  np.testing.assert_allclose(out[MASKS].mean(), 0, atol=1e-6)
  np.testing.assert_allclose(out[MASKS].std(), 1, rtol=1e-6)
  # Each row's tokens are those of the returns to go, shifted and scaled alike.
  returns = np.concatenate([
    of_response(r[m], 0 * r[m], gamma, 1.0) for r, m in zip(rewards, MASKS)
  ])  # fmt: skip
  expected = (returns - returns.mean()) / returns.std()
  np.testing.assert_allclose(out[MASKS], expected, atol=1e-5)


def test_batch_normalized_ignores_padding_and_empty_responses():
  rewards, _ = tokens(MASKS)
  wide = lambda x, fill: np.pad(x, ((2, 3), (1, 4)), constant_values=fill)
  out = batch_normalized(*on_device(rewards, MASKS), gamma=1.0)
  wider = batch_normalized(
    *on_device(wide(rewards, np.nan), wide(MASKS, False)), gamma=1.0
  )
  np.testing.assert_allclose(wider, wide(out, 0), rtol=0, atol=1e-6)


P, G, T = 3, 4, 6
KNOBS = dict(max_response_len=T, gamma=0.9, lam_actor=0.7)
LAM_CRITIC = 0.8
KL = {
  "k1": lambda d: -d,
  "k2": lambda d: d * d / 2,
  "k3": lambda d: np.exp(d) - d - 1,
}


def batch():
  """Arguments of `estimate` in order; NaN wherever no token stands."""
  rng = np.random.default_rng(3)
  lengths = rng.integers(1, T + 1, (P, G))
  lengths[0, 0], lengths[1, 2] = T, 1
  mask = np.arange(T) < lengths[..., None]
  draw = lambda scale: np.where(mask, rng.normal(0, scale, mask.shape), np.nan)
  old = draw(0.4) - 1
  return dict(
    rewards=rng.normal(size=(P, G)).astype(np.float32),
    response_len=lengths.astype(np.int32),
    old_logprobs=old.astype(np.float32),
    rollout_logprobs=(old + draw(0.3)).astype(np.float32),
    ref_logprobs=(old + draw(0.5)).astype(np.float32),
    values=draw(1.0).astype(np.float32),
    lam_critic=np.float32(LAM_CRITIC),
  )


def estimate(b, **knobs):
  b = {k: None if x is None else jnp.asarray(x) for k, x in b.items()}
  return advantages.estimate(**b, **KNOBS | knobs)


def estimate_by_hand(b, advantage, kl_coef, kl_estimator="k3", lam_alpha=0.0):
  """Advantages and returns of each response's tokens, in float64 loops."""
  token_rewards, values = {}, {}
  for p in range(P):
    for g in range(G):
      n = b["response_len"][p, g]
      of = lambda name: b[name][p, g, :n].astype(np.float64)
      kl = KL[kl_estimator](of("ref_logprobs") - of("old_logprobs"))
      token_rewards[p, g] = -kl_coef * kl
      token_rewards[p, g][-1] += b["rewards"][p, g]
      values[p, g] = of("values")
  total = np.array([
    [token_rewards[p, g].sum() for g in range(G)] for p in range(P)
  ])  # fmt: skip
  out, returns = {}, {}
  for i, r in token_rewards.items():
    group, own = total[i[0]], total[i]
    if advantage == "group_normalized":
      a = np.full(len(r), (own - group.mean()) / group.std())
    elif advantage == "group_centered":
      a = np.full(len(r), own - group.mean())
    elif advantage == "leave_one_out":
      a = np.full(len(r), own - (group.sum() - own) / (G - 1))
    elif advantage == "batch_normalized":
      a = of_response(r, 0 * r, KNOBS["gamma"], 1.0)
    else:
      lam = KNOBS["lam_actor"]
      if lam_alpha:
        lam = max(0.0, 1 - 1 / (lam_alpha * len(r)))
      a = of_response(r, values[i], KNOBS["gamma"], lam)
      returns[i] = values[i] + of_response(
        r, values[i], KNOBS["gamma"], LAM_CRITIC
      )
    out[i] = a
  if advantage == "batch_normalized":
    every = np.concatenate(list(out.values()))
    out = {i: (a - every.mean()) / every.std() for i, a in out.items()}
  return out, returns


def check_tokens(found, expected, **tolerance):
  found = np.broadcast_to(found, (P, G, T))
  for (p, g), a in expected.items():
    np.testing.assert_allclose(found[p, g, : len(a)], a, **tolerance)


@pytest.mark.parametrize("kl_coef", [0.0, 0.3])
@pytest.mark.parametrize("advantage", advantages.ESTIMATORS)
def test_estimate_is_the_sum_of_its_parts(advantage, kl_coef):
  b = batch()
  expected, expected_returns = estimate_by_hand(b, advantage, kl_coef)
  if not kl_coef:
    b["ref_logprobs"] = None
  if advantage != "gae":
    b["values"] = None
  out, returns, metrics = estimate(b, advantage=advantage, kl_coef=kl_coef)
  assert out.shape[-1] == (1 if advantage in advantages.OF_GROUPS else T)
  check_tokens(out, expected, rtol=1e-4, atol=1e-5)
  assert (returns is None) == (advantage != "gae")
  if returns is not None:
    check_tokens(returns, expected_returns, rtol=0, atol=1e-5)
  assert set(metrics) == ({"kl"} if kl_coef else set())


@pytest.mark.parametrize("kl_estimator", sorted(KL))
def test_the_kl_in_the_reward_is_that_of_the_estimator(kl_estimator):
  b = batch()
  knobs = dict(kl_coef=0.3, kl_estimator=kl_estimator)
  expected, _ = estimate_by_hand(b, "group_centered", **knobs)
  out, _, metrics = estimate(b, advantage="group_centered", **knobs)
  check_tokens(out, expected, rtol=0, atol=1e-5)
  mask = np.arange(T) < b["response_len"][..., None]
  kl = KL[kl_estimator]((b["ref_logprobs"] - b["old_logprobs"])[mask])
  np.testing.assert_allclose(metrics["kl"].value(), kl.mean(), rtol=1e-5)


def test_a_group_estimator_sees_the_reward_less_the_kl_of_all_tokens():
  # KL 1/2 and 1/4 + 5/4: rewards 1/2 and -1/2.
  out, _, _ = advantages.estimate(
    jnp.ones((1, 2)), jnp.array([[1, 2]]),
    jnp.array([[[-1.0, 9.0], [-1.0, -1.0]]]), None,
    jnp.array([[[-1.5, 7.0], [-1.25, -2.25]]]), None, jnp.float32(1.0),
    advantage="group_centered", max_response_len=2, kl_coef=1.0,
    kl_estimator="k1",
  )  # fmt: skip
  np.testing.assert_array_equal(out, [[[0.5], [-0.5]]])


@pytest.mark.parametrize("advantage", advantages.ESTIMATORS)
def test_empty_groups_behind_change_nothing(advantage):
  b = batch()
  knobs = dict(
    advantage=advantage, kl_coef=0.3, tis_limit=1.1, tis_mode="truncate"
  )
  fill = dict(rewards=7.0, response_len=0)
  longer = {
    k: np.concatenate([x, np.full((2, *x.shape[1:]), fill.get(k, np.nan))])
    .astype(x.dtype) if x.ndim else x
    for k, x in b.items()
  }  # fmt: skip
  found, expected = estimate(longer, **knobs), estimate(b, **knobs)
  for a, e in zip(found[:2], expected[:2]):
    if e is not None:
      np.testing.assert_allclose(a[:P], e, rtol=1e-5, atol=1e-6)
      np.testing.assert_array_equal(a[P:], np.zeros_like(a[P:]))
  assert set(found[2]) == {"kl", "tis_weight_mean"}
  for name, metric in expected[2].items():
    np.testing.assert_allclose(
      found[2][name].value(), metric.value(), rtol=1e-6
    )


def of_three_tokens(lam_critic, **knobs):
  return advantages.estimate(
    jnp.ones((1, 1)), jnp.array([[3]]), None, None, None,
    jnp.array([[[0.5, 0.25, 0.75, jnp.nan]]]), jnp.float32(lam_critic),
    advantage="gae", max_response_len=4, **knobs,
  )  # fmt: skip


@pytest.mark.parametrize(
  "lam_critic, targets",
  [(1.0, [1, 1, 1, 0]), (0.5, [0.5625, 0.875, 1, 0])],
)
def test_actor_and_critic_have_a_lam_each(lam_critic, targets):
  out, returns, _ = of_three_tokens(lam_critic, lam_actor=0.5)
  np.testing.assert_array_equal(out, [[[0.0625, 0.625, 0.25, 0]]])
  np.testing.assert_array_equal(returns, [[targets]])
  # λ = 1 - 1 / (2/3 * 3) is the same 0.5 out of the length.
  out, returns, _ = of_three_tokens(lam_critic, lam_alpha=2 / 3)
  np.testing.assert_allclose(out, [[[0.0625, 0.625, 0.25, 0]]], rtol=1e-6)
  np.testing.assert_array_equal(returns, [[targets]])


def test_the_length_adaptive_lam_is_of_each_response():
  b = batch()
  knobs = dict(kl_coef=0.3, lam_alpha=0.4)
  expected, expected_returns = estimate_by_hand(b, "gae", **knobs)
  out, returns, _ = estimate(b, advantage="gae", **knobs)
  check_tokens(out, expected, rtol=0, atol=1e-5)
  check_tokens(returns, expected_returns, rtol=0, atol=1e-5)


@pytest.mark.parametrize("tis_mode", ["truncate", "mask"])
@pytest.mark.parametrize("advantage", advantages.ESTIMATORS)
def test_the_samplers_correction_multiplies_the_advantages(advantage, tis_mode):
  b = batch()
  limit = 1.25
  plain, plain_returns, _ = estimate(b, advantage=advantage, kl_coef=0.3)
  out, returns, metrics = estimate(
    b, advantage=advantage, kl_coef=0.3, tis_limit=limit, tis_mode=tis_mode
  )
  mask = np.arange(T) < b["response_len"][..., None]
  weight = np.exp(b["old_logprobs"] - b["rollout_logprobs"])
  kept = weight <= limit
  if tis_mode == "mask":
    kept &= weight >= 1 / limit
  weight = np.where(kept, weight, limit if tis_mode == "truncate" else 0)
  assert (~kept & mask).any() and (kept & mask).any()
  np.testing.assert_allclose(
    np.asarray(out)[mask], (plain * weight)[mask], rtol=1e-5
  )
  assert out.shape == (P, G, T)
  np.testing.assert_allclose(
    metrics["tis_weight_mean"].value(), weight[mask].mean(), rtol=1e-5
  )
  if returns is not None:
    np.testing.assert_array_equal(returns, plain_returns)


def test_estimate_compiles():
  b = jax.tree.map(jnp.asarray, batch())
  knobs = KNOBS | dict(advantage="gae", kl_coef=0.3, tis_limit=1.1)
  run = functools.partial(advantages.estimate, **knobs)
  expected, found = run(**b), jax.jit(run)(**b)
  jax.tree.map(
    functools.partial(np.testing.assert_allclose, rtol=0, atol=1e-5),
    found, expected,
  )  # fmt: skip
