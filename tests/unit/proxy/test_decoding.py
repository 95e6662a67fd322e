from hypothesis import given, settings
from hypothesis import strategies as st

FAMILY = "👩‍👩‍👧 naïve Ελληνικά हिन्दी 漢字 é\n\t<|im_start|>"


@settings(max_examples=300, deadline=None)
@given(st.lists(st.integers(0, 361), max_size=60), st.lists(st.integers(1, 5), max_size=60))
def test_streamed_text_equals_whole_text_for_any_tokens(plain, ids, sizes):
    whole = plain._vocabulary.decode(ids)
    decoder, streamed, at = plain.decoder(), "", 0
    for size in [*sizes, len(ids)]:
        streamed += decoder.feed(ids[at : at + size])
        at += size
        assert whole.startswith(streamed)
    assert streamed + decoder.end() == whole


def test_a_character_cut_between_tokens_is_held_back_until_it_is_whole(plain):
    ids = plain._vocabulary.encode(FAMILY)
    decoder = plain.decoder()
    parts = [decoder.feed([i]) for i in ids]
    assert "".join(parts) + decoder.end() == FAMILY
    assert not any("\ufffd" in part for part in parts)


def test_a_reply_that_ends_within_a_character_says_so_at_its_end(plain):
    ids = plain._vocabulary.encode("ab🙂")[:-1]
    decoder = plain.decoder()
    assert decoder.feed(ids[:2]) == "ab"
    assert decoder.feed(ids[2:]) == ""
    assert decoder.end() == "\ufffd"


def test_the_stop_token_is_not_shown(plain):
    assert plain.shown([5, 6, 2]) == [5, 6]
