"""Units, currencies and counted nouns behind a number."""

import re

from dapo_jax.rewards.math_brackets import Brackets

# One canonical name for each unit; the factor between units is not used, so
# that 5 km and 5000 m stay different answers.
_UNITS = """
percent:% pct; deg:degree degrees degs; dollar:dollars usd buck bucks
cent:cents; euro:euros eur; pounds:pound gbp lb lbs; yen:jpy; rupee:rupees rs
mm:millimeter millimeters millimetre millimetres
cm:centimeter centimeters centimetre centimetres cms
m:meter meters metre metres; km:kilometer kilometers kilometre kilometres kms
in:inch inches; ft:foot feet; yd:yard yards; mi:mile miles
mg:milligram milligrams; g:gram grams gm; kg:kilogram kilograms kgs
oz:ounce ounces; ton:tons tonne tonnes
ml:milliliter milliliters millilitre millilitres
l:liter liters litre litres; gal:gallon gallons
s:sec secs second seconds; min:minute minutes mins; h:hour hours hr hrs
day:days; week:weeks; month:months; year:years yr yrs
mph:mph; kmh:kmh kph; rad:radian radians; unit:units; people:person persons
way:ways; pm:pm; am:am; hz:hertz; n:newton newtons; j:joule joules
w:watt watts; v:volt volts; pa:pascal pascals; k:kelvin; celsius:celsius
fahrenheit:fahrenheit; acre:acres; child:children; man:men; woman:women
cup:cups; old:old; dime:dimes; nickel:nickels; penny:pennies
"""
UNITS = {}
for _entry in _UNITS.replace("\n", ";").split(";"):
  if ":" in _entry:
    _name, _words = _entry.strip().split(":")
    UNITS.update({_word: _name for _word in (_name, *_words.split())})
# Letters which are units after a number and a space, variables elsewhere.
LETTER_UNITS = frozenset("mgshLlVNJWK")
# Words which look like a counted noun and change the value or take it back.
NOT_NOUNS = re.compile(
  r"^(?:not|no|or|and|is|are|was|if|but|wrong|maybe|perhaps|about|than"
  r"|more|less|least|most|over|under|plus|minus|times|squared|cubed|half"
  r"|halves|quarters?|thirds?|tenths?|[a-z]*(?:ths|ieths)|fold|factorials?"
  r"|hundreds?|thousands?|millions?|billions?|trillions?|dozens?|roots?"
  r"|pi|mod|modulo|base|to|from|between|either|guess|digits|minuses|this"
  r"|too|many|few|enough|wrong|incorrect|false|unless|except|versus|vs"
  r"|approx|does|has|pluses|halfs|one|two|three"
  r"|four|five|six|seven|eight|nine|ten|divided|multiplied|remainder|r"
  r"|\w*s?(?:less))$"
)
_ENDS = frozenset(
  (
    ",",
    ";",
    ")",
    "]",
    "}",
    "=",
    "<",
    ">",
    "<=",
    ">=",
    "|",
    "!=",
    "&",
    "\\",
    "le",
    "leq",
    "ge",
    "geq",
    "cup",
    "ne",
    "neq",
    "approx",
    "in",
    "==",
  )
)
_PIECE = re.compile(r"[A-Za-z.]+|\^|\d|/|%")


def unit_name(pieces: list[str], in_text: bool) -> str | None:
  """Canonical name of a unit, or None when the pieces are not one.

  Args:
    pieces: Words, `^`, exponents and `/` which stand after a number.
    in_text: Whether they stood in `\\text{}`; there any noun counts.

  Returns:
    A name which is the same for `square cm`, `cm^2` and `centimeters squared`.
  """
  parts, part = [], []
  for piece in pieces + ["/"]:
    if piece in ("/", "per") and (part or not parts):
      parts.append(_unit_part(part, in_text))
      part = []
    else:
      part.append(piece)
  return "/".join(parts) if parts and all(parts) else None


def _unit_part(pieces: list[str], in_text: bool) -> str | None:
  words = [p.lower().strip(".") for p in pieces]
  power = ""
  if len(words) > 2 and words[-2] == "^":
    power, words = words[-1], words[:-2]
  if words and words[0] in ("square", "sq", "cubic", "cu") and len(words) > 1:
    power, words = "23"[words[0][0] == "c"], words[1:]
  elif words and words[-1] in ("squared", "cubed") and len(words) > 1:
    power, words = "23"[words[-1] == "cubed"], words[:-1]
  if not words or len(words) > 4 or any(map(NOT_NOUNS.match, words)):
    return None
  for index, word in enumerate(words):
    if word in UNITS or (in_text and len(word) > 1):
      continue
    # Elsewhere only a counted noun, perhaps after an adjective.
    counted = len(word) > 3 and word.endswith("s")
    if len(word) < 4 or not (counted or index < len(words) - 1):
      return None
  return " ".join(UNITS.get(w, w) for w in words) + power


class Units(Brackets):
  """The part of the grammar which recognizes a unit at an expression's end."""

  def degrees(self) -> bool:
    """Takes `^\\circ` or `^{\\circ}`."""
    if self.sees_sym("^") and self.peek(1)[:2] == ("cmd", "circ"):
      self.at += 2
      return True
    if self.sees_sym("^") and [
      t.value for t in (self.peek(1), self.peek(2), self.peek(3))
    ] == ["{", "circ", "}"]:
      self.at += 4
      return True
    return False

  def unit(self) -> str | None:
    found = self.unit_at()
    if found is None:
      return None
    name, self.at = found
    return name

  def unit_at(self) -> tuple[str, int] | None:
    """Name and end of a unit which closes the expression here, if one does."""
    kind, value, _ = self.peek()
    if kind == "cmd" and value == "%":
      name, end = "percent", self.at + 1
    elif kind == "sym" and value == "%":
      name, end = "percent", self.at + 1
    elif kind == "cmd" and value in ("degree", "dollar", "euro"):
      name, end = ("deg" if value == "degree" else value), self.at + 1
    elif kind == "sym" and value == "^":
      start = self.at
      name = "deg" if self.degrees() else None
      end, self.at = self.at, start
      scale = self.tokens[end]
      if name and scale.value.strip() in ("C", "F", "K"):
        name, end = "deg " + scale.value.strip(), end + 1
    elif kind in ("word", "text"):
      name, end = self.unit_words()
    else:
      return None
    after = self.tokens[end]
    if name and (
      after.kind in ("end", "join")
      or (after.kind in ("sym", "cmd") and after.value in _ENDS)
    ):
      return name, end
    return None

  def unit_words(self) -> tuple[str | None, int]:
    """Name and end of the words, powers and slashes which begin here."""
    pieces, at, in_text = [], self.at, False
    while len(pieces) < 12:
      kind, value, spaced = self.tokens[at]
      if kind == "text":
        in_text = True
        if _PIECE.sub("", value).strip():
          break
        pieces += _PIECE.findall(value)
      elif kind == "word":
        if (
          len(value) == 1
          and not in_text
          and (
            value not in LETTER_UNITS
            or not (
              pieces[-1:] == ["/"]
              or spaced
              and self.tokens[at - 1].kind == "num"
            )
          )
        ):
          break
        pieces.append(value)
      elif pieces and kind == "sym" and value in "^/":
        pieces.append(value)
      elif pieces and pieces[-1] == "^" and kind == "num":
        pieces.append(value)
      elif (
        pieces
        and pieces[-1] == "^"
        and kind == "sym"
        and value == "{"
        and self.tokens[at + 1].kind == "num"
        and self.tokens[at + 2][:2] == ("sym", "}")
      ):
        pieces.append(self.tokens[at + 1].value)
        at += 2
      else:
        break
      at += 1
    return unit_name(pieces, in_text), at
