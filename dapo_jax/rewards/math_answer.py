"""The final answer of a response.

The last answer that is marked counts: a complete `\\boxed{}` or `\\fbox{}`,
`Answer:` and its relatives, `####`, `<answer>`. Without a mark a response is
an answer only if it is nothing else. Reasoning inside `<think>` is not read.
Every search is linear in the length of the response.
"""

import re

from dapo_jax.rewards.math_text import closing, is_power
from dapo_jax.rewards.math_units import NOT_NOUNS

# More different boxes than this is a list of guesses.
MAX_BOXES = 8
_MAX_LINE = 30_000
_MAX_MARKS = 50

_BOX = re.compile(r"\\[bf]?box(?:ed)?\s*\{|\\.|[{}]", re.DOTALL)
_BARE_BOX = re.compile(r"\\(?:boxed|fbox)\s*([^\s{}$\\.,]+)")
_JOINED = re.compile(
  r"[\s$,;&.*]*(?:(?:\\(?:quad|qquad|text\s*\{[^{}]*\}|[,;()\[\]])|and|or)"
  r"[\s$,;&*]*){0,4}"
)
_STRONG = (
  r"(?:answers?|ans)[\s*_`)]{0,8}[:\uff1a][\s*_]{0,8}"
  r"|(?:\u7b54\u6848|\u7b54)[\s*_]{0,8}(?:[:\uff1a]|\u662f|\u4e3a|\u70ba)"
  r"[\s*_:\uff1a]{0,8}"
  r"|\#\#\#\#\s{0,4}|<answer>"
)
_WEAK = (
  r"answers?[\s*_]{1,8}(?:to[^.\n:]{1,80}\s)?(?:is|are|=)[\s*_]{0,8}"
  r"(?:(?:therefore|thus|hence|then|simply|just|now|indeed|exactly|so)"
  r"[\s,]{1,4})?(?:[:\uff1a])?[\s*_]{0,8}(?:option\s|choice\s)?"
)
_HEADER = r"answer[\s*_#]{0,8}\n\s{0,8}"
_MARK = re.compile(
  f"(?P<strong>{_STRONG})|(?P<weak>{_WEAK})|(?P<header>{_HEADER})",
  re.IGNORECASE,
)
# Where a mark may begin; finding these first keeps the search fast.
_CUE = re.compile("answer|ans:|\u7b54|####", re.IGNORECASE)
_WORD = re.compile(r"\w|\\\{|[\u221e\u2205]")
_CUES = ("answer", "####", "ans:")
_NOT_MINE = re.compile(
  r"(?:\b(?:this|that|an|no|your|any|wrong|incorrect|previous|first|his|her"
  r"|their|possible)\s+)$",
  re.IGNORECASE,
)
# What a value begins with; "the answer is therefore correct" has none.
_VALUE = re.compile(
  r"(?:[$\\(\[{|+\-\u2212\d.#<\u221a\u03c0\u00bd\u20ac\u00a3]"
  r"|(?!a\s+[a-z])[A-Za-z](?![A-Za-z])|[A-Za-z]{1,3}\s*[=^(<>]"
  r"|(?:pi|sqrt|sin|cos|log|ln|exp|infinity|yes|no|true|false|even|odd|none)"
  r"\b)",
  re.IGNORECASE,
)
_SENTENCE = re.compile(
  r"(?<![A-Z0-9]\.[A-Z])\.(?=\s|\*|$)(?!\s*\.)"
  r"|[\u3002\uff1b\uff0c]|</answer>"
)
_REASON = re.compile(
  r",?\s+(?:(?:because|since|as)\s"
  r"|(?P<condition>which|where|when|whenever|for|given|by)\s).*|,\s*so\s.*",
  re.IGNORECASE | re.DOTALL,
)
# What may follow a reason takes the answer back or adds another one.
_SECOND = re.compile(
  r"\b(?:or|but|not|otherwise|if|else|wrong)\b", re.IGNORECASE
)
_CASES = re.compile(r"[\d=$,]|\band\b|\beven\b|\bodd\b", re.IGNORECASE)
_ASIDE = re.compile(r"\s\((?=[A-Za-z])([^()\d$\\]*)\)\s*$")
_HEDGE = re.compile(
  r"\b(?:or|not|maybe|perhaps|either|and|but|also|wrong|incorrect|false"
  r"|unless|except|if)\b",
  re.IGNORECASE,
)
_SUBJECT = re.compile(
  r"(?:the|so|it|there|we|this|he|she|they|its|therefore|thus|hence|our)\b"
  r"[^=$\\]{0,120}?\s(?:is|are|was|has|have|gets?|equals?|be|were)\s",
  re.IGNORECASE,
)
_PROSE = frozenset(
  "is are was were which as in of from by for when with at on because since "
  "where that after holds works satisfies".split()
)
_PROSE_WORD = re.compile(r"(?<![A-Za-z\\])[A-Za-z]{2,}")
_DISPLAY = (("$$", "$$"), ("\\[", "\\]"), ("\\(", "\\)"), ("$", "$"))


def find_answer(response: str) -> str | None:
  """Finds the final answer in a response.

  Args:
    response: What a model wrote, or a bare answer.

  Returns:
    The text of the answer, still with its formatting; None when the response
    commits to none.
  """
  text = _after_thinking(response)
  box = _last_box(text)
  mark = _last_mark(text, box[0] if box else -1)
  if mark is not None:
    return mark or None
  if box is not None:
    return box[1] or None
  return _bare(text)


def _after_thinking(text: str) -> str:
  if "<think>" not in text and "</think>" not in text:
    return text
  inside, closed, after = text.rpartition("</think>")
  if closed and after.strip() and "<think>" not in after:
    return after
  if not closed or "<think>" in after:
    # Cut off while thinking: only what came before the thought was said.
    return (after if closed else text).partition("<think>")[0]
  return inside.replace("<think>", "\n")


def _last_box(text: str) -> tuple[int, str] | None:
  """Start and content of the last complete box, adjacent boxes joined."""
  if "\\boxed" not in text and "\\fbox" not in text:
    return None
  if text.count("\\boxed") + text.count("\\fbox") == 1:
    start = max(text.rfind("\\boxed"), text.rfind("\\fbox"))
    match = _BOX.match(text, start)
    end = closing(text, match.end() - 1) if match.group()[-1] == "{" else -1
    content = text[match.end() : end].strip() if end > 0 else ""
    if content:
      return start, content
    return _bare_box(text)
  opened, boxes = [], []
  for match in _BOX.finditer(text):
    token = match.group()
    if token == "}":
      if opened:
        start, content = opened.pop()
        if content >= 0:
          while boxes and boxes[-1][0] > start:
            boxes.pop()  # It stood inside this one.
          boxes.append((start, content, match.end()))
    elif token == "{":
      opened.append((match.start(), -1))
    elif token[-1] == "{" and len(token) > 2 and "box" in token:
      is_box = token.startswith(("\\boxed", "\\fbox"))
      opened.append((match.start(), match.end() if is_box else -1))
  found = [
    (start, text[content : end - 1].strip(), end)
    for start, content, end in boxes[-200:]
  ]
  found = [b for b in found if b[1] and b[1] not in ("...", "\\ldots")]
  if not found:
    return _bare_box(text)
  if len({content for _, content, _ in found}) > MAX_BOXES:
    return found[-1][0], ""
  start, content, _ = found[-1]
  parts = [content]
  for before in reversed(found[:-1]):
    if not _JOINED.fullmatch(text, before[2], start):
      break
    start = before[0]
    if before[1] not in parts:
      parts.append(before[1])
  return found[-1][0], ", ".join(reversed(parts))


def _bare_box(text: str) -> tuple[int, str] | None:
  bare = list(_BARE_BOX.finditer(text))
  return (bare[-1].start(), bare[-1].group(1)) if bare else None


def _cues(text: str, after: int):
  """Places where a mark may begin, the last one first."""
  if not text.isascii():
    yield from reversed([m.start() for m in _CUE.finditer(text, after)])
    return
  low = text.lower()
  ends = {cue: low.rfind(cue, after) for cue in _CUES}
  while (start := max(ends.values())) >= 0:
    yield start
    for cue, end in ends.items():
      if end == start:
        ends[cue] = low.rfind(cue, after, start + len(cue) - 1)


def _last_mark(text: str, after: int) -> str | None:
  """What the last mark behind `after` announces.

  Returns:
    The answer, None without a mark, '' where several stand on one line.
  """
  last, line_start, tried = None, 0, 0
  for start in _cues(text, after + 1):
    match = _MARK.match(text, start)
    if match is None or (
      text[start].isascii()
      and text[start].isalpha()
      and start
      and text[start - 1].isalpha()
      and text[start - 1].isascii()
    ):
      continue
    if last is not None and (start < line_start or match.lastgroup != "strong"):
      break
    tried += 1
    if tried > _MAX_MARKS:
      return ""
    content = text[match.end() : match.end() + _MAX_LINE]
    if match.lastgroup == "weak" and (
      _NOT_MINE.search(text[max(0, start - 24) : start])
      or not _VALUE.match(content)
    ):
      continue
    answer = _value_of(content)
    if not _WORD.search(answer):
      continue
    if last is None:
      last = answer
      if match.lastgroup != "strong":
        break
      line_start = text.rfind("\n", 0, start) + 1
      if line_start >= start - 1:
        break
    elif _first_word(answer) != _first_word(last):
      return ""  # A row of answers on one line commits to none of them.
  return last


def _first_word(answer: str) -> str:
  """What tells answers on one line apart; '' where it is prose."""
  word = answer.split(maxsplit=1)[0]
  return word if re.search(r"\d", word) and len(word) < 40 else ""


def _value_of(content: str) -> str:
  """The answer at the beginning of what follows a mark."""
  content = content.lstrip(" \t\r\n*_:\uff1a`>")
  for opening, end_mark in _DISPLAY:
    if content.startswith(opening):
      end = content.find(end_mark, len(opening))
      inside = content[len(opening) : end]
      if (
        end < 0
        or not inside.strip()
        or (opening == "$" and (inside[-1].isspace() or "\n" in inside))
      ):
        continue
      rest = content[end + len(end_mark) :].partition("\n")[0]
      return _with_rest(inside, opening, " ".join(rest.split()))
  if content.startswith("\\begin{"):
    end = content.find("\\end{")
    close = content.find("}", end)
    if end > 0 and close > 0:
      return content[: close + 1]
  line = content.partition("\n")[0]
  return _cut(line)


def _with_rest(inside: str, opening: str, rest: str) -> str:
  """A formula and what stands behind it on its line."""
  bold = rest.lstrip("*_` ")
  plain = _SENTENCE.split(bold, maxsplit=1)[0].strip()
  if not plain and not re.match(r"\.\d", bold):
    return inside
  if re.search(r"[\d$\\=+]", plain) or _HEDGE.search(plain):
    return _cut(f"${inside}$ {rest.strip()}").replace("$", " ")
  reason = _without_reason(" " + plain).strip(" *_,")
  reason = _ASIDE.sub("", " " + reason).strip()
  words = reason.split()
  if not words or words[0].lower() in _PROSE:
    return inside
  if len(words) > 3 and not NOT_NOUNS.match(words[0].lower()):
    return inside
  return (
    f"{inside} \\text{{ {reason} }}"
    if reason.isascii() and (re.fullmatch(r"[A-Za-z ./]+", reason))
    else inside + " " + reason
  )


def _without_reason(line: str) -> str:
  """`17 because ...` is 17; `5 for even n, 7 for odd n` stays as it is."""
  match = _REASON.search(line)
  if match is None or _SECOND.search(match.group()):
    return line
  if match.group("condition") and _CASES.search(match.group().lstrip(", ")):
    return line
  return line[: match.start()]


def _cut(line: str) -> str:
  """A line without the prose behind its answer."""
  line = " ".join(line.split()).lstrip("*_` ")
  match = _SENTENCE.search(line)
  while match and match.start() == 0:
    match = _SENTENCE.search(line, match.end())
  if match:
    line = line[: match.start()]
  if not is_power(line):
    line = line.replace("**", "")
  line = _without_reason(line).strip()
  aside = _ASIDE.search(line)
  if aside and not _HEDGE.search(aside.group(1)):
    line = line[: aside.start()]
  subject = _SUBJECT.match(line)
  if subject and not _HEDGE.search(subject.group()):
    line = line[subject.end() :]
  return line.strip(" \t*_`,")


def _bare(text: str) -> str | None:
  """A response which is nothing but an answer."""
  text = text.strip()
  if "\n" in text.strip("$ \n") and "\\begin" not in text:
    return None
  if "\\boxed" in text or "\\fbox" in text:
    return None  # A box that is empty or cut off.
  if not _WORD.search(text) or len(_PROSE_WORD.findall(text[:2000])) > 5:
    return None
  return text
