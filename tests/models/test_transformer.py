"""The decoder against transformers' logits, its cache, its sizes."""

from pathlib import Path

from flax import linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dapo_jax.models import attention, hf, transformer
from dapo_jax.models.variants import MODELS

GOLDEN = Path(__file__).parents[1] / "golden"
FOLDERS = sorted(p.name for p in GOLDEN.glob("*_*tied"))
# As published; a head that is the embedding counts once.
SIZES = {
  "smollm2": 134_515_008,
  "qwen0_5b": 494_032_768,
  "qwen1_5b": 1_543_714_304,
  "qwen7b": 7_615_616_512,
  "qwen32b": 32_763_876_352,
  "qwen3_0_6b": 596_049_920,
  "qwen3_8b": 8_190_735_360,
}


def full_logits(config, params, tokens, **options):
  """Logits of plain causal sequences."""
  tokens = jnp.asarray(tokens)
  mask = jnp.tril(jnp.ones((tokens.shape[1],) * 2, bool))
  mask = jnp.broadcast_to(mask, (tokens.shape[0], *mask.shape))
  positions = jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)
  model = transformer.Transformer(config, **options)
  hidden, _ = model.apply(
    {"params": params},
    tokens,
    positions,
    lambda q, k, v, cache, layer: (attention.attention(q, k, v, mask), cache),
  )
  return hidden @ transformer.head(params).T


def test_there_is_a_golden_of_every_family_tied_and_not():
  kinds = {f"{k}_{t}" for k in hf._KINDS for t in ("tied", "untied")}
  assert set(FOLDERS) == kinds


@pytest.mark.parametrize("name", FOLDERS)
def test_logits_equal_the_golden(name):
  config, params = hf.load(GOLDEN / name)
  golden = np.load(GOLDEN / name / "logits.npz")
  logits = full_logits(config, params, golden["tokens"])
  # Measured: 2.1e-05 at most, on logits of up to 7.9.
  assert np.abs(logits - golden["logits"]).max() <= 2e-4


def test_remat_changes_nothing():
  config, params = hf.load(GOLDEN / "qwen3_tied")
  tokens = np.load(GOLDEN / "qwen3_tied" / "logits.npz")["tokens"]
  plain = full_logits(config, params, tokens)
  other = full_logits(config, params, tokens, remat=True)
  np.testing.assert_allclose(other, plain, atol=1e-5)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("family", ["Llama", "Qwen2", "Qwen3"])
def test_logits_equal_transformers_live(family, tied, tmp_path):
  torch = pytest.importorskip("torch")
  transformers = pytest.importorskip("transformers")
  config = getattr(transformers, f"{family}Config")(
    vocab_size=67, hidden_size=40, intermediate_size=72, num_hidden_layers=3,
    num_attention_heads=4, num_key_value_heads=1, head_dim=12,
    max_position_embeddings=128, tie_word_embeddings=tied,
  )  # fmt: skip
  model = getattr(transformers, f"{family}ForCausalLM")(config).float().eval()
  with torch.no_grad():
    for parameter in model.parameters():
      parameter.add_(0.2 * torch.randn_like(parameter))
    tokens = torch.randint(67, (3, 50))
    wanted = model(tokens).logits.numpy()
  model.save_pretrained(tmp_path)
  ours, params = hf.load(tmp_path)
  logits = full_logits(ours, params, tokens.numpy())
  assert np.abs(logits - wanted).max() <= 2e-4


@pytest.mark.parametrize("name", ["llama_untied", "qwen2_tied", "qwen3_tied"])
def test_prefill_and_decoding_equal_the_full_forward(name):
  config, params = hf.load(GOLDEN / name)
  tokens = jnp.asarray(np.load(GOLDEN / name / "logits.npz")["tokens"][:, :20])
  rows, length = tokens.shape
  wanted = full_logits(config, params, tokens)
  model = transformer.Transformer(config)
  shape = (config.num_layers, rows, length, config.num_kv_heads)
  cache = (jnp.zeros((*shape, config.head_width)),) * 2

  @jax.jit
  def step(cache, tokens, start):
    order = start + jnp.arange(tokens.shape[1])
    mask = order[:, None] >= jnp.arange(length)[None]
    mask = jnp.broadcast_to(mask, (rows, *mask.shape))

    def attend(q, k, v, cache, layer):
      cache = tuple(
        jax.lax.dynamic_update_slice(a, x[None], (layer, 0, start, 0, 0))
        for a, x in zip(cache, (k, v))
      )
      return attention.attention(
        q, cache[0][layer], cache[1][layer], mask
      ), cache

    positions = jnp.broadcast_to(order, tokens.shape)
    hidden, cache = model.apply(
      {"params": params}, tokens, positions, attend, cache
    )
    return hidden @ transformer.head(params).T, cache

  logits, cache = step(cache, tokens[:, :7], 0)
  parts = [logits]
  for t in range(7, length):
    logits, cache = step(cache, tokens[:, t : t + 1], t)
    parts.append(logits)
  np.testing.assert_allclose(jnp.concatenate(parts, 1), wanted, atol=1e-4)


@pytest.mark.parametrize("name", MODELS)
def test_every_parameter_names_its_axes(name):
  shapes = jax.eval_shape(
    lambda key: transformer.init_params(MODELS[name], key), jax.random.key(0)
  )
  is_box = lambda x: isinstance(x, nn.Partitioned)
  for path, box in jax.tree.leaves_with_path(shapes, is_leaf=is_box):
    where = jax.tree_util.keystr(path)
    assert is_box(box), where
    assert len(box.names) == box.value.ndim and None not in box.names, where
    assert (box.names[0] == "layers") == ("layers" in where), where


@pytest.mark.parametrize("name", SIZES)
def test_parameter_counts_are_the_published_ones(name):
  config = MODELS[name]
  shapes = jax.eval_shape(
    lambda key: nn.unbox(transformer.init_params(config, key)),
    jax.random.key(0),
  )
  assert sum(x.size for x in jax.tree.leaves(shapes)) == SIZES[name]
  # The readers lay out what the decoder asks for.
  layer = {k: x.shape[1:] for k, x in shapes["layers"].items()}
  assert layer == hf.layer_shapes(config)


def test_table_of_sizes_is_complete():
  assert set(MODELS) == {"tiny", *SIZES}


def test_heads_must_share_key_heads_evenly():
  config = MODELS["tiny"]
  with pytest.raises(ValueError, match="num_kv_heads=3"):
    type(config)(**{**vars(config), "num_kv_heads": 3})
