"""stub"""

import typer


def register(app: typer.Typer) -> None:
    """Stub."""
