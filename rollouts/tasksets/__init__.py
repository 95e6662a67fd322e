"""Task sets: tasks from files or from generators, checked, and produced to tasks.v1."""
