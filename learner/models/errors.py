"""Errors of making a model folder.

ForgestreamError
└── ModelError       the folder cannot be made; the message says why and how to mend it
"""

from schemas import ForgestreamError


class ModelError(ForgestreamError):
    """A model folder that cannot be made."""
