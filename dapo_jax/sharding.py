"""Where arrays live: the mesh, and one table from logical axes to it."""

from typing import Any

from flax import linen as nn
import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
import numpy as np

AXES = ("data", "fsdp", "tensor")

# logical axis of a parameter -> mesh axes, while it is trained and while it
# samples. Training splits parameters over `fsdp` along one dimension and over
# `tensor` along another, and gathers each layer for as long as it runs; a
# decode step would gather the whole model for every token, so the sampler
# holds them whole along `embed`.
RULES: dict[str, dict[str, str | None]] = {
  "train": {
    "vocab": "tensor",
    "embed": "fsdp",
    "heads": "tensor",
    "kv_heads": "tensor",
    "head": None,
    "mlp": "tensor",
    "norm": None,
    "layers": None,
  },
}
RULES["rollout"] = RULES["train"] | {"embed": None}

# Rows of a batch are split over both: every device works on its own rows.
BATCH_AXES = ("data", "fsdp")


def make_mesh(shape: dict[str, int], devices=None) -> Mesh:
  """A mesh over the axes data, fsdp, tensor.

  Args:
    shape: size of each axis; one of them may be -1 for what remains.
    devices: default: all devices.

  Raises:
    ValueError: the sizes do not multiply to the number of devices.
  """
  devices = np.array(jax.devices() if devices is None else devices)
  sizes = [int(shape[axis]) for axis in AXES]
  known = int(np.prod([s for s in sizes if s != -1]))
  if sizes.count(-1) > 1 or known <= 0 or len(devices) % known:
    raise ValueError(_mesh_error(shape, len(devices)))
  sizes = [len(devices) // known if s == -1 else s for s in sizes]
  if int(np.prod(sizes)) != len(devices):
    raise ValueError(_mesh_error(shape, len(devices)))
  return Mesh(devices.reshape(sizes), AXES)


def _mesh_error(shape, devices) -> str:
  text = " x ".join(f"{axis}={shape[axis]}" for axis in AXES)
  return (
    f"mesh {text} does not fit {devices} devices; make the product "
    f"{devices}, or one axis -1 for what remains"
  )


def batch_shards(mesh: Mesh) -> int:
  """Number of parts that the rows of a batch are split into."""
  return mesh.shape["data"] * mesh.shape["fsdp"]


def replicated(mesh: Mesh) -> NamedSharding:
  """The whole array on every device."""
  return NamedSharding(mesh, PartitionSpec())


def rows(mesh: Mesh, axis: int = 0) -> NamedSharding:
  """Axis `axis` split over the batch axes of the mesh."""
  return NamedSharding(mesh, PartitionSpec(*[None] * axis, BATCH_AXES))


def constrain(mesh: Mesh, x: jax.Array, axis: int = 0) -> jax.Array:
  """Splits axis `axis` of x over the batch axes; the others stay free."""
  free = PartitionSpec.UNCONSTRAINED
  spec = [free] * x.ndim
  spec[axis] = BATCH_AXES
  return jax.lax.with_sharding_constraint(
    x, NamedSharding(mesh, PartitionSpec(*spec))
  )


def of_params(mesh: Mesh, boxed: Any, layout: str) -> Any:
  """Shardings of a tree of parameters boxed with logical axis names.

  A dimension that does not divide (3 kv heads over tensor=2) stays whole.

  Args:
    mesh: the mesh.
    boxed: parameters or their shapes, boxed by `nn.with_logical_partitioning`.
    layout: 'train' or 'rollout', a key of RULES.

  Raises:
    ValueError: a parameter has an axis without a rule.
  """
  rules = RULES[layout]

  def one(path, leaf):
    if not isinstance(leaf, nn.LogicallyPartitioned):
      raise ValueError(
        f"parameter {jax.tree_util.keystr(path)} has no logical axis names"
      )
    spec = []
    for name, size in zip(leaf.names, leaf.value.shape):
      if name not in rules:
        raise ValueError(
          f"parameter {jax.tree_util.keystr(path)}: axis {name!r} has no rule "
          f"in sharding.RULES; known: {sorted(rules)}"
        )
      axis = rules[name]
      fits = axis is not None and size % mesh.shape[axis] == 0
      spec.append(axis if fits else None)
    return NamedSharding(mesh, PartitionSpec(*spec))

  return jax.tree_util.tree_map_with_path(
    one, boxed, is_leaf=lambda x: isinstance(x, nn.LogicallyPartitioned)
  )


def like_params(tree: Any, params: Any, shardings: Any, mesh: Mesh) -> Any:
  """Shardings of a tree that holds copies of the parameters (moments).

  A subtree with the structure of the parameters gets their shardings; every
  other leaf is replicated.
  """
  structure = jax.tree.structure(params)
  is_copy = lambda x: jax.tree.structure(x) == structure
  return jax.tree.map(
    lambda x: shardings if is_copy(x) else replicated(mesh),
    tree,
    is_leaf=is_copy,
  )
