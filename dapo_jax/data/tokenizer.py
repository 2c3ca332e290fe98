"""Text to token ids and back, with chat templates; no transformers needed."""

from collections.abc import Mapping, Sequence
import datetime
import json
from pathlib import Path

from gguf import GGUFReader
import jinja2
import jinja2.sandbox
import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from dapo_jax.models import hf
from dapo_jax.models.gguf import metadata, open_gguf

_SPECIALS = ("bos_token", "eos_token", "unk_token", "pad_token")
# Kinds of tokens in a GGUF file.
_CONTROL, _USER_DEFINED = 3, 4


class Tokenizer:
  """A tokenizer of the `tokenizers` package and its chat template.

  Attributes:
    vocab_size: number of tokens; a model's matrix may have more rows.
    eos_ids: tokens that end a response, the tokenizer's own first.
    pad_id: token that fills up; the first of `eos_ids` if there is none.
  """

  vocab_size: int
  eos_ids: tuple[int, ...]
  pad_id: int

  def __init__(
    self,
    backend: tokenizers.Tokenizer,
    config: Mapping,
    eos_ids: Sequence[int] = (),
    source: str = "tokenizer",
  ):
    """Wraps a tokenizer; the class methods are the way to get one.

    Args:
      backend: the tokenizer.
      config: what tokenizer_config.json holds.
      eos_ids: tokens that end a response beside `config`'s `eos_token`.
      source: where it comes from, for messages.
    """
    # A file may ask for padding or truncation: never wanted here.
    backend.no_padding()
    backend.no_truncation()
    self._backend, self._config, self._source = backend, dict(config), source
    self._alphabet = frozenset(self._config.get("alphabet") or ())
    self._template = None
    self._specials = {
      name: text
      for name in _SPECIALS
      if (text := _token_text(self._config.get(name))) is not None
    }
    self.vocab_size = backend.get_vocab_size(with_added_tokens=True)
    own = self._special_id("eos_token")
    ends = ([] if own is None else [own]) + list(eos_ids)
    self.eos_ids = tuple(dict.fromkeys(ends))
    if not self.eos_ids:
      raise ValueError(f"{source}: no eos_token in tokenizer_config.json")
    pad = self._special_id("pad_token")
    self.pad_id = self.eos_ids[0] if pad is None else pad

  @classmethod
  def from_folder(cls, path: str | Path) -> "Tokenizer":
    """Reads the tokenizer of a Hugging Face folder.

    Args:
      path: holds tokenizer.json and tokenizer_config.json; if they are there,
        generation_config.json (more ends of a response) and
        chat_template.jinja are read too.

    Raises:
      FileNotFoundError: a file is missing.
      ValueError: a file is damaged, or nothing ends a response.
    """
    folder = Path(path)
    if not (folder / "tokenizer.json").is_file():
      raise hf.missing_file(folder, "tokenizer.json")
    config = hf.read_json(folder, "tokenizer_config.json")
    try:
      backend = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    except Exception as error:  # the package raises plain Exception
      raise ValueError(f"{folder}/tokenizer.json: {error}") from error
    ends = []
    if (folder / "generation_config.json").is_file():
      ends = hf.read_json(folder, "generation_config.json").get("eos_token_id")
      ends = [ends] if isinstance(ends, int) else ends or []
    template = folder / "chat_template.jinja"
    if template.is_file():
      config["chat_template"] = template.read_text(encoding="utf-8")
    return cls(backend, config, ends, str(folder))

  @classmethod
  def from_gguf(
    cls, path: str | Path, reader: GGUFReader | None = None
  ) -> "Tokenizer":
    """Reads the tokenizer of a GGUF file (byte-level BPE of SmolLM2).

    Args:
      path: the file.
      reader: the file, if it is open already.

    Raises:
      FileNotFoundError: there is no such file.
      ValueError: the file has another kind of tokenizer.
    """
    reader = reader or open_gguf(path)

    def value(key, default=None):
      return metadata(reader, f"tokenizer.ggml.{key}", default)

    kind = value("model"), value("pre")
    if kind != ("gpt2", "smollm"):
      raise ValueError(
        f"{path}: tokenizer {kind[0]!r} with pre-tokenizer {kind[1]!r} is not "
        "supported, only 'gpt2' with 'smollm'"
      )
    tokens, kinds = value("tokens"), value("token_type")
    merges = [tuple(pair.split(" ")) for pair in value("merges")]
    backend = tokenizers.Tokenizer(
      models.BPE(vocab={t: i for i, t in enumerate(tokens)}, merges=merges)
    )
    # Digits one by one, then GPT-2's words in bytes.
    backend.pre_tokenizer = pre_tokenizers.Sequence(
      [
        pre_tokenizers.Digits(individual_digits=True),
        pre_tokenizers.ByteLevel(add_prefix_space=False),
      ]
    )
    backend.decoder = decoders.ByteLevel()
    for token, kind in zip(tokens, kinds):
      if kind in (_CONTROL, _USER_DEFINED):
        special = kind == _CONTROL
        added = tokenizers.AddedToken(token, special=special, normalized=False)
        (backend.add_special_tokens if special else backend.add_tokens)([added])
    config = {"chat_template": metadata(reader, "tokenizer.chat_template")}
    for name, key in zip(_SPECIALS, ("bos", "eos", "unknown", "padding")):
      number = value(f"{key}_token_id")
      if number is not None:
        config[name] = tokens[number]
    turn = value("eot_token_id")
    return cls(backend, config, [] if turn is None else [turn], str(path))

  @classmethod
  def characters(cls, alphabet: str, words: Sequence[str] = ()) -> "Tokenizer":
    """A token a character: 0 pads, 1 ends, then the alphabet in its order.

    Its chat template is the messages' contents, one after the other.

    Args:
      alphabet: every character there is.
      words: runs of characters with a token of their own, behind the alphabet.

    Raises:
      ValueError: a character stands twice in the alphabet.
    """
    if len(set(alphabet)) < len(alphabet):
      twice = next(c for c in alphabet if alphabet.count(c) > 1)
      raise ValueError(f"character {twice!r} is twice in the alphabet")
    vocab = {t: i for i, t in enumerate(["<pad>", "<eos>", *alphabet])}
    # BPE without merges splits into characters.
    backend = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=[]))
    backend.decoder = decoders.Fuse()
    backend.add_special_tokens(["<pad>", "<eos>"])
    backend.add_tokens(list(words))
    config = {
      "alphabet": alphabet,
      "pad_token": "<pad>",
      "eos_token": "<eos>",
      "chat_template": "{% for m in messages %}{{ m.content }}{% endfor %}",
    }
    return cls(backend, config)

  def encode(self, text: str, add_special: bool = False) -> list[int]:
    """Token ids of a text; special tokens written in it count as such.

    Args:
      text: any text.
      add_special: add what the tokenizer puts around a text (a bos token, for
        some models).

    Raises:
      ValueError: a character is outside the alphabet of `characters`.
    """
    if self._alphabet:
      for character in text:
        if character not in self._alphabet:
          raise ValueError(
            f"character {character!r} is not in the alphabet of random "
            "weights; set weights= to a folder that has a tokenizer"
          )
    return self._backend.encode(text, add_special_tokens=add_special).ids

  def decode(self, ids: Sequence[int], skip_special: bool = True) -> str:
    """Text of token ids, with or without the special tokens."""
    ids = [int(i) for i in ids]  # numpy's integers are not the package's
    return self._backend.decode(ids, skip_special_tokens=skip_special)

  def encode_chat(
    self,
    messages: Sequence[Mapping[str, str]],
    add_generation_prompt: bool = True,
    **variables,
  ) -> list[int]:
    """Token ids of a conversation in the model's chat template.

    Args:
      messages: dictionaries with `role` and `content`.
      add_generation_prompt: end with the start of the assistant's answer.
      **variables: more of the template's variables (`enable_thinking`).

    Raises:
      ValueError: there is no template, or it refuses the messages.
    """
    if self._template is None:
      self._template = self._compile()
    try:
      text = self._template.render(
        messages=messages,
        add_generation_prompt=add_generation_prompt,
        tools=None,
        documents=None,
        **(self._specials | variables),
      )
    except (jinja2.TemplateError, TypeError) as error:
      raise ValueError(f"{self._source}: chat template: {error}") from error
    return self.encode(text)

  def save(self, folder: str | Path) -> None:
    """Writes the files that `from_folder` reads."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    self._backend.save(str(folder / "tokenizer.json"))
    config = {
      "tokenizer_class": "PreTrainedTokenizerFast",
      "clean_up_tokenization_spaces": False,
    } | self._config
    hf.write_json(folder / "tokenizer_config.json", config)
    if len(self.eos_ids) > 1:
      ends = {"eos_token_id": list(self.eos_ids), "pad_token_id": self.pad_id}
      hf.write_json(folder / "generation_config.json", ends)

  def _special_id(self, name: str) -> int | None:
    text = self._specials.get(name)
    number = None if text is None else self._backend.token_to_id(text)
    if text is not None and number is None:
      raise ValueError(
        f"{self._source}: {name} {text!r} is not in the vocabulary"
      )
    return number

  def _compile(self) -> jinja2.Template:
    template = self._config.get("chat_template")
    if isinstance(template, list):  # several by name
      named = {entry["name"]: entry["template"] for entry in template}
      template = named.get("default")
    if not template:
      raise ValueError(
        f"{self._source} has no chat template: put a chat_template.jinja "
        "there, or use base-model prompts"
      )
    # A template comes with a model: it must not reach outside.
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
      trim_blocks=True,
      lstrip_blocks=True,
      extensions=["jinja2.ext.loopcontrols"],
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    try:
      return environment.from_string(template)
    except jinja2.TemplateError as error:
      raise ValueError(f"{self._source}: chat template: {error}") from error


def _token_text(token: str | Mapping | None) -> str | None:
  """A special token as config files write it: text, or with attributes."""
  return token.get("content") if isinstance(token, Mapping) else token


def _to_json(value, ensure_ascii=False, indent=None) -> str:
  # Jinja's own filter escapes HTML.
  return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent)


def _raise_exception(message: str):
  raise jinja2.TemplateError(message)


def _strftime_now(form: str) -> str:
  return datetime.datetime.now().strftime(form)
