"""What the proxy remembers of each rollout attempt: its recorded conversations, its counters, its calls in flight."""
