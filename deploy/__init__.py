"""How the parts become a running system: the `forgestream` command and the local stack."""
