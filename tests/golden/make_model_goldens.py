"""Makes the model and tokenizer goldens with torch and transformers.

Reading SmolLM2's file also takes `accelerate` and `gguf`; without --gguf its
golden stays as it is.

Not run by the tests, which read what it wrote. It shares no code with
dapo_jax, so that both would have to be wrong in the same way.

  python make_model_goldens.py [--gguf SmolLM2-135M-Instruct.Q4_1.gguf]
"""

import argparse
import json
from pathlib import Path
import tempfile

import gguf
import numpy as np
import tokenizers
from tokenizers import decoders, models, pre_tokenizers
import torch
import transformers

HERE = Path(__file__).parent
FAMILIES = ("Llama", "Qwen2", "Qwen3")
PROMPT = "The capital of France is"
CHAT = "What is 12 + 345? Answer with a number."
TEXTS = (
  "",
  "Hello, world!",
  "12345 + 6789 = 19134; 3.14159, -0.5 and 1/2",
  "  two spaces, a\ttab,\n\na blank line \n",
  "na\u00efve caf\u00e9, \u4f60\u597d, \u041f\u0440\u0438\u0432\u0435\u0442,"
  " \u222b x\u00b2 dx, \U0001f680\U0001f468\u200d\U0001f469",
  "\u0663\u0664 \u00bd x\u2082",  # digits that are not ASCII
  "it's, we'll, I'M, don't",
  r"\boxed{\frac{1}{2}} $x^{10}$ <|im_start|>user",
  "<|im_start|>assistant\n42<|im_end|> <|endoftext|>tail<|im_end|>",
)
CHATS = (
  [{"role": "user", "content": "What is 7 * 8?"}],
  [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "1 + 1 = ?\n"},
    {"role": "assistant", "content": "2"},
    {"role": "user", "content": "And 10 + 15?"},
  ],
)


def make_model(family: str, tied: bool, seed: int) -> None:
  """Writes a small random model and its logits."""
  torch.manual_seed(seed)
  config = getattr(transformers, f"{family}Config")(
    vocab_size=101, hidden_size=30, intermediate_size=44, num_hidden_layers=2,
    num_attention_heads=6, num_key_value_heads=2, head_dim=8,
    max_position_embeddings=64, rms_norm_eps=3e-5, tie_word_embeddings=tied,
    rope_parameters={"rope_type": "default", "rope_theta": 500.0},
    bos_token_id=1, eos_token_id=2, pad_token_id=0,
  )  # fmt: skip
  model = getattr(transformers, f"{family}ForCausalLM")(config).float().eval()
  with torch.no_grad():
    for name, parameter in model.named_parameters():
      # Biases and norm scales too: a wrong one must show.
      parameter.normal_(0.0, 0.3)
      if "norm" in name:
        parameter.add_(1.0)
    tokens = torch.randint(101, (2, 33))
    logits = model(tokens).logits
  folder = HERE / f"{family.lower()}_{'tied' if tied else 'untied'}"
  model.save_pretrained(folder)
  (folder / "generation_config.json").unlink(missing_ok=True)
  np.savez_compressed(
    folder / "logits.npz", tokens=tokens.numpy(), logits=logits.numpy()
  )


def reference_tokenizer(path: Path):
  """SmolLM2's tokenizer in transformers, from a GGUF file's fields."""
  reader = gguf.GGUFReader(path)
  field = lambda key: reader.fields[f"tokenizer.{key}"].contents()
  tokens = field("ggml.tokens")
  merges = [tuple(merge.split()) for merge in field("ggml.merges")]
  core = tokenizers.Tokenizer(models.BPE(dict(map(reversed, enumerate(tokens))),
                                         merges))  # fmt: skip
  core.pre_tokenizer = pre_tokenizers.Sequence([
    pre_tokenizers.Digits(individual_digits=True),
    pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
  ])  # fmt: skip
  core.decoder = decoders.ByteLevel()
  kinds = field("ggml.token_type")
  special = [t for t, k in zip(tokens, kinds) if k == gguf.TokenType.CONTROL]
  tokenizer = transformers.PreTrainedTokenizerFast(
    tokenizer_object=core,
    bos_token=tokens[field("ggml.bos_token_id")],
    eos_token=tokens[field("ggml.eos_token_id")],
    pad_token=tokens[field("ggml.padding_token_id")],
    extra_special_tokens=special,
  )
  tokenizer.chat_template = field("chat_template")
  with tempfile.TemporaryDirectory() as folder:
    tokenizer.save_pretrained(folder)
    return transformers.AutoTokenizer.from_pretrained(folder)


def make_smollm2(path: Path) -> None:
  """Writes tokens, top logits and a greedy answer of SmolLM2."""
  tokenizer = reference_tokenizer(path)
  chat = lambda messages, more: tokenizer.apply_chat_template(
    messages, add_generation_prompt=more, return_dict=False
  )
  encode = lambda text: tokenizer.encode(text, add_special_tokens=False)
  # transformers dequantises and reorders q and k with code of its own.
  model = transformers.AutoModelForCausalLM.from_pretrained(
    path.parent, gguf_file=path.name, dtype=torch.float32
  ).eval()
  prompts = [encode(PROMPT), chat([{"role": "user", "content": CHAT}], True)]
  cases = []
  for prompt in prompts:
    tokens = torch.tensor([prompt])
    with torch.no_grad():
      logits = model(tokens).logits[0]
      answer = model.generate(
        tokens, attention_mask=torch.ones_like(tokens), do_sample=False,
        max_new_tokens=12, eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
      )  # fmt: skip
    top = logits.topk(10, -1)
    answer = answer[0, len(prompt) :].tolist()
    cases.append({
      "tokens": prompt,
      "top_ids": top.indices.tolist(),
      "top_logits": [[round(x, 5) for x in r] for r in top.values.tolist()],
      "answer": answer,
      "answer_text": tokenizer.decode(answer, skip_special_tokens=True),
    })  # fmt: skip
  golden = {
    "texts": [[text, encode(text)] for text in TEXTS],
    "chats": [
      [messages, more, chat(messages, more)]
      for messages in CHATS
      for more in (True, False)
    ],
    "cases": cases,
  }
  text = json.dumps(golden, separators=(",", ":"))
  (HERE / "smollm2.json").write_text(text + "\n")


def main() -> None:
  """Writes all goldens next to this file."""
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("--gguf", type=Path, help="weights of SmolLM2")
  options = parser.parse_args()
  torch.set_num_threads(1)
  for seed, family in enumerate(FAMILIES):
    for tied in (True, False):
      make_model(family, tied, 2 * seed + tied)
  if options.gguf:
    make_smollm2(options.gguf)


if __name__ == "__main__":
  main()
