"""Runs the command line for ``python -m delegraph``."""

import sys

from .discovery.import_by_name import installed_path

if __name__ == "__main__":
    # -m puts the working directory first, where a torch.py would be imported as torch
    sys.path[:] = installed_path()
    from .cli import run

    run()
