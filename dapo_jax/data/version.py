"""Versions of procedural data sets."""

from pathlib import Path
import zlib

import tensorflow_datasets as tfds


def source_version(file: str) -> tfds.core.Version:
  """A version that changes with the source of the generator.

  Prepared data are kept in a cache by version: no edit of a generator may
  find what an older one has left there.
  """
  return tfds.core.Version(f"1.0.{zlib.crc32(Path(file).read_bytes())}")
