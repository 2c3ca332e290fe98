"""Tokenizers: characters, folders, SmolLM2's against transformers."""

import json
from pathlib import Path

import gguf
import numpy as np
import pytest
import tokenizers
from tokenizers import decoders, models, pre_tokenizers, processors

from dapo_jax.data.tokenizer import Tokenizer
from dapo_jax.models import smollm2

GOLDEN = Path(__file__).parents[1] / "golden" / "smollm2.json"
USER = [{"role": "user", "content": "ab"}]
TEMPLATE = (
  "{{ bos_token }}{% for message in messages %}"
  "<{{ message['role'] }}>{{ message['content'] }}{{ eos_token }}{% endfor %}"
  "{% if add_generation_prompt %}<assistant>{% endif %}"
)


def write_folder(folder, config=None, **more):
  """A byte-level tokenizer; its post-processor puts a bos before a text."""
  letters = sorted(pre_tokenizers.ByteLevel.alphabet())
  backend = tokenizers.Tokenizer(
    models.BPE({c: i for i, c in enumerate(letters)}, [])
  )
  backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
  backend.decoder = decoders.ByteLevel()
  backend.add_special_tokens(["<s>", "</s>", "<turn>", "<fill>"])
  backend.post_processor = processors.TemplateProcessing(
    single="<s> $A", special_tokens=[("<s>", 256)]
  )
  # Files in the wild carry these.
  backend.enable_padding(length=50)
  backend.enable_truncation(3)
  backend.save(str(folder / "tokenizer.json"))
  config = {
    "bos_token": {"content": "<s>", "lstrip": False},
    "eos_token": "</s>",
    "pad_token": "<fill>",
    "chat_template": TEMPLATE,
  } | (config or {})
  (folder / "tokenizer_config.json").write_text(json.dumps(config))
  for name, text in more.items():
    (folder / name.replace("__", ".")).write_text(text)
  return folder


@pytest.fixture(scope="module")
def golden():
  return json.loads(GOLDEN.read_text())


@pytest.fixture(scope="module")
def smol():
  try:
    path = smollm2.find(download=False)
  except FileNotFoundError:
    pytest.skip("SmolLM2's file is neither installed nor in the cache")
  return Tokenizer.from_gguf(path)


def test_smollm2_texts_equal_transformers(smol, golden):
  for text, ids in golden["texts"]:
    assert smol.encode(text) == ids, text
    assert smol.decode(ids, skip_special=False) == text
  assert (smol.vocab_size, smol.eos_ids, smol.pad_id) == (49152, (2,), 2)


def test_smollm2_chats_equal_transformers(smol, golden):
  for messages, prompt, ids in golden["chats"]:
    found = smol.encode_chat(messages, add_generation_prompt=prompt)
    assert found == ids


def test_smollm2_answers_decode_to_the_same_text(smol, golden):
  for case in golden["cases"]:
    assert smol.decode(case["answer"]) == case["answer_text"]


def test_smollm2_survives_a_folder(smol, golden, tmp_path):
  smol.save(tmp_path)
  again = Tokenizer.from_folder(tmp_path)
  for text, ids in golden["texts"]:
    assert again.encode(text) == ids
  for messages, prompt, ids in golden["chats"]:
    assert again.encode_chat(messages, prompt) == ids
  assert (again.eos_ids, again.pad_id) == (smol.eos_ids, smol.pad_id)


def test_characters():
  tokenizer = Tokenizer.characters("0123456789+= é")
  assert (tokenizer.vocab_size, tokenizer.pad_id) == (16, 0)
  assert tokenizer.eos_ids == (1,)
  ids = tokenizer.encode("1+2 = é")
  assert ids == [3, 12, 4, 14, 13, 14, 15]
  assert tokenizer.decode(np.asarray([*ids, 1, 0], np.int32)) == "1+2 = é"
  assert tokenizer.decode([*ids, 1], skip_special=False) == "1+2 = é<eos>"
  assert tokenizer.encode("") == [] and tokenizer.decode([]) == ""
  chat = [{"role": "user", "content": "1+"}, {"role": "user", "content": "2"}]
  assert tokenizer.encode_chat(chat) == [3, 12, 4]


def test_words_have_a_token_of_their_own(tmp_path):
  tokenizer = Tokenizer.characters("Answer: 7\n", ("Answer: ",))
  assert tokenizer.vocab_size == 13
  assert tokenizer.encode("7\nAnswer: 7") == [10, 11, 12, 10]
  assert tokenizer.decode([10, 11, 12, 10, 1]) == "7\nAnswer: 7"
  assert tokenizer.encode("Answer:7") == [*range(2, 9), 10]
  tokenizer.save(tmp_path)
  again = Tokenizer.from_folder(tmp_path)
  assert again.encode("Answer: 77") == [12, 10, 10]


def test_characters_survive_a_folder(tmp_path):
  tokenizer = Tokenizer.characters("ab c")
  tokenizer.save(tmp_path)
  again = Tokenizer.from_folder(tmp_path)
  assert again.encode("a cb") == tokenizer.encode("a cb") == [2, 4, 5, 3]
  assert again.decode([2, 4, 5, 3, 1]) == "a cb"
  assert again.encode_chat(USER) == [2, 3]
  with pytest.raises(ValueError, match="'x' is not in the alphabet"):
    again.encode("axb")


def test_a_character_outside_the_alphabet_is_named():
  tokenizer = Tokenizer.characters("ab")
  for text, named in (("ac", "'c'"), ("a\n", r"'\\n'"), ("<eos>", "'<'")):
    with pytest.raises(ValueError, match=f"{named} is not in the alphabet"):
      tokenizer.encode(text)
  with pytest.raises(ValueError, match="'a' is twice"):
    Tokenizer.characters("aba")


def test_folder(tmp_path):
  tokenizer = Tokenizer.from_folder(write_folder(tmp_path))
  assert tokenizer.vocab_size == 260
  assert (tokenizer.eos_ids, tokenizer.pad_id) == ((257,), 259)
  text = "naïve 数\U0001f680 x"
  ids = tokenizer.encode(text)
  assert len(ids) == len(text.encode()) and tokenizer.decode(ids) == text
  assert tokenizer.encode("a", add_special=True)[0] == 256
  assert tokenizer.encode("</s>") == [257]
  assert tokenizer.decode([257, *ids]) == text


def test_a_chat_gets_its_special_tokens_once(tmp_path):
  tokenizer = Tokenizer.from_folder(write_folder(tmp_path))
  ids = tokenizer.encode_chat(USER)
  text = "<s><user>ab</s><assistant>"
  assert tokenizer.decode(ids, skip_special=False) == text
  assert ids.count(256) == ids.count(257) == 1
  ids = tokenizer.encode_chat(USER, add_generation_prompt=False)
  assert tokenizer.decode(ids, skip_special=False) == "<s><user>ab</s>"


def test_several_tokens_may_end_a_response(tmp_path):
  more = json.dumps({"eos_token_id": [258, 257]})
  folder = write_folder(tmp_path, generation_config__json=more)
  tokenizer = Tokenizer.from_folder(folder)
  assert tokenizer.eos_ids == (257, 258)
  tokenizer.save(tmp_path / "again")
  again = Tokenizer.from_folder(tmp_path / "again")
  assert again.eos_ids == (257, 258) and again.pad_id == 259
  assert again.encode_chat(USER) == tokenizer.encode_chat(USER)
  single = json.dumps({"eos_token_id": 258})
  write_folder(tmp_path, {"eos_token": None}, generation_config__json=single)
  assert Tokenizer.from_folder(tmp_path).eos_ids == (258,)


def test_padding_falls_back_to_the_end(tmp_path):
  folder = write_folder(tmp_path, {"pad_token": None})
  assert Tokenizer.from_folder(folder).pad_id == 257


def test_the_template_file_wins(tmp_path):
  # Lines that hold a tag alone leave nothing, as in transformers.
  template = "{% for m in messages %}\n{{ m.content }}!\n  {% endfor %}\n"
  folder = write_folder(tmp_path, chat_template__jinja=template)
  tokenizer = Tokenizer.from_folder(folder)
  assert tokenizer.decode(tokenizer.encode_chat(USER)) == "ab!\n"


def test_templates_by_name(tmp_path):
  named = [
    {"name": "tools", "template": "no"},
    {"name": "default", "template": "yes"},
  ]
  folder = write_folder(tmp_path, {"chat_template": named})
  tokenizer = Tokenizer.from_folder(folder)
  assert tokenizer.decode(tokenizer.encode_chat(USER)) == "yes"


def test_what_templates_may_use(tmp_path):
  template = (
    "{% for m in messages %}{% if loop.index > 1 %}{% break %}{% endif %}"
    "{{ m | tojson }}{% endfor %}{{ strftime_now('%Y') | length }}"
    "{% if tools is none and thinking %}think{% endif %}"
  )
  folder = write_folder(tmp_path, {"chat_template": template})
  tokenizer = Tokenizer.from_folder(folder)
  messages = [{"role": "user", "content": "<é>"}] * 2
  text = tokenizer.decode(tokenizer.encode_chat(messages, thinking=True))
  assert text == '{"role": "user", "content": "<é>"}4think'


@pytest.mark.parametrize(
  ("template", "message"),
  [
    ("{{ raise_exception('no system role') }}", "no system role"),
    ("{% for %}", "chat template"),
    ("{{ messages.append(1) }}", "chat template"),
    ("{{ ''.__class__.__mro__ }}", "chat template"),
    ("", "no chat template"),
    (None, "no chat template: put a chat_template.jinja"),
  ],
)
def test_templates_that_fail(template, message, tmp_path):
  folder = write_folder(tmp_path, {"chat_template": template})
  with pytest.raises(ValueError, match=message) as caught:
    Tokenizer.from_folder(folder).encode_chat(USER)
  assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json"])
def test_a_missing_file_names_the_remedy(name, tmp_path):
  (write_folder(tmp_path) / name).unlink()
  with pytest.raises(FileNotFoundError, match=name) as caught:
    Tokenizer.from_folder(tmp_path)
  assert f"hf download <org/name> --local-dir {tmp_path}" in str(caught.value)
  assert "\n" not in str(caught.value)


def test_damaged_files_are_named(tmp_path):
  for name in ("tokenizer.json", "tokenizer_config.json"):
    (write_folder(tmp_path) / name).write_text("{")
    with pytest.raises(ValueError, match=name):
      Tokenizer.from_folder(tmp_path)
  write_folder(tmp_path, {"eos_token": None})
  with pytest.raises(ValueError, match="no eos_token"):
    Tokenizer.from_folder(tmp_path)
  write_folder(tmp_path, {"eos_token": "<other>"})
  with pytest.raises(ValueError, match="'<other>' is not in the vocabulary"):
    Tokenizer.from_folder(tmp_path)


def write_gguf(path, pre="smollm", **more):
  """A tokenizer of letters, digits, one merge and some special tokens."""
  tokens = ["<end>", "<turn>", "<word>", *"ab012", "\u0120", "ab", "12"]
  kinds = [3, 3, 4] + [1] * 8  # control, user-defined, normal
  writer = gguf.GGUFWriter(path, "llama")
  writer.add_tokenizer_model("gpt2")
  writer.add_tokenizer_pre(pre)
  writer.add_token_list(tokens)
  writer.add_token_types(kinds)
  writer.add_token_merges(["a b", "1 2"])
  writer.add_eos_token_id(0)
  for name, value in more.items():
    writer.add_uint32(f"tokenizer.ggml.{name}", value)
  writer.write_header_to_file()
  writer.write_kv_data_to_file()
  writer.close()
  return path


def test_gguf(tmp_path):
  tokenizer = Tokenizer.from_gguf(write_gguf(tmp_path / "a.gguf"))
  assert (tokenizer.vocab_size, tokenizer.eos_ids) == (11, (0,))
  assert tokenizer.pad_id == 0
  # Digits stay alone, though the file merges them.
  ids = tokenizer.encode("ab 12<word><end>")
  assert ids == [9, 8, 6, 7, 2, 0]
  assert tokenizer.decode(ids) == "ab 12<word>"
  assert tokenizer.decode(ids, skip_special=False) == "ab 12<word><end>"
  with pytest.raises(ValueError, match="no chat template"):
    tokenizer.encode_chat(USER)
  more = {"eot_token_id": 1, "padding_token_id": 1}
  tokenizer = Tokenizer.from_gguf(write_gguf(tmp_path / "a.gguf", **more))
  assert (tokenizer.eos_ids, tokenizer.pad_id) == ((0, 1), 1)


def test_another_gguf_tokenizer_is_refused(tmp_path):
  path = write_gguf(tmp_path / "a.gguf", pre="llama-bpe")
  with pytest.raises(ValueError, match="pre-tokenizer 'llama-bpe' is not"):
    Tokenizer.from_gguf(path)


def test_ids_beyond_the_vocabulary_decode_to_nothing(tmp_path):
  # A model's matrix may have more rows than the tokenizer has tokens.
  tokenizer = Tokenizer.from_folder(write_folder(tmp_path))
  ids = tokenizer.encode("ab")
  assert tokenizer.decode([*ids, 300]) == "ab"
