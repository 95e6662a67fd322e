"""Questions that everybody asks, by name."""

from dataclasses import dataclass


@dataclass(frozen=True)
class NamedQuery:
    """One question."""

    name: str
    doc: str
    sql: str


NAMED_QUERIES: tuple[NamedQuery, ...] = (
    NamedQuery(
        "reward_by_version",
        "Mean reward of each policy version, training and evaluation apart. A rollout counts for the version that "
        "sampled its first token; `mixed` ones saw a newer version too.",
        """
        SELECT policy_id, policy_version_min AS policy_version,
               CASE WHEN evaluation THEN 'evaluation' ELSE 'training' END AS split,
               count(*) AS rollouts, avg(reward) AS reward_mean, stddev_samp(reward) AS reward_stddev,
               avg((end_reason = 'completed')::INT) AS completed_share,
               avg(completion_tokens) AS completion_tokens_mean,
               count(*) FILTER (policy_version_max > policy_version_min) AS mixed
        FROM trajectories WHERE policy_version_min IS NOT NULL
        GROUP BY ALL ORDER BY policy_id, split, policy_version
        """,
    ),
    NamedQuery(
        "reward_by_taskset",
        "Mean reward of each task set and harness.",
        """
        SELECT taskset, harness, CASE WHEN evaluation THEN 'evaluation' ELSE 'training' END AS split,
               count(*) AS rollouts, avg(reward) AS reward_mean, avg(completion_count) AS completions_mean
        FROM trajectories GROUP BY ALL ORDER BY ALL
        """,
    ),
    NamedQuery(
        "end_reasons",
        "Why rollouts ended.",
        """
        SELECT harness, end_reason, count(*) AS rollouts, avg(reward) AS reward_mean, median(run_s) AS run_s_median
        FROM rollouts WHERE state = 'finished' GROUP BY ALL ORDER BY harness, rollouts DESC, end_reason
        """,
    ),
    NamedQuery(
        "untrained",
        "Why trajectories were not trainable.",
        "SELECT reason, count(*) AS trajectories FROM trajectories WHERE NOT trainable GROUP BY ALL ORDER BY 2 DESC, 1",
    ),
    NamedQuery(
        "latency",
        "How long model calls took, by policy version.",
        """
        SELECT policy_version_max AS policy_version, count(*) AS completions,
               quantile_cont(latency_s, 0.5) AS latency_s_p50, quantile_cont(latency_s, 0.95) AS latency_s_p95,
               quantile_cont(first_token_s, 0.5) AS first_token_s_p50,
               sum(completion_tokens) / nullif(sum(engine_s), 0) AS tokens_per_engine_s
        FROM completions WHERE status = 'delivered' GROUP BY ALL ORDER BY ALL
        """,
    ),
    NamedQuery(
        "training",
        "What each optimizer step did.",
        """
        SELECT step, policy_version, len(groups) AS groups, cardinality(groups_dropped) AS groups_dropped,
               trained_tokens, metrics, timings, happened_at
        FROM steps ORDER BY run_id, step
        """,
    ),
    NamedQuery(
        "slowest",
        "The twenty rollouts that took longest.",
        """
        SELECT rollout_id, harness, end_reason, total_s, queue_s, run_s, verify_s, reward
        FROM rollouts ORDER BY total_s DESC NULLS LAST LIMIT 20
        """,
    ),
    NamedQuery(
        "integrity",
        "What was lost or is there twice; every count but the first two should be 0 when nothing is running.",
        """
        WITH finished AS (SELECT DISTINCT rollout_id FROM rollout_events WHERE kind = 'finished'),
             assembled AS (SELECT rollout_id, count(*) AS times FROM trajectories GROUP BY ALL)
        SELECT (SELECT count(*) FROM finished) AS rollouts_finished,
               (SELECT count(*) FROM assembled) AS rollouts_assembled,
               (SELECT count(*) FROM finished ANTI JOIN assembled USING (rollout_id)) AS trajectories_lost,
               (SELECT coalesce(sum(times - 1), 0)::BIGINT FROM assembled) AS trajectories_doubled,
               (SELECT count(*) - count(DISTINCT completion_id) FROM completions) AS completions_doubled,
               (SELECT count(*) FROM (SELECT unnest(groups) AS name FROM steps GROUP BY name HAVING count(*) > 1))
                   AS groups_trained_twice
        """,
    ),
)
"""In the order in which they are listed."""
