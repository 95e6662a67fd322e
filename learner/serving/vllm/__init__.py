"""vLLM as a child process. `plugin/` is what it is given to load: weights from folders, and our health routes."""
