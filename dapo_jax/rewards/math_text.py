"""One spelling for the many ways of writing the same mathematics.

`clean` turns Unicode signs, Markdown, math delimiters and LaTeX layout into
the plain LaTeX which `math_parse` reads. It never interprets anything: what
it does not know it leaves alone. Every pattern is linear in the text.
"""

import re
import unicodedata

_SIGNS = {
  "\u2212": "-",
  "\u2013": "-",
  "\u2014": "-",
  "\u2010": "-",
  "\u2011": "-",
  "\u2012": "-",
  "\u00d7": r"\times ",
  "\u00b7": r"\cdot ",
  "\u22c5": r"\cdot ",
  "\u2217": "*",
  "\u00f7": "/",
  "\u2215": "/",
  "\u2044": "/",
  "\u221e": r"\infty ",
  "\u2264": r"\le ",
  "\u2265": r"\ge ",
  "\u2a7d": r"\le ",
  "\u2a7e": r"\ge ",
  "\u2260": r"\ne ",
  "\u2248": r"\approx ",
  "\u222a": r"\cup ",
  "\u2229": r"\cap ",
  "\u2208": r"\in ",
  "\u2216": r"\setminus ",
  "\u2205": r"\emptyset ",
  "\u00b0": r"^\circ ",
  "\u00b1": r"\pm ",
  "\u2213": r"\mp ",
  "\u2026": r"\ldots ",
  "\u22ef": r"\ldots ",
  "\u2223": "|",
  "\u2032": "'",
  "\u211d": r"\mathbb{R}",
  "\u2124": r"\mathbb{Z}",
  "\u2115": r"\mathbb{N}",
  "\u27e8": r"\langle ",
  "\u27e9": r"\rangle ",
  "\u2308": r"\lceil ",
  "\u2309": r"\rceil ",
  "\u230a": r"\lfloor ",
  "\u230b": r"\rfloor ",
  "\u3002": ".",
  "\u3001": ",",
  "\u00a0": " ",
  "\u3000": " ",
  "\u2009": r"\,",
  "\u202f": r"\,",
  "\u200a": r"\,",
  "\u2007": r"\,",
  "\u200b": "",
  "\u200c": "",
  "\u200d": "",
  "\u2060": "",
  "\ufeff": "",
  "\u201c": '"',
  "\u201d": '"',
  "\u2018": "'",
  "\u2019": "'",
  "\u548c": " and ",
  "\u6216\u8005": " or ",
  "\u6216": " or ",
  "\u22a5": r"\perp ",
  "\u2227": " and ",
  "\u2228": " or ",
  "\u20ac": r"\euro ",
  "\u00a3": r"\pounds ",
  "\u00a5": r"\yen ",
}
for _i, _name in enumerate(
  "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi"
  " omicron pi rho varsigma sigma tau upsilon phi chi psi omega".split()
):
  _SIGNS[chr(0x3B1 + _i)] = f"\\{_name} "
_SIGNS.update(
  {
    "\u0394": r"\Delta ",
    "\u03a9": r"\Omega ",
    "\u03a3": r"\Sigma ",
    "\u03a6": r"\Phi ",
    "\u0393": r"\Gamma ",
  }
)
_UNICODE = re.compile(
  "|".join(sorted(map(re.escape, _SIGNS), key=len, reverse=True))
)
_SUPER = dict(zip("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ⁿ", "0123456789+-n"))
_SUB = dict(zip("₀₁₂₃₄₅₆₇₈₉", "0123456789"))
_SUPER_RUN = re.compile(f"[{''.join(_SUPER)}]+")
_SUB_RUN = re.compile(f"[{''.join(_SUB)}]+")
_FULL_WIDTH = re.compile("[\uff01-\uff5e\ufe63\ufe68-\ufe6b]")
_VULGAR = re.compile("[\u00bc-\u00be\u2150-\u215e]")
_OVERLINED = re.compile("(?:[0-9][\u0305\u0304])+")
_ROOTS = re.compile("([\u221a\u221b\u221c])\\s*([0-9]+|[A-Za-z])?")

_ENV = re.compile(r"\\begin\s*\{")
_DELIMITERS = re.compile(r"\\\\|\\[()\[\]]")
_DOUBLED = re.compile(r"\\\\(?=[A-Za-z(){}\[\]%$])")
_SIZE = re.compile(
  r"\\(?:left|right)\s*\.|\\(?:left|right|[bB]ig{1,2}[lrm]?|displaystyle"
  r"|textstyle|scriptstyle|limits|nolimits|mathstrut|strut|ensuremath"
  r"|large|Large|boldmath|normalsize|small|tiny|hfill|newline)(?![A-Za-z])"
)
_SPACE = re.compile(
  r"\\(?:quad|qquad|enspace|thinspace)(?![A-Za-z])"
  r"|(?<!\\)\\[;:> \n]|~"
)
_PHANTOM = re.compile(r"\\[hv]?(?:phantom|space)\*?\s*\{[^{}]*\}")
_THIN = re.compile(r"(?<!\\)\\[,!]")
_GROUPS = re.compile(
  r"(?<![\d.])\d{1,3}(?:(?:\\,|\{,\}|,?\\!,?|\{,\\!\})"
  r"\d{3})+(?!\d)"
)
_SPACED = re.compile(r"(?<![\d.,])[1-9]\d{0,2}(?: \d{3})+(?![\d/])(?! ?/)")
_FRACTION = re.compile(r"\\[dtc]frac(?![A-Za-z])")
_BINOMIAL = re.compile(r"\\[dt]binom(?![A-Za-z])")
_FONT = re.compile(
  r"\\(?:mathbf|boldsymbol|bm|mathit|mathsf|mathcal|mathnormal|vec|pmb"
  r"|textcolor\s*\{[^{}]*\}|color\s*\{[^{}]*\})(?![A-Za-z])"
)
_OPERATOR = re.compile(r"\\(?:operatorname\*?|mathop)\s*\{\s*([A-Za-z]+)\s*\}")
_TAG = re.compile(r"</?(?:answer|think|strong|em|br)\s*/?>", re.IGNORECASE)
_WRAPPED = re.compile(
  r"\\(?:boxed|fbox|text|textbf|textit|textrm|mathrm|mbox|mathbf|underline"
  r"|emph|bf|rm)\s*\{"
)
_INFIX = re.compile(r"\\(?:over|choose)(?![A-Za-z])")
_ROW_GAP = re.compile(r"\\\\\s*\[[\d.]+\s*[a-z]{2}\]")
# Chinese counters, except those which scale, negate or join.
_COUNTER = re.compile(
  "(?<=[\\d}])\\s*(?:(?![\u5341\u767e\u5343\u4e07\u4ebf\u534a\u500d\u5206\u6210\u53cc\u6253\u4e0d\u975e\u7ea6\u5ea6])[\u4e00-\u9fff]){1,4}$"
)
_FINAL = " \t\r\n.,;:"


def _unicode(text: str) -> str:
  if text.isascii():
    return text
  text = _SUPER_RUN.sub(
    lambda m: "^{" + "".join(map(_SUPER.get, m.group())) + "}", text
  )
  text = _SUB_RUN.sub(
    lambda m: "_{" + "".join(map(_SUB.get, m.group())) + "}", text
  )
  text = _FULL_WIDTH.sub(
    lambda m: unicodedata.normalize("NFKC", m.group()), text
  )
  text = _VULGAR.sub(
    lambda m: "\\frac{{{}}}{{{}}}".format(
      *unicodedata.normalize("NFKC", m.group()).split("\u2044")
    ),
    text,
  )
  text = _OVERLINED.sub(lambda m: "\\overline{" + m.group()[::2] + "}", text)
  orders = {"\u221a": "", "\u221b": "[3]", "\u221c": "[4]"}
  text = _ROOTS.sub(
    lambda m: (
      f"\\sqrt{orders[m.group(1)]}"
      + (f"{{{m.group(2)}}}" if m.group(2) else "")
    ),
    text,
  )
  text = _UNICODE.sub(lambda m: _SIGNS[m.group()], text)
  # Digits of other scripts are digits; int() would read them, so spell them.
  return "".join(
    str(unicodedata.decimal(c, c)) if not c.isascii() else c for c in text
  )


def _dollars(text: str) -> str:
  """`$` is a delimiter when paired and a currency when it stands alone."""
  if "$" not in text:
    return text
  text = text.replace(r"\$", r"\dollar ")
  if text.count("$") % 2 and re.search(r"\$\s*-?[\d.]", text):
    text = re.sub(r"\$(?=\s*-?[\d.])", r"\\dollar ", text, count=1)
  elif re.fullmatch(r"\$\s*[\d.,]+\s*(?:,|and|or)\s*\$\s*[\d.,]+", text):
    return text.replace("$", r"\dollar ")
  return text.replace("$", " ")


def closing(text: str, start: int) -> int:
  """Index of the brace which closes the one at `start`, or -1."""
  depth = 0
  for match in re.finditer(r"\\.|[{}]", text[start:], re.DOTALL):
    if match.group() == "{":
      depth += 1
    elif match.group() == "}":
      depth -= 1
      if depth == 0:
        return start + match.start()
  return -1


def unwrap(text: str) -> str:
  """Removes what encloses the whole of `text`: boxes, text, braces, bold."""
  for _ in range(8):  # Deeper wrapping than this is not an honest answer.
    text = text.strip()
    match = _WRAPPED.match(text)
    if match and closing(text, match.end() - 1) == len(text) - 1:
      text = text[match.end() : -1]
    elif (
      text.startswith("{")
      and closing(text, 0) == len(text) - 1
      and (not _INFIX.search(text))
    ):
      text = text[1:-1]
    elif len(text) > 4 and text[:2] == text[-2:] and text[:2] in ("**", "__"):
      text = text[2:-2]
    elif len(text) > 2 and text[0] == text[-1] and text[0] in '*`"':
      text = text[1:-1]
    else:
      break
  return text


def clean(text: str) -> str:
  """Rewrites an answer in plain LaTeX without layout.

  Args:
    text: The answer as found in a response or in a data set.

  Returns:
    The same mathematics, spelled as `math_parse` reads it.
  """
  text = _unicode(text)
  if not text.isascii():
    text = _COUNTER.sub("", text)
  if "<" in text:
    text = _TAG.sub(" ", text)
  if "\\" in text and not _ENV.search(text):
    text = _DOUBLED.sub(r"\\", text)
  text = text.replace("**", "^") if is_power(text) else text.replace("**", "")
  text = _dollars(text)
  if "\\" in text:
    text = _ROW_GAP.sub(r"\\\\", text)
    text = _DELIMITERS.sub(
      lambda m: m.group() if m.group() == "\\\\" else " ", text
    )
    text = _SIZE.sub(" ", text)
    text = _PHANTOM.sub(" ", text)
    text = _GROUPS.sub(lambda m: re.sub(r"\D", "", m.group()), text)
    text = _THIN.sub(" ", text)
    text = _SPACE.sub(" ", text)
    text = _FRACTION.sub(r"\\frac", text)
    text = _BINOMIAL.sub(r"\\binom", text)
    text = _OPERATOR.sub(r"\\\1 ", text)
    text = _FONT.sub(" ", text)
  else:
    text = _GROUPS.sub(lambda m: re.sub(r"\D", "", m.group()), text)
  text = _SPACED.sub(lambda m: m.group().replace(" ", ""), text)
  text = text.replace("{,}", ",").strip()
  text = text[:1] + text[1:].replace("~", " ")  # In front it says "about".
  return unwrap(_stop(unwrap(_stop(text))))


def is_power(text: str) -> bool:
  """Python's `**` joins two operands; Markdown's stands at a word's edge."""
  return bool(re.search(r"[\w)}\]]\s*\*\*\s*[\w({\\-]", text)) and not (
    text.lstrip().startswith("**")
  )


def _stop(text: str) -> str:
  text = text.strip()
  # `0.` and `12.` keep their meaning without the point; a lone backslash is
  # what is left of `\ ` at the end.
  return text.rstrip(_FINAL + "\\").lstrip(" \t\r\n,;:")
