"""Joins a rollout's completions and life cycle into one trajectory, exactly once.

`tree` and `samples` are what a trajectory is made of, `trajectory` decides whether it may be trained, `state` says
when a rollout is complete and what a restart must read again; all four are pure. `partition` and `service` do the I/O.
"""
