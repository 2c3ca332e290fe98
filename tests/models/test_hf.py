"""Hugging Face folders: read, write, and what is refused."""

import json
from pathlib import Path
import shutil

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy

from dapo_jax.data.tokenizer import Tokenizer
from dapo_jax.models import hf

GOLDEN = Path(__file__).parents[1] / "golden"
FOLDERS = sorted(p.name for p in GOLDEN.glob("*_*tied"))


@pytest.fixture
def folder(tmp_path):
  """A copy of a golden folder that a test may damage."""
  return Path(shutil.copytree(GOLDEN / "llama_untied", tmp_path / "model"))


def edit_config(folder, **changes):
  path = folder / "config.json"
  raw = json.loads(path.read_text()) | changes
  raw = {key: value for key, value in raw.items() if value is not ...}
  path.write_text(json.dumps(raw))


def edit_tensors(folder, change):
  path = folder / "model.safetensors"
  tensors = safetensors.numpy.load_file(path)
  change(tensors)
  safetensors.numpy.save_file(tensors, path)


def assert_equal(a, b):
  assert jax.tree.structure(a) == jax.tree.structure(b)
  for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b)):
    assert x.dtype == y.dtype
    np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize("shard", [10**9, 20_000])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("name", FOLDERS)
def test_round_trip_keeps_every_bit(name, dtype, shard, tmp_path):
  config, params = hf.load(GOLDEN / name, dtype)
  hf.save(tmp_path, config, params, dtype, max_shard_bytes=shard)
  assert len(list(tmp_path.glob("*.safetensors"))) == 1 or shard < 10**9
  assert (tmp_path / "model.safetensors.index.json").exists() == (shard < 10**9)
  assert not list(tmp_path.glob(".*")), "a part was left behind"
  again_config, again = hf.load(tmp_path)
  assert again_config == config
  assert {x.dtype for x in jax.tree.leaves(again)} == {np.dtype(dtype)}
  assert_equal(again, params)


def test_shards_keep_to_their_size(tmp_path):
  config, params = hf.load(GOLDEN / "llama_untied")
  hf.save(tmp_path, config, params, "float32", max_shard_bytes=20_000)
  index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
  assert index["metadata"]["total_size"] == sum(
    x.nbytes for x in jax.tree.leaves(params)
  )
  for name in set(index["weight_map"].values()):
    tensors = safetensors.numpy.load_file(tmp_path / name)
    assert sum(x.nbytes for x in tensors.values()) <= 20_000


def test_a_second_save_replaces_the_first(tmp_path):
  config, params = hf.load(GOLDEN / "llama_tied")
  (tmp_path / "notes.safetensors").write_text("mine")
  for shard in (10**9, 20_000, 10**9):
    params = jax.tree.map(lambda x: x + 1, params)
    hf.save(tmp_path, config, params, "float32", max_shard_bytes=shard)
    assert_equal(hf.load(tmp_path)[1], params)
  assert sorted(p.name for p in tmp_path.iterdir()) == [
    "config.json", "model.safetensors", "notes.safetensors",
  ]  # fmt: skip


def test_jax_arrays_are_saved(tmp_path):
  config, params = hf.load(GOLDEN / "qwen3_untied")
  hf.save(tmp_path, config, jax.tree.map(jnp.asarray, params), jnp.bfloat16)
  wanted = jax.tree.map(lambda x: x.astype(ml_dtypes.bfloat16), params)
  assert_equal(hf.load(tmp_path)[1], wanted)


def test_files_carry_the_dtype_of_the_folder(tmp_path):
  config, params = hf.load(GOLDEN / "qwen2_tied")
  hf.save(tmp_path, config, params, "bfloat16")
  assert hf.load(tmp_path)[1]["embed"].dtype == ml_dtypes.bfloat16
  assert hf.load(tmp_path, np.float32)[1]["embed"].dtype == np.float32


def test_a_failed_save_leaves_the_old_weights(folder, monkeypatch):
  config, params = hf.load(folder)

  def full(*args, **options):
    raise OSError(28, "No space left on device")

  monkeypatch.setattr(safetensors.numpy, "save_file", full)
  with pytest.raises(OSError, match="No space left"):
    hf.save(folder, config, params, "bfloat16")
  assert not list(folder.glob(".*"))
  assert_equal(hf.load(folder)[1], params)


@pytest.mark.parametrize("name", FOLDERS)
def test_transformers_reads_what_is_saved(name, tmp_path):
  torch = pytest.importorskip("torch")
  transformers = pytest.importorskip("transformers")
  config, params = hf.load(GOLDEN / name)
  tokenizer = Tokenizer.characters("0123456789+=")
  hf.save(
    tmp_path, config, params, "float32",
    max_shard_bytes=20_000, tokenizer=tokenizer,
  )  # fmt: skip
  model, report = transformers.AutoModelForCausalLM.from_pretrained(
    tmp_path, output_loading_info=True
  )
  assert not report["missing_keys"] and not report["unexpected_keys"]
  assert model.dtype == torch.float32
  assert model.config.eos_token_id in (1, [1])
  golden = np.load(GOLDEN / name / "logits.npz")
  with torch.no_grad():
    logits = model(torch.tensor(golden["tokens"])).logits.numpy()
  np.testing.assert_allclose(logits, golden["logits"], atol=1e-5)
  theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
  assert theirs.encode("12+3=") == tokenizer.encode("12+3=")
  assert theirs.eos_token_id == 1 and theirs.pad_token_id == 0


def test_config_of_transformers_4(folder):
  wanted = hf.read_config(folder)
  edit_config(
    folder, rope_parameters=..., rope_theta=500.0, rope_scaling=None,
    dtype=..., torch_dtype="float32",
  )  # fmt: skip
  assert hf.read_config(folder) == wanted


def test_defaults_of_keys_that_are_left_out(folder):
  edit_config(
    folder, rope_parameters=..., head_dim=..., num_key_value_heads=...,
    rms_norm_eps=..., tie_word_embeddings=...,
  )  # fmt: skip
  config = hf.read_config(folder)
  assert config.rope_theta == 1e4
  assert (config.head_width, config.num_kv_heads) == (5, 6)
  assert config.norm_eps == 1e-6 and not config.tied_head


def test_a_window_that_no_layer_uses_is_fine(folder):
  edit_config(
    folder, model_type="qwen2", use_sliding_window=False, sliding_window=32768,
    max_window_layers=0,
  )  # fmt: skip
  assert hf.read_config(folder).qkv_bias


@pytest.mark.parametrize(
  ("change", "named"),
  [
    ({"model_type": "mistral"}, "model_type 'mistral'"),
    ({"model_type": ...}, "model_type None"),
    ({"hidden_size": ...}, "hidden_size is missing"),
    ({"rope_scaling": {"rope_type": "yarn", "factor": 4}}, "rope_scaling"),
    ({"rope_scaling": {"type": "linear", "factor": 2}}, "rope_scaling"),
    ({"rope_parameters": {"rope_type": "llama3"}}, "rope_parameters"),
    ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
    ({"attention_bias": True}, "attention_bias"),
    ({"mlp_bias": True}, "mlp_bias"),
    ({"hidden_act": "gelu"}, "hidden_act"),
    ({"quantization_config": {"bits": 4}}, "quantization_config"),
    ({"layer_types": ["sliding_attention"] * 2}, "layer_types"),
    (
      {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1},
      "use_sliding_window",
    ),
  ],
  ids=lambda x: x if isinstance(x, str) else "",
)
def test_what_the_decoder_lacks_is_refused(folder, change, named):
  edit_config(folder, **change)
  with pytest.raises(ValueError, match=named) as caught:
    hf.load(folder)
  assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_missing_file_names_the_remedy(folder, name):
  (folder / name).unlink()
  with pytest.raises(FileNotFoundError, match=name) as caught:
    hf.load(folder)
  assert f"hf download <org/name> --local-dir {folder}" in str(caught.value)
  assert "\n" not in str(caught.value)


def test_a_missing_shard_is_named(tmp_path):
  config, params = hf.load(GOLDEN / "llama_tied")
  hf.save(tmp_path, config, params, "float32", max_shard_bytes=20_000)
  shard = sorted(tmp_path.glob("model-*.safetensors"))[1]
  shard.unlink()
  with pytest.raises(FileNotFoundError, match=shard.name):
    hf.load(tmp_path)


def test_damaged_files_are_named(folder):
  weights = folder / "model.safetensors"
  weights.write_bytes(weights.read_bytes()[:-100])
  with pytest.raises(ValueError, match="not a whole safetensors file"):
    hf.load(folder)
  (folder / "config.json").write_text("{")
  with pytest.raises(ValueError, match="config.json: not JSON"):
    hf.load(folder)


NAME = "model.layers.1.mlp.up_proj.weight"


@pytest.mark.parametrize(
  ("change", "message"),
  [
    (lambda t: t.pop(NAME), f"{NAME} is missing"),
    (lambda t: t.pop("lm_head.weight"), "lm_head.weight is missing"),
    (lambda t: t.update({NAME: t[NAME].T}), r"shape \(30, 44\), wanted"),
    (lambda t: t.update(extra=t[NAME]), "extra is not supported"),
    (lambda t: t.update({NAME: t[NAME].astype(np.int8)}), "dtype I8"),
    (lambda t: t.update({NAME: t[NAME].astype(np.float16)}), "give a dtype"),
  ],
)
def test_wrong_tensors_are_named(folder, change, message):
  edit_tensors(folder, change)
  with pytest.raises(ValueError, match=message) as caught:
    hf.load(folder)
  assert "\n" not in str(caught.value)


def test_mixed_dtypes_are_read_with_a_dtype(folder):
  half = lambda t: t.update({NAME: t[NAME].astype(np.float16)})
  edit_tensors(folder, half)
  assert hf.load(folder, np.float32)[1]["layers"]["w_up"].dtype == np.float32


def test_old_buffers_are_skipped(folder):
  wanted = hf.load(folder)[1]
  name = "model.layers.0.self_attn.rotary_emb.inv_freq"
  edit_tensors(folder, lambda t: t.update({name: np.ones(4, np.float32)}))
  assert_equal(hf.load(folder)[1], wanted)


def test_a_tied_head_may_be_stored_twice(folder):
  edit_config(folder, tie_word_embeddings=True)
  with pytest.raises(ValueError, match=r"lm_head.weight differs"):
    hf.load(folder)
  both = lambda t: t.update({"lm_head.weight": t["model.embed_tokens.weight"]})
  edit_tensors(folder, both)
  config, params = hf.load(folder)
  assert config.tied_head and "head" not in params


def test_what_cannot_be_saved_is_refused(tmp_path):
  config, params = hf.load(GOLDEN / "qwen2_tied")
  with pytest.raises(ValueError, match="float64"):
    hf.save(tmp_path / "a", config, params, np.float64)
  both = type(config)(**{**vars(config), "qk_norm": True})
  with pytest.raises(ValueError, match="qk_norm"):
    hf.save(tmp_path / "a", both, params, "float32")
  assert not (tmp_path / "a").exists()
