"""``python -m delegraph_devkit.doctor``: as ``delegraph doctor``, but this process loads
no plugin to find the command.

So it also works where a plugin crashes or hangs every command.
"""

import sys

from delegraph.discovery.loading import installed_path

if __name__ == "__main__":
    # -m puts the working directory first, where a torch.py would be imported as torch
    sys.path[:] = installed_path()
    from delegraph.cli import lookup, run
    from delegraph.plugin import CommandSpec

    lookup.BUILT_IN["doctor"] = CommandSpec(
        "doctor", "delegraph_devkit.cli.doctor:Doctor"
    )
    sys.argv.insert(1, "doctor")
    run()
