"""The model's tokenizer: text in which control tokens count, text in which they do not, and ids back to text."""

import re
import uuid
from collections.abc import Iterator
from pathlib import Path

from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

from proxy.errors import ModelFolderError

_REMEMBERED_CHARS = 8_000_000


class Vocabulary:
    """A tokenizer.json."""

    def __init__(self, path: Path) -> None:
        """Raises ModelFolderError when the file is missing or no tokenizer."""
        try:
            text = path.read_text(encoding="utf-8")
            self._tokenizer = Tokenizer.from_str(text)
            # The same tokenizer, to which `<|im_end|>` is nothing but ten characters.
            self._blind = Tokenizer.from_str(text)
        except OSError as error:
            raise ModelFolderError(f"cannot read {path}: {error.strerror}") from error
        except Exception as error:  # the library raises bare Exception
            raise ModelFolderError(f"{path} is no tokenizer: {error}") from error
        for tokenizer in (self._tokenizer, self._blind):
            tokenizer.no_truncation()
            tokenizer.no_padding()
        self._blind.encode_special_tokens = True
        added = self._tokenizer.get_added_tokens_decoder()
        self.special = {token.content: i for i, token in added.items() if token.special}
        """Control tokens: text → id."""
        longest_first = sorted(self.special, key=len, reverse=True)
        self._special_text = re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")
        self.longest_token_chars = max(map(len, self._tokenizer.get_vocab()), default=1)
        """No token stands for more characters than this."""
        self._segments: dict[str, list[int]] = {}
        self._segments_chars = 0
        self._splits_exactly = self._probe_split()

    def control_strings(self, text: str) -> list[str]:
        """The control tokens that are written out in a text, in order."""
        return self._special_text.findall(text)

    def encode(self, text: str) -> list[int]:
        """Token ids of rendered text; written-out control tokens become control tokens.

        What stands between two control tokens is remembered: system prompts and tools come again with every rollout.
        """
        if not self._splits_exactly:
            return self._encode(text)
        ids: list[int] = []
        for piece, control in self._split(text):
            if piece:
                ids += self._segment(piece)
            if control is not None:
                ids.append(control)
        return ids

    def _encode(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=False).ids

    def _segment(self, text: str) -> list[int]:
        ids = self._segments.get(text)
        if ids is None:
            ids = self._encode(text)
            if self._segments_chars > _REMEMBERED_CHARS:
                self._segments, self._segments_chars = {}, 0
            self._segments[text] = ids
            self._segments_chars += len(text)
        return ids

    def _probe_split(self) -> bool:
        """Whether text between control tokens has the same ids when it is encoded by itself.

        It has, unless a tokenizer treats its first characters, or blanks beside a control token, in a way of their own.
        """
        for control, token_id in self.special.items():
            whole = self._encode(f"{control}\nHello  world {control} \n\n x{control}Hello")
            pieces = [self._encode(piece) for piece in ("\nHello  world ", " \n\n x", "Hello")]
            if whole != [i for piece in pieces for i in (token_id, *piece)]:
                return False
        return True

    def encode_masked(self, text: str, masks: "Masks") -> list[int]:
        """Token ids of rendered text in which some written-out control tokens are mere text, hidden behind masks."""
        ids: list[int] = []
        for piece, control in self._split(text):
            if piece:
                ids += self._blind.encode(masks.restore(piece), add_special_tokens=False).ids
            if control is not None:
                ids.append(control)
        return ids

    def _split(self, text: str) -> Iterator[tuple[str, int | None]]:
        start = 0
        for match in self._special_text.finditer(text):
            yield text[start : match.start()], self.special[match.group()]
            start = match.end()
        yield text[start:], None

    def text_of(self, token_id: int) -> str | None:
        """A token as it is written in tokenizer.json; None when the id stands for nothing."""
        return self._tokenizer.id_to_token(token_id)

    def decode(self, ids: list[int]) -> str:
        """Text of ids, control tokens written out."""
        return self._tokenizer.decode(ids, skip_special_tokens=False)

    def decoder(self) -> "TextDecoder":
        """A decoder for ids that come one after the other."""
        return TextDecoder(self._tokenizer)


class Masks:
    """Stand-ins for control tokens that occur in what users and tools wrote."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._pattern = vocabulary._special_text
        self._originals: dict[str, str] = {}

    def __bool__(self) -> bool:
        return bool(self._originals)

    def hide(self, text: str) -> str:
        """The text with each control token replaced by letters and digits that occur nowhere else."""
        return self._pattern.sub(lambda match: self._mask(match.group()), text)

    def restore(self, text: str) -> str:
        """The text as it was."""
        for mask, original in self._originals.items():
            text = text.replace(mask, original)
        return text

    def _mask(self, original: str) -> str:
        mask = f"fsM{uuid.uuid4().hex[:16]}"
        self._originals[mask] = original
        return mask


class TextDecoder:
    """Ids to text as soon as it is certain: a character cut between two tokens is held back until it is whole."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._stream = DecodeStream(skip_special_tokens=False)
        self._ids: list[int] = []
        self._sent_chars = 0
        self._held = False
        self._broken = False

    def feed(self, ids: list[int]) -> str:
        """The text that has become certain."""
        self._ids += ids
        if self._broken:
            return ""
        try:
            text = self._stream.step(self._tokenizer, ids) if ids else None
        except Exception:  # the library's "invalid prefix": its text so far was right, the rest comes at the end
            self._broken = True
            return ""
        self._held = text is None
        self._sent_chars += len(text or "")
        return text or ""

    def end(self) -> str:
        """What was held back: U+FFFD where the ids end within a character."""
        if not self._ids or not (self._held or self._broken):
            return ""
        return self._tokenizer.decode(self._ids, skip_special_tokens=False)[self._sent_chars :]
