"""The root of every error of the project, and the errors of the wire contract.

ForgestreamError
├── SchemaError            bytes or schemas that do not fit the contract
└── (one branch a boundary, in each folder's own errors.py)

An error says what happened, where, and how to mend it; a command prints it as one line and exits with `exit_status`.
"""


class ForgestreamError(Exception):
    """Something that a person can mend; the message says how."""

    exit_status = 1


class SchemaError(ForgestreamError):
    """A value that is not what its topic promises."""
