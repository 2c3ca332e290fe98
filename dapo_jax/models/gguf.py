"""Reads a GGUF file of a Llama model into the decoder's parameters."""

from pathlib import Path

import gguf
import numpy as np

from dapo_jax.models import hf
from dapo_jax.models.transformer import ModelConfig

# Leaf of a layer -> its tensor `blk.{i}.{name}.weight`.
_NAMES = {
  "attn_norm": "attn_norm",
  "wq": "attn_q",
  "wk": "attn_k",
  "wv": "attn_v",
  "wo": "attn_output",
  "mlp_norm": "ffn_norm",
  "w_gate": "ffn_gate",
  "w_up": "ffn_up",
  "w_down": "ffn_down",
}
_TYPES = ("F32", "F16", "Q8_0", "Q4_0", "Q4_1")


class _Reader(gguf.GGUFReader):
  """The package's reader, faster.

  It slices its memory map about a million times, and a slice of a
  numpy.memmap takes several times as long as one of an array.
  """

  def _get(self, *args, **kwargs):
    self.data = self.data.view(np.ndarray)
    return super()._get(*args, **kwargs)


def open_gguf(path: str | Path) -> gguf.GGUFReader:
  """Opens a GGUF file; its tensors stay on disk until they are read.

  Raises:
    FileNotFoundError: there is no such file.
    ValueError: the file is not a whole GGUF file.
  """
  path = Path(path)
  if not path.is_file():
    raise FileNotFoundError(f"{path}: no such GGUF file")
  try:
    return _Reader(path)
  # The reader slices a memory map: what a torn file raises depends on where
  # it is torn.
  except (ValueError, IndexError, KeyError, OSError) as error:
    raise ValueError(
      f"{path}: not a whole GGUF file ({type(error).__name__}: {error})"
    ) from error


def metadata(reader: gguf.GGUFReader, key: str, default=None):
  """Value of a metadata key, `default` where the file has no such key."""
  field = reader.fields.get(key)
  return default if field is None else field.contents()


def _config(reader, tensors, path) -> ModelConfig:
  architecture = metadata(reader, "general.architecture")
  if architecture != "llama":
    raise ValueError(
      f"{path}: architecture {architecture!r} is not supported, only 'llama'"
    )

  def value(key, default=None):
    found = metadata(reader, f"llama.{key}", default)
    if found is None:
      raise ValueError(f"{path}: metadata llama.{key} is missing")
    return found

  if value("rope.scaling.type", "none") != "none":
    raise ValueError(f"{path}: llama.rope.scaling.type is not supported")
  if value("expert_count", 0):
    raise ValueError(f"{path}: llama.expert_count is not supported")
  if "token_embd.weight" not in tensors:
    raise ValueError(f"{path}: tensor token_embd.weight is missing")
  width, heads = value("embedding_length"), value("attention.head_count")
  head_width = value("attention.key_length", width // heads)
  for key in ("rope.dimension_count", "attention.value_length"):
    if value(key, head_width) != head_width:
      raise ValueError(
        f"{path}: llama.{key} other than the head width {head_width} is not "
        "supported"
      )
  return ModelConfig(
    vocab_size=int(tensors["token_embd.weight"].shape[-1]),
    num_layers=value("block_count"),
    width=width,
    num_heads=heads,
    num_kv_heads=value("attention.head_count_kv", heads),
    head_width=head_width,
    mlp_width=value("feed_forward_length"),
    rope_theta=float(value("rope.freq_base", 1e4)),
    # An f32 in the file: 9.99999975e-06 stands for 1e-05.
    norm_eps=float(f"{value('attention.layer_norm_rms_epsilon'):.6g}"),
    tied_head="output.weight" not in tensors,
    max_positions=value("context_length"),
  )


def _halves_from_pairs(weight: np.ndarray, heads: int) -> np.ndarray:
  """Rows of q or k from llama.cpp's order to the order of `rotate`.

  llama.cpp keeps rotary pair i in rows 2i and 2i + 1 of a head, the decoder in
  rows i and i + H/2.
  """
  rows, columns = weight.shape
  pairs = weight.reshape(heads, rows // heads // 2, 2, columns)
  return pairs.transpose(0, 2, 1, 3).reshape(rows, columns)


def load(
  path: str | Path, reader: gguf.GGUFReader | None = None
) -> tuple[ModelConfig, dict]:
  """Reads dimensions and weights of a Llama GGUF file.

  Args:
    path: the file; tensors in F32, F16, Q8_0, Q4_0 or Q4_1.
    reader: the file, if it is open already.

  Returns:
    The dimensions, and the parameters as a tree of f32 arrays.

  Raises:
    FileNotFoundError: there is no such file.
    ValueError: another architecture, type or set of tensors.
  """
  reader = reader or open_gguf(path)
  tensors = {tensor.name: tensor for tensor in reader.tensors}
  config = _config(reader, tensors, path)

  def read(name, shape):
    tensor = tensors.pop(name, None)
    if tensor is None:
      raise ValueError(f"{path}: tensor {name} is missing")
    if tensor.tensor_type.name not in _TYPES:
      raise ValueError(
        f"{path}: type {tensor.tensor_type.name} of tensor {name} is not "
        f"supported, only {', '.join(_TYPES)}"
      )
    found = tuple(int(n) for n in reversed(tensor.shape))
    if found != shape:
      raise ValueError(
        f"{path}: tensor {name} has shape {found}, wanted {shape}"
      )
    weight = gguf.dequantize(tensor.data, tensor.tensor_type)
    return weight.astype(np.float32).reshape(shape)

  embed_shape = (config.vocab_size, config.width)
  params = {
    "embed": read("token_embd.weight", embed_shape),
    "norm": read("output_norm.weight", (config.width,)),
  }
  if not config.tied_head:
    params["head"] = np.ascontiguousarray(read("output.weight", embed_shape).T)
  layers = {}
  for leaf, shape in hf.layer_shapes(config).items():
    # One array for all layers, filled in place: never two copies of a leaf.
    layers[leaf] = np.empty((config.num_layers, *shape), np.float32)
    for i in range(config.num_layers):
      name = f"blk.{i}.{_NAMES[leaf]}.weight"
      weight = read(name, hf.stored_shape(leaf, shape))
      if leaf in ("wq", "wk"):
        weight = _halves_from_pairs(weight, shape[1])
      layers[leaf][i] = hf.from_stored(weight, shape)
  if tensors:
    raise ValueError(f"{path}: tensor {min(tensors)} is not supported")
  return config, params | {"layers": layers}
