"""The local stack: what runs as child processes on one machine."""
