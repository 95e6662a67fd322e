"""`react`: the project's own small agent, as process and as harness pack."""
