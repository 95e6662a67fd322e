"""Prometheus text."""

from learner.serving.client import read_metrics

TEXT = """\
# HELP vllm:num_requests_running Number of requests.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="policy"} 2.0
vllm:num_requests_running{engine="1",model_name="policy"} 3.0
vllm:num_requests_running_by_reason{engine="0"} 9.0
plain 1e3
"""


def test_values_are_summed_over_labels() -> None:
    found = read_metrics(TEXT.splitlines(), ["vllm:num_requests_running", "plain", "absent"])
    assert found == {"vllm:num_requests_running": 5.0, "plain": 1000.0}
