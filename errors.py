"""The one error a user sees: what they gave cannot be used.

Follows sysexits' idea of a data error: the fault is in a file or an option, not in the program, so no traceback helps.
"""

import re

# What str.splitlines splits at, and tabs.
BREAKS = "\t\n\v\f\r\x1c-\x1e\x85\u2028\u2029"


def quoted(value: object) -> str:
    """A value as a message quotes it, at most 60 characters of it, which may end in `...`."""
    text = repr(value[:61] if isinstance(value, str) else value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def whole_number(text: str, most: int, least: int = 0) -> int | None:
    """The number from `least` to `most` that a text of the digits 0 to 9 stands for; None for any other text.

    int() takes digits of every script and `1_0`, which are slips of whoever typed them, and fails on 5,000 digits.
    """
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdecimal() and len(digits) < 100):
        return None
    return number if least <= (number := int(text)) <= most else None


class InputError(Exception):
    """Something the user gave cannot be used.

    `str(error)` is ONE line: the file, the line in it, the value found, the value wanted, and what to do next. Commands
    catch it in `main`, print `error: ...` on stderr and exit with 1.
    """

    def __init__(self, message: object):
        # A message may quote a file's content or a library's own many-line error: it stays one line all the same. What
        # breaks a line goes, and tabs; not two spaces, which a folder may have in its name.
        super().__init__(re.sub(rf" *[{BREAKS}]\s*", " ", str(message)).strip())
