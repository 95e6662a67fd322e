import json

import pytest

from proxy.engine.client import ranked
from proxy.engine.sampled import Sampled, policy_version
from proxy.engine.wire import Choice, EventStream, Logprobs, TokenLogprob, VersionSpan, abort_body, error_text
from proxy.errors import EngineTrouble
from schemas import VersionRun


def choice(ids: list[int], *spans: tuple[str, int, int], finish: str | None = None) -> Choice:
    return Choice(
        token_ids=ids,
        logprobs=Logprobs([TokenLogprob(-0.5, i) for i in ids]),
        finish_reason=finish,
        weight_versions=[VersionSpan(*span) for span in spans] if spans else None,
    )


def test_versions_of_one_stream_are_taken_as_told():
    sampled = Sampled()
    sampled.begin_segment()
    sampled.add(choice([1, 2]))
    sampled.add(choice([3], ("policy@4", 0, 1), ("policy@5", 1, 3), finish="stop"))
    assert sampled.end_segment("policy", None) == 5
    assert sampled.version_runs() == [VersionRun(version=4, start=0, end=1), VersionRun(version=5, start=1, end=3)]
    assert (sampled.ids, sampled.logprobs, sampled.faults) == ([1, 2, 3], [-0.5] * 3, [])


def test_a_cut_stream_carries_the_last_version_that_its_engine_told():
    sampled = Sampled()
    sampled.begin_segment()
    sampled.add(choice([1, 2]))
    assert sampled.end_segment("policy", 4) is None
    sampled.begin_segment()
    sampled.add(choice([3, 4], ("policy@5", 0, 2), finish="stop"))
    sampled.end_segment("policy", 4)
    assert sampled.version_runs() == [VersionRun(version=4, start=0, end=2), VersionRun(version=5, start=2, end=4)]


def test_a_cut_stream_of_unknown_version_takes_that_of_what_follows():
    sampled = Sampled()
    sampled.begin_segment()
    sampled.add(choice([1, 2]))
    sampled.end_segment("policy", None)
    sampled.begin_segment()
    sampled.add(choice([3], ("policy@5", 0, 1), finish="stop"))
    sampled.end_segment("policy", None)
    assert sampled.version_runs() == [VersionRun(version=5, start=0, end=3)]
    assert not sampled.faults


def test_an_engine_that_tells_versions_with_every_chunk_may_be_cut():
    sampled = Sampled()
    sampled.begin_segment()
    sampled.add(choice([1], ("policy@4", 0, 1)))
    sampled.add(choice([2], ("policy@4", 0, 1), ("policy@5", 1, 2)))
    assert sampled.end_segment("policy", 1) == 5
    assert sampled.version_runs() == [VersionRun(version=4, start=0, end=1), VersionRun(version=5, start=1, end=2)]


@pytest.mark.parametrize(
    ("label", "version"),
    [
        ("policy@12", 12),
        ("default", None),
        ("other@12", None),
        ("policy@-1", None),
        ("policy@²", None),
        ("policy@", None),
    ],
)
def test_a_label_is_a_version_of_this_policy_or_none(label, version):
    assert policy_version(label, "policy") == version


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (Choice(token_ids=[1, 2], logprobs=Logprobs([TokenLogprob(-0.5)])), "1 logprobs for 2 tokens"),
        (Choice(token_ids=[1]), "0 logprobs for 1 tokens"),
        (Choice(token_ids=[1], logprobs=Logprobs([TokenLogprob(-0.5, 9)])), "another token"),
        (Choice(token_ids=[1], logprobs=Logprobs([TokenLogprob(-9999.0)])), "-9999"),
        (Choice(token_ids=[1], logprobs=Logprobs([TokenLogprob(0.5)])), "0.5"),
        (choice([1], ("policy@1", 1, 2)), "do not cover"),
        (choice([1], ("policy@1", 0, 5)), "do not cover"),
        (choice([1], ("default", 0, 1)), "'default'"),
        (choice([1]), "no policy version"),
    ],
)
def test_what_does_not_align_is_a_fault(given, says):
    sampled = Sampled()
    sampled.begin_segment()
    sampled.add(given)
    sampled.end_segment("policy", None)
    sampled.version_runs()
    assert any(says in fault for fault in sampled.faults)


def test_a_logprob_a_little_above_zero_is_zero():
    sampled = Sampled()
    sampled.add(Choice(token_ids=[1], logprobs=Logprobs([TokenLogprob(1e-7)])))
    assert (sampled.logprobs, sampled.faults) == ([0.0], [])


def test_a_stream_may_be_cut_anywhere():
    events = [
        {"choices": [{"index": 0, "token_ids": [n], "logprobs": None, "new": 1}], "usage": None} for n in range(3)
    ]
    raw = (
        b": comment\n\n"
        + b"".join(b"data: " + json.dumps(e).encode() + b"\r\n\r\n" for e in events)
        + b"data: [DONE]\n\n"
    )
    for size in (1, 7, 1000):
        stream = EventStream()
        chunks = [chunk for at in range(0, len(raw), size) for chunk in stream.feed(raw[at : at + size])]
        assert [chunk.choices[0].token_ids for chunk in chunks] == [[0], [1], [2]]
        assert stream.done


def test_what_is_no_chunk_is_engine_trouble():
    with pytest.raises(EngineTrouble, match="no chunk"):
        list(EventStream().feed(b"data: <html>\n\n"))


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b'{"error": {"message": "too\\n long", "code": 400}}', "too long"),
        (b'{"error": "plain"}', "plain"),
        (b'{"detail": "Not Found"}', "Not Found"),
        (b"<html>bad gateway</html>", "<html>bad gateway</html>"),
    ],
)
def test_an_engines_error_is_one_line(body, says):
    assert error_text(body) == says


def test_an_abort_names_the_request_as_the_engine_knows_it():
    assert json.loads(abort_body("c1")) == {"request_ids": ["c1", "generate-tokens-c1"]}


def test_a_rollout_stays_on_its_engine_when_another_goes():
    engines = [f"http://engine-{n}" for n in range(5)]
    homes = {f"r{n}": ranked(engines, f"r{n}")[0] for n in range(500)}
    assert all(60 <= list(homes.values()).count(engine) <= 140 for engine in engines)
    fewer = engines[:-1]
    for rollout, home in homes.items():
        if home in fewer:
            assert ranked(fewer, rollout)[0] == home
