"""How a problem is put to a model, and what an answer to it looks like."""

from typing import NamedTuple


class Template(NamedTuple):
  """Messages of a prompt with the contract that they state.

  Attributes:
    messages: (role, content) each; `{problem}` is filled in.
    example: a response in the form that they ask for.
    answer: its answer: the reward rule has to find it there.
  """

  messages: tuple[tuple[str, str], ...]
  example: str
  answer: str


_STEPS = "{problem}\n\nReason step by step. "

TEMPLATES: dict[str, Template] = {
  "answer_line": Template(
    (
      (
        "user",
        _STEPS + "Give the final answer on a last line of its own, in the "
        "form: Answer: 34",
      ),
    ),
    "There are 17 pairs, and 17 x 2 = 34.\nAnswer: 34",
    "34",
  ),
  "boxed": Template(
    (("user", _STEPS + "Put the final answer into \\boxed{}."),),
    "There are 17 pairs, so the answer is $\\boxed{34}$.",
    "34",
  ),
  # Problems that say themselves how to answer, as DAPO-Math-17k's do.
  "plain": Template(
    (("user", "{problem}"),),
    "There are 17 pairs, and 17 x 2 = 34.\nAnswer: 34",
    "34",
  ),
}


def find(name: str, own: Template | str) -> Template:
  """The template of a name, of a text with {problem}, or the data set's own.

  Args:
    name: "" for the data set's own, a key of TEMPLATES, or the text of a user
      message with {problem} in it. Such a text states its contract by itself:
      if it speaks of \\boxed, the example is a box, else an answer line.
    own: a template, or the key of one.

  Raises:
    ValueError: no such name, and no text either.
  """
  if not name:
    return TEMPLATES[own] if isinstance(own, str) else own
  if name in TEMPLATES:
    return TEMPLATES[name]
  if "{problem}" not in name:
    raise ValueError(
      f"data.template={name!r} is no template; choose from "
      f"{', '.join(TEMPLATES)}, or give a text with {{problem}} in it"
    )
  like = TEMPLATES["boxed" if "\\boxed" in name else "answer_line"]
  return like._replace(messages=(("user", name),))
