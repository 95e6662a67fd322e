"""The way to the engines: vLLM's token API, ids in and ids out."""
