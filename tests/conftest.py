"""Checks the shapes in signatures while the tests run."""

import os
from pathlib import Path
import sys

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
# Eight virtual devices: the invariance tests lay the same work out over them.
os.environ["XLA_FLAGS"] = (
  os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8"
)
os.environ.setdefault("JAX_PLATFORMS", "cpu")

from jaxtyping import install_import_hook  # noqa: E402

_CHECKED = ("advantages", "groups", "logprobs", "losses", "masked", "sampling")
install_import_hook(
  [f"dapo_jax.{name}" for name in _CHECKED], "beartype.beartype"
)

import jax  # noqa: E402
import pytest  # noqa: E402

from configs import dapo  # noqa: E402
from dapo_jax.data.prompts import cache_dir  # noqa: E402
from experiments import ablation  # noqa: E402

# A wrong broadcast is an error, not a number.
jax.config.update("jax_numpy_rank_promotion", "raise")
# What one test has compiled, the next one and the next run of the suite read.
jax.config.update("jax_compilation_cache_dir", str(cache_dir() / "xla-tests"))
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)

# Files whose tests start processes, the longest first: at the end of the suite
# no core is to wait for one of them.
_LONG = (
  "test_resume",
  "test_family",
  "test_run",
  "test_ablation",
  "test_train",
)


def pytest_collection_modifyitems(items):
  """Sorts the files; within a file the order stays."""
  of = {name: i for i, name in enumerate(_LONG)}
  items.sort(key=lambda item: of.get(item.path.stem, len(of)))


@pytest.fixture(scope="session")
def start(tmp_path_factory):
  """A policy that gets some problems right: many runs start from it."""
  folder = tmp_path_factory.mktemp("start")
  c = dapo.get_config("tiny,debug")
  c.warm_steps = 60
  ablation.make_start(c, folder)
  return folder / "start"
