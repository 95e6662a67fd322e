"""Trajectories into gradient steps, gradient steps into policy versions, versions into engines.

Only this folder knows torch, veRL and transformers, and its `settings.py` none of them: commands start fast.
"""
