"""Where rollouts run. `base` is the protocol, `local` runs them as processes of this machine."""
