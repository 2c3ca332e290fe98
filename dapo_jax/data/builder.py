"""What data sets share: text fields, and versions that follow the source."""

from pathlib import Path
import zlib

import tensorflow_datasets as tfds


def source_version(*files: str) -> tfds.core.Version:
  """A version that changes with the source of the generator.

  Prepared data are kept in a cache by version: no edit of a generator may
  find what an older one has left there.
  """
  source = b"".join(Path(file).read_bytes() for file in files)
  return tfds.core.Version(f"1.0.{zlib.crc32(source)}")


class TextBuilder(tfds.core.GeneratorBasedBuilder, skip_registration=True):
  """A builder whose fields are all texts.

  A subclass sets FIELDS ("problem", "answer", and "kind" and "solution" where
  it has them), VERSION, SIZES (split -> examples) and `_generate_examples`.
  """

  FIELDS: tuple[str, ...] = ("problem", "answer", "kind", "solution")
  IN_ORDER = False  # TFDS shuffles what it writes, unless told not to
  SIZES: dict[str, int] = {}

  def _info(self):
    return tfds.core.DatasetInfo(
      builder=self,
      features=tfds.features.FeaturesDict(
        {field: tfds.features.Text() for field in self.FIELDS}
      ),
      metadata=tfds.core.MetadataDict(),
      disable_shuffling=self.IN_ORDER,
    )

  def _split_generators(self, dl_manager):
    del dl_manager
    return {split: self._generate_examples(split) for split in self.SIZES}
