"""The published recipe's rule: string equality of a normal form.

What DAPO's own runs were scored with (arXiv:2503.14476 and its code release):
the last 300 characters, the last `Answer:` line, and the normal form which
Minerva's evaluation introduced (arXiv:2206.14858, appendix). It is kept as it
was, weaknesses included, to reproduce published numbers; `**Answer:** 12`,
`12.` and `12.0` are wrong for 12.
"""

import re

WINDOW_CHARS = 300
MAX_GOLD_CHARS = 4000  # no answer in the window is as long

_ANSWER = re.compile(r"answer\s*:\s*([^\n]+)", re.IGNORECASE)
_REPLACED = (
  ("an ", ""),
  ("a ", ""),
  (".$", "$"),
  ("\\$", ""),
  ("\\ ", ""),
  (" ", ""),
  ("mbox", "text"),
  (",\\text{and}", ","),
  ("\\text{and}", ","),
  ("\\text{m}", "\\text{}"),
)
_REMOVED = (
  "square",
  "ways",
  "integers",
  "dollars",
  "mph",
  "inches",
  "hours",
  "km",
  "units",
  "\\ldots",
  "sue",
  "points",
  "feet",
  "minutes",
  "digits",
  "cents",
  "degrees",
  "cm",
  "gm",
  "pounds",
  "meters",
  "meals",
  "edges",
  "students",
  "childrentickets",
  "multiples",
  "\\text{s}",
  "\\text{.}",
  "\\text{\ns}",
  "\\text{}^2",
  "\\text{}^3",
  "\\text{\n}",
  "\\text{}",
  "\\mathrm{th}",
  "^\\circ",
  "^{\\circ}",
  "\\;",
  ",\\!",
  "{,}",
  '"',
  "\\dots",
)
_UNWRAPPED = tuple(
  re.compile(p)
  for p in (
    r"\\text\{(.*?)\}",
    r"\\textbf\{(.*?)\}",
    r"\\overline\{(.*?)\}",
    r"\\boxed\{(.*)\}",
  )
)
_MATH = re.compile(r"\$(.*?)\$")
_FRACTION = re.compile(r"frac([^{])(.)")
_ROOT = re.compile(r"sqrt([^{])")


def find_answer(response: str) -> str | None:
  """The text behind the last `Answer:` of the last 300 characters."""
  matches = _ANSWER.findall(response[-WINDOW_CHARS:])
  return matches[-1] if matches else None


def normal_form(answer: str) -> str:
  """The normal form under which two answers are compared as strings.

  Args:
    answer: An answer, at most a line.

  Returns:
    The string after the published list of replacements, in its order.
  """
  text = answer.split("=")[-1]
  for old, new in _REPLACED:
    text = text.replace(old, new)
  for word in _REMOVED:
    text = text.replace(word, "")
  math = _MATH.search(text)
  if math:
    text = f"${math.group(1)}$"
  for wrapper in _UNWRAPPED:
    text = wrapper.sub(r"\1", text)
  text = _FRACTION.sub(r"frac{\1}{\2}", text)
  text = _ROOT.sub(r"sqrt{\1}", text)
  text = text.replace("$", "")
  if text.replace(",", "").isdigit():
    text = text.replace(",", "")
  return text.strip()


def equal(prediction: str, answer: str) -> bool:
  """Whether two answers have the same normal form."""
  if len(answer) > MAX_GOLD_CHARS:  # some patterns take quadratic time
    return False
  return normal_form(prediction) == normal_form(answer)
