"""Run ``delegraph doctor`` without loading a plugin into this process.

``python -m delegraph_devkit.doctor`` works if a plugin crashes or hangs every command.
"""

import sys

from delegraph.discovery.import_by_name import installed_path

if __name__ == "__main__":
    # -m puts the working directory first; a torch.py there would replace torch
    sys.path[:] = installed_path()
    from delegraph.cli import find_command, run
    from delegraph.plugin import CommandSpec

    find_command.BUILT_IN["doctor"] = CommandSpec(
        "doctor", "delegraph_devkit.cli.doctor:Doctor"
    )
    sys.argv.insert(1, "doctor")
    run()
