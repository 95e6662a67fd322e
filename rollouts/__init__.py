"""Tasks become rollouts here: task sets, harness packs, runtimes, verifiers, and the launcher that joins them."""
