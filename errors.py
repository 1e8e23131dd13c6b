"""The one error a user sees: what they gave cannot be used.

Follows sysexits' idea of a data error: the fault is in a file or an option, not in the program, so no traceback helps.
"""


def quoted(value: object) -> str:
    """A value as a message quotes it, at most 60 characters of it, which may end in `...`."""
    text = repr(value[:61] if isinstance(value, str) else value)
    return text if len(text) <= 60 else f"{text[:57]}..."


class InputError(Exception):
    """Something the user gave cannot be used.

    `str(error)` is ONE line: the file, the line in it, the value found, the value wanted, and what to do next. Commands
    catch it in `main`, print `error: ...` on stderr and exit with 1.
    """

    def __init__(self, message: object):
        # A message may quote a file's content or a library's own many-line error: it stays one line all the same.
        super().__init__(" ".join(str(message).split()))
