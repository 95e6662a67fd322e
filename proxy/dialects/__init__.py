"""Wire formats of model providers: pure translation, one module each, no I/O."""

from proxy.dialects.base import Dialect, StreamWriter
from proxy.dialects.openai_chat import OpenAIChat

__all__ = ["DIALECTS", "Dialect", "OpenAIChat", "StreamWriter"]

DIALECTS: dict[str, Dialect] = {"/v1/chat/completions": OpenAIChat()}
"""Dialects by the path, below the address given to the harness, at which they are spoken."""
