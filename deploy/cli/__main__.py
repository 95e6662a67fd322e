"""`python -m deploy.cli`: the `forgestream` command without the script."""

from deploy.cli import main

main()
