"""What every service shares: settings, logs, health, metrics, telemetry, and an orderly start and stop.

Import from the modules: settings are read by commands that must start fast and need nothing else of it.
"""
