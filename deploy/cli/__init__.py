"""The `forgestream` command: one module a group of commands, each imported cheaply."""

import sys


def main() -> None:
    """Entry point of the `forgestream` script; ends the process with the command's exit status."""
    from deploy.cli.app import run

    sys.exit(run(sys.argv[1:]))
