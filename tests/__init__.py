"""The tests. A package, because a dependency installs another one of this name."""
