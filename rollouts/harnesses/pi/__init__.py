"""`pi`: the npm package @mariozechner/pi-coding-agent, a third-party coding agent, as harness pack."""
