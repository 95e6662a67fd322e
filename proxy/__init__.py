"""The tap: harnesses speak to it as to their model provider, and every completion goes to the log."""
