"""Competition problems in the published parquet schema of DAPO-Math-17k.

Rows hold `prompt` (one user message that already asks for an "Answer:" line)
and `reward_model.ground_truth`. Both published files repeat their problems,
about 100 times (DAPO-Math-17k, an accident its authors confirmed) and 32 times
(AIME 2024, on purpose); each problem is kept once.
"""

import pyarrow.parquet as pq
import tensorflow_datasets as tfds

from dapo_jax.data.builder import TextBuilder

PROMPT = (("user", "{problem}"),)


class _ParquetMath(TextBuilder, skip_registration=True):
  """Reads one parquet file that the user has put into the data folder."""

  VERSION = tfds.core.Version("1.0.0")
  FIELDS = ("problem", "answer")
  MANUAL_DOWNLOAD_INSTRUCTIONS = "see the FILE and COMMAND of the builder"
  FILE: str  # name in the data folder
  COMMAND: str  # what gets it
  SPLIT: str

  def _split_generators(self, dl_manager):
    path = dl_manager.manual_dir / self.FILE
    return {self.SPLIT: self._generate_examples(path)}

  def _generate_examples(self, path):
    seen: set[str] = set()
    rows = 0
    columns = ["prompt", "reward_model"]
    file = pq.ParquetFile(path)
    missing = sorted(set(columns) - set(file.schema_arrow.names))
    if missing:
      raise ValueError(f"{path}: no column {missing[0]!r} in it")
    for batch in file.iter_batches(columns=columns):
      for row in batch.to_pylist():
        rows += 1
        problem = row["prompt"][-1]["content"]
        if problem in seen:
          continue
        seen.add(problem)
        yield (
          len(seen) - 1,
          {
            "problem": problem,
            "answer": str(row["reward_model"]["ground_truth"]),
          },
        )
    print(f"{path.name}: {rows} rows, {len(seen)} different problems kept")


class DapoMath17k(_ParquetMath):
  """DAPO-Math-17k: competition problems with integer answers."""

  FILE = "dapo-math-17k.parquet"
  COMMAND = (
    "hf download BytedTsinghua-SIA/DAPO-Math-17k --repo-type dataset"
    " --include 'data/*.parquet'"
  )
  SPLIT = "train"


class Aime2024(_ParquetMath):
  """The 30 problems of AIME 2024."""

  FILE = "aime-2024.parquet"
  COMMAND = (
    "hf download BytedTsinghua-SIA/AIME-2024 --repo-type dataset"
    " --include 'data/*.parquet'"
  )
  SPLIT = "test"
