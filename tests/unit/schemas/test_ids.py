"""Names are stable, safe and unique."""

import re

from hypothesis import given
from hypothesis import strategies as st

from schemas import ids


def test_group_id_is_stable_and_readable():
    assert ids.group_id("needles", "Needle 7", 0) == ids.group_id("needles", "Needle 7", 0)
    assert ids.group_id("needles", "Needle 7", 0).startswith("needle-7-0-")
    assert ids.rollout_id("g", 3) == "g-r3"


@given(st.text(), st.text(), st.integers(0, 10**6))
def test_group_id_is_a_kubernetes_label(taskset, task_id, epoch):
    name = ids.rollout_id(ids.group_id(taskset, task_id, epoch), 999)
    assert len(name) <= 63
    assert re.fullmatch(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?", name)


def test_tasks_epochs_and_sets_differ():
    names = {ids.group_id(s, t, e) for s in ("a", "ab") for t in ("bc", "c") for e in (0, 1)}
    assert len(names) == 8


def test_completion_ids_are_unique_and_sort_by_time():
    names = [ids.completion_id() for _ in range(2000)]
    assert len(set(names)) == 2000
    assert all(re.fullmatch(r"[0-9a-f]{12}7[0-9a-f]{3}[89ab][0-9a-f]{15}", name) for name in names)
    assert [n[:12] for n in names] == sorted(n[:12] for n in names)
