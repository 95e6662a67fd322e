"""The main job on real input, from tasks to a better policy, told in one table."""
