"""Reads and writes Hugging Face folders: config.json and safetensors."""

from collections.abc import Iterator
import contextlib
import functools
import json
import math
import os
from pathlib import Path
import re
from typing import Any

import ml_dtypes
import numpy as np
import safetensors
import safetensors.numpy

from dapo_jax.models.transformer import ModelConfig

# Leaf of a layer -> its tensor `model.layers.{i}.{name}`.
_NAMES = {
  "attn_norm": "input_layernorm.weight",
  "wq": "self_attn.q_proj.weight",
  "wk": "self_attn.k_proj.weight",
  "wv": "self_attn.v_proj.weight",
  "bq": "self_attn.q_proj.bias",
  "bk": "self_attn.k_proj.bias",
  "bv": "self_attn.v_proj.bias",
  "q_norm": "self_attn.q_norm.weight",
  "k_norm": "self_attn.k_norm.weight",
  "wo": "self_attn.o_proj.weight",
  "mlp_norm": "post_attention_layernorm.weight",
  "w_gate": "mlp.gate_proj.weight",
  "w_up": "mlp.up_proj.weight",
  "w_down": "mlp.down_proj.weight",
}
_EMBED, _NORM = "model.embed_tokens.weight", "model.norm.weight"
_HEAD = "lm_head.weight"
_KINDS = ("llama", "qwen2", "qwen3")
_DTYPES = {
  "BF16": np.dtype(ml_dtypes.bfloat16),
  "F16": np.dtype(np.float16),
  "F32": np.dtype(np.float32),
}
_SINGLE, _INDEX = "model.safetensors", "model.safetensors.index.json"


def layer_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
  """Shape of each leaf of one layer."""
  c = config
  d, n, k, h = c.width, c.num_heads, c.num_kv_heads, c.head_width
  shapes = {
    "attn_norm": (d,), "mlp_norm": (d,), "wq": (d, n, h), "wk": (d, k, h),
    "wv": (d, k, h), "wo": (n, h, d), "w_gate": (d, c.mlp_width),
    "w_up": (d, c.mlp_width), "w_down": (c.mlp_width, d),
  }  # fmt: skip
  if c.qkv_bias:
    shapes |= {"bq": (n, h), "bk": (k, h), "bv": (k, h)}
  if c.qk_norm:
    shapes |= {"q_norm": (h,), "k_norm": (h,)}
  return shapes


def stored_shape(leaf: str, shape: tuple[int, ...]) -> tuple[int, ...]:
  """Shape of a leaf of a layer in a file: [outputs, inputs], heads merged."""
  if leaf[0] == "b" or leaf.endswith("norm"):
    return (math.prod(shape),)
  inputs = 2 if leaf == "wo" else 1
  return math.prod(shape[inputs:]), math.prod(shape[:inputs])


def from_stored(stored: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
  """A leaf of a layer out of its file layout."""
  return stored.T.reshape(shape)


def missing_file(folder: Path, name: str) -> FileNotFoundError:
  """The error for a file that a model folder lacks, with the remedy."""
  return FileNotFoundError(
    f"{folder} has no {name}; get the model with `hf download <org/name> "
    f"--local-dir {folder}`"
  )


def read_json(folder: Path, name: str) -> dict:
  """Reads a JSON object of a model folder."""
  path = folder / name
  if not path.is_file():
    raise missing_file(folder, name)
  try:
    found = json.loads(path.read_text(encoding="utf-8"))
  except ValueError as error:
    raise ValueError(f"{path}: not JSON ({error})") from error
  if not isinstance(found, dict):
    raise ValueError(f"{path}: not a JSON object")
  return found


def read_config(folder: str | Path) -> ModelConfig:
  """Reads the dimensions from config.json.

  Raises:
    FileNotFoundError: there is no config.json.
    ValueError: the model needs what the decoder does not have.
  """
  raw = read_json(Path(folder), "config.json")
  where = Path(folder) / "config.json"
  kind = raw.get("model_type")
  if kind not in _KINDS:
    raise ValueError(
      f"{where}: model_type {kind!r} is not supported, only {', '.join(_KINDS)}"
    )
  rope = raw.get("rope_parameters") or {}
  _refuse_unsupported(raw, rope, where)

  def value(key, default=None):
    found = default if raw.get(key) is None else raw[key]
    if found is None:
      raise ValueError(f"{where}: {key} is missing")
    return found

  width, heads = value("hidden_size"), value("num_attention_heads")
  theta = rope.get("rope_theta", raw.get("rope_theta"))
  # transformers' defaults stand for keys that a file leaves out.
  return ModelConfig(
    vocab_size=value("vocab_size"),
    num_layers=value("num_hidden_layers"),
    width=width,
    num_heads=heads,
    num_kv_heads=value("num_key_value_heads", heads),
    head_width=value("head_dim", 128 if kind == "qwen3" else width // heads),
    mlp_width=value("intermediate_size"),
    rope_theta=float(1e4 if theta is None else theta),
    norm_eps=float(value("rms_norm_eps", 1e-6)),
    tied_head=bool(value("tie_word_embeddings", False)),
    qkv_bias=kind == "qwen2",
    qk_norm=kind == "qwen3",
    max_positions=value("max_position_embeddings", 2048),
  )


def _refuse_unsupported(raw: dict, rope: dict, where: Path) -> None:
  def refuse(key, found):
    text = json.dumps(found)
    raise ValueError(f"{where}: {key} = {text[:60]} is not supported")

  for key in ("rope_scaling", "rope_parameters"):
    found = raw.get(key) or {}
    if found.get("rope_type", found.get("type", "default")) != "default":
      refuse(key, raw[key])
  for key in ("attention_bias", "mlp_bias", "quantization_config"):
    if raw.get(key):
      refuse(key, raw[key])
  for source in (raw, rope):
    if (source.get("partial_rotary_factor") or 1) != 1:
      refuse("partial_rotary_factor", source["partial_rotary_factor"])
  if raw.get("hidden_act", "silu") != "silu":
    refuse("hidden_act", raw["hidden_act"])
  if "sliding_attention" in (raw.get("layer_types") or ()):
    refuse("layer_types", raw["layer_types"])
  # Qwen's files name a window that no layer uses.
  windowed = raw.get("num_hidden_layers", 0) > raw.get("max_window_layers", 28)
  if raw.get("use_sliding_window") and raw.get("sliding_window") and windowed:
    refuse("use_sliding_window", True)


class _Tensors:
  """The tensors of a folder by name; each is handed out once."""

  def __init__(self, folder: Path):
    self._folder = folder
    if (folder / _SINGLE).is_file():
      names = [_SINGLE]
    elif (folder / _INDEX).is_file():
      found = read_json(folder, _INDEX).get("weight_map", {})
      names = sorted(set(found.values()))
    else:
      raise missing_file(folder, f"{_SINGLE} or {_INDEX}")
    self._files = {}  # tensor -> open file
    for name in names:
      if not (folder / name).is_file():
        raise missing_file(folder, name)
      try:
        file = safetensors.safe_open(folder / name, "numpy")
      except (safetensors.SafetensorError, OSError) as error:
        raise ValueError(
          f"{folder / name}: not a whole safetensors file ({error})"
        ) from error
      for tensor in file.keys():
        if self._files.setdefault(tensor, file) is not file:
          raise ValueError(f"{folder}: tensor {tensor} is in two files")
    self.left = set(self._files)

  def read(self, name: str, shape: tuple[int, ...]) -> np.ndarray:
    """The tensor, in its dtype; it must have this shape."""
    if name not in self.left:
      raise ValueError(f"{self._folder}: tensor {name} is missing")
    self.left.remove(name)
    view = self._files[name].get_slice(name)
    found = tuple(view.get_shape())
    if found != shape:
      raise ValueError(
        f"{self._folder}: tensor {name} has shape {found}, wanted {shape}"
      )
    if view.get_dtype() not in _DTYPES:
      raise ValueError(
        f"{self._folder}: dtype {view.get_dtype()} of tensor {name} is not "
        f"supported, only {', '.join(_DTYPES)}"
      )
    return self._files[name].get_tensor(name)


def load(
  folder: str | Path, dtype: Any = None, *, body_only: bool = False
) -> tuple[ModelConfig, dict]:
  """Reads dimensions and weights of a Hugging Face folder.

  Args:
    folder: holds config.json and model.safetensors or its shards.
    dtype: of the arrays; the files' own if not given.
    body_only: leave out any head, of a vocabulary or of a reward model.

  Returns:
    The dimensions, and the parameters as a tree of numpy arrays.

  Raises:
    FileNotFoundError: a file is missing.
    ValueError: a tensor is missing, left over, or of another shape.
  """
  folder = Path(folder)
  config = read_config(folder)
  tensors = _Tensors(folder)

  def read(name, shape):
    value = tensors.read(name, shape)
    return value if dtype is None else value.astype(dtype, copy=False)

  embed_shape = (config.vocab_size, config.width)
  params = {
    "embed": read(_EMBED, embed_shape),
    "norm": read(_NORM, (config.width,)),
  }
  if body_only:
    tensors.left -= {_HEAD, "score.weight", "score.bias"}
  elif not config.tied_head:
    params["head"] = np.ascontiguousarray(read(_HEAD, embed_shape).T)
  # Some writers store the shared matrix twice.
  elif _HEAD in tensors.left and not np.array_equal(
    read(_HEAD, embed_shape), params["embed"]
  ):
    raise ValueError(
      f"{folder}: tensor {_HEAD} differs from the embedding, though "
      "config.json has tie_word_embeddings = true"
    )
  layers = {}
  for leaf, shape in layer_shapes(config).items():
    for i in range(config.num_layers):
      name = f"model.layers.{i}.{_NAMES[leaf]}"
      value = read(name, stored_shape(leaf, shape))
      if not i:
        # One array for all layers, filled in place: never two copies of it.
        layers[leaf] = np.empty((config.num_layers, *shape), value.dtype)
      if value.dtype != layers[leaf].dtype:
        raise ValueError(
          f"{folder}: tensor {name} is {value.dtype}, that of layer 0 is "
          f"{layers[leaf].dtype}; give a dtype"
        )
      layers[leaf][i] = from_stored(value, shape)
  # Old files hold the rotary frequencies, which the config determines.
  left = {n for n in tensors.left if not n.endswith("rotary_emb.inv_freq")}
  if left:
    raise ValueError(f"{folder}: tensor {min(left)} is not supported")
  return config, params | {"layers": layers}


def _to_stored(leaf: str, stack: Any, i: int) -> np.ndarray:
  value = np.asarray(stack[i])
  return value.reshape(stored_shape(leaf, value.shape)[::-1]).T


def _stored(config: ModelConfig, params: dict) -> Iterator[tuple]:
  """Name and size of each tensor, and a function that makes it."""
  size = config.vocab_size * config.width
  yield _EMBED, size, lambda: np.asarray(params["embed"])
  for i in range(config.num_layers):
    for leaf, shape in layer_shapes(config).items():
      make = functools.partial(_to_stored, leaf, params["layers"][leaf], i)
      yield f"model.layers.{i}.{_NAMES[leaf]}", math.prod(shape), make
  yield _NORM, config.width, lambda: np.asarray(params["norm"])
  if not config.tied_head:
    yield _HEAD, size, lambda: np.asarray(params["head"]).T


def save(
  folder: str | Path,
  config: ModelConfig,
  params: dict,
  dtype: Any,
  *,
  max_shard_bytes: int = 5_000_000_000,
  tokenizer: Any = None,
) -> None:
  """Writes a folder that transformers and `load` read.

  Weights of an earlier save in the folder are replaced.

  Args:
    folder: made if it is not there.
    config: dimensions.
    params: the parameters, numpy or JAX arrays.
    dtype: of the files: bfloat16, float16 or float32.
    max_shard_bytes: weights beyond this many bytes go into several files.
    tokenizer: a `Tokenizer`, saved along.

  Raises:
    ValueError: no family has these switches, or another dtype.
  """
  dtype = np.dtype(dtype)
  if dtype not in _DTYPES.values():
    raise ValueError(f"dtype {dtype} is not bfloat16, float16 or float32")
  raw = _raw_config(config, dtype)
  folder = Path(folder)
  folder.mkdir(parents=True, exist_ok=True)
  if tokenizer is not None:
    tokenizer.save(folder)
    raw["eos_token_id"] = list(tokenizer.eos_ids)
    raw["pad_token_id"] = tokenizer.pad_id

  shards, room, total = [{}], max_shard_bytes, 0
  for name, size, make in _stored(config, params):
    size *= dtype.itemsize
    if shards[-1] and size > room:
      shards.append({})
      room = max_shard_bytes
    room, total = room - size, total + size
    shards[-1][name] = make
  index, names = {}, []
  for number, shard in enumerate(shards, 1):
    file = f"model-{number:05}-of-{len(shards):05}.safetensors"
    names.append(_SINGLE if len(shards) == 1 else file)
    index |= dict.fromkeys(shard, names[-1])
    tensors = {
      name: np.ascontiguousarray(make().astype(dtype, copy=False))
      for name, make in shard.items()
    }
    with _whole(folder / names[-1]) as part:
      safetensors.numpy.save_file(tensors, part, metadata={"format": "pt"})
  if len(shards) > 1:
    names.append(_INDEX)
    found = {"metadata": {"total_size": total}, "weight_map": index}
    write_json(folder / _INDEX, found)
  write_json(folder / "config.json", raw)
  pattern = r"model(-\d{5}-of-\d{5})?\.safetensors(\.index\.json)?"
  for path in list(folder.iterdir()):
    if re.fullmatch(pattern, path.name) and path.name not in names:
      path.unlink()  # of an earlier save; readers would take it for ours


def _raw_config(config: ModelConfig, dtype: np.dtype) -> dict:
  c = config
  if c.qkv_bias and c.qk_norm:
    raise ValueError("no Hugging Face family has both qkv_bias and qk_norm")
  kind = "qwen2" if c.qkv_bias else "qwen3" if c.qk_norm else "llama"
  return {
    "architectures": [f"{kind.title()}ForCausalLM"],
    "model_type": kind,
    "vocab_size": c.vocab_size,
    "hidden_size": c.width,
    "intermediate_size": c.mlp_width,
    "num_hidden_layers": c.num_layers,
    "num_attention_heads": c.num_heads,
    "num_key_value_heads": c.num_kv_heads,
    "head_dim": c.head_width,
    "hidden_act": "silu",
    "max_position_embeddings": c.max_positions,
    "rms_norm_eps": c.norm_eps,
    "rope_theta": c.rope_theta,
    "attention_dropout": 0.0,
    "tie_word_embeddings": c.tied_head,
    "torch_dtype": dtype.name,
  }


def write_json(path: Path, value: dict) -> None:
  """Writes a JSON file, whole or not at all."""
  text = json.dumps(value, indent=2, ensure_ascii=False) + "\n"
  with _whole(path) as part:
    part.write_text(text, encoding="utf-8")


@contextlib.contextmanager
def _whole(path: Path) -> Iterator[Path]:
  """A file to write that takes its name when it is whole."""
  part = path.with_name(f".{path.name}.part")
  try:
    part.touch()
    mode = part.stat().st_mode
    yield part
    part.chmod(mode)  # safetensors' files are their owner's alone
    with open(part, "rb+") as file:
      os.fsync(file.fileno())
    os.replace(part, path)
  finally:
    part.unlink(missing_ok=True)
