"""What a command says, in one line, where it can't even start: a package is missing, or an entry in tasks.py is wrong.

Follows sys.excepthook. A command imports this before anything that may be missing; its `main` never comes to run then,
so what fails is said here. Imported from anywhere else, this changes nothing.
"""

import os
import sys
from pathlib import Path
from types import TracebackType

from errors import InputError

ROOT = Path(__file__).resolve().parent


def explain(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
    """Says an exception that ends the program: what the user can mend or did in one line, the rest as Python does."""
    name = (error.name or "").split(".")[0] if isinstance(error, ModuleNotFoundError) else ""
    if name and not (ROOT / f"{name}.py").exists():
        error = InputError(
            f"{name} is not installed in this Python ({sys.executable}): run ./setup.sh, then . .venv/bin/activate, "
            "or put ./setup.sh before the command"
        )
    if isinstance(error, KeyboardInterrupt):
        print("stopped", file=sys.stderr)
    elif isinstance(error, InputError):
        print(f"error: {error}", file=sys.stderr)
    else:
        sys.__excepthook__(kind, error, traceback)


program = getattr(sys.modules["__main__"], "__file__", None)
if program and Path(program).resolve().parent == ROOT:
    sys.excepthook = explain
    sys.stderr = sys.stderr or open(os.devnull, "w")  # closed before the program began: a progress bar would end it
