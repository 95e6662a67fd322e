"""What identifies a set of weights: `Policy.weights_digest`, written by the learner, checked by each follower."""

import hashlib
from pathlib import Path

from schemas import ForgestreamError

_CHUNK_BYTES = 1 << 20


class WeightsError(ForgestreamError):
    """A folder whose weights are missing, unreadable or not what was announced."""


def weight_files(folder: Path) -> list[Path]:
    """The weight files of a model folder: `*.safetensors` directly inside it, in the order of their names' bytes.

    Raises:
        WeightsError: no such folder, or no weight file in it.
    """
    try:
        files = [path for path in folder.iterdir() if path.suffix == ".safetensors" and path.is_file()]
    except OSError as error:
        raise WeightsError(f"weights folder {folder} cannot be read: {error.strerror}") from error
    if not files:
        raise WeightsError(f"weights folder {folder} holds no *.safetensors file")
    return sorted(files, key=lambda path: path.name.encode())


def weights_digest(folder: Path) -> str:
    """sha256 in hex over the folder's weight files.

    The rule: for each of `weight_files(folder)` in turn, the hash takes the name in UTF-8, a zero byte, the size as
    8 bytes little-endian, and the file's bytes. Names and sizes are in it so that no two folders share a digest.

    Raises:
        WeightsError: the folder or one of its files cannot be read.
    """
    digest = hashlib.sha256()
    for path in weight_files(folder):
        try:
            digest.update(path.name.encode() + b"\0" + path.stat().st_size.to_bytes(8, "little"))
            with path.open("rb") as file:
                while chunk := file.read(_CHUNK_BYTES):
                    digest.update(chunk)
        except OSError as error:
            raise WeightsError(f"weight file {path} cannot be read: {error.strerror}") from error
    return digest.hexdigest()
