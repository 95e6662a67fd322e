"""The name of a weight version on the engine's API: `<policy_id>@<version>`, for example `policy@12`."""


def weight_version(policy_id: str, version: int) -> str:
    """What an engine calls this version of the policy."""
    return f"{policy_id}@{version}"


def parse_weight_version(name: str, policy_id: str) -> int | None:
    """The version in an engine's name for its weights; None if they are not this policy's."""
    prefix, _, number = name.rpartition("@")
    return int(number) if prefix == policy_id and number.isascii() and number.isdecimal() else None
