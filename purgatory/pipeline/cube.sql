-- The cube of a journal, in parts whose rows add up over files: `operations` counts how they ended, by time, instance and
-- bins of the wait; `steps` and `instance_steps` tell how many were pending; `hot_keys` and `cuts` rank keys; `moments`
-- has the arrivals and ends of some keys in bins of a quarter of a second, which show whether clients ask again.
WITH read AS (
    SELECT
        instance, purgatory, operation, keys, outcome, file,
        coalesce(missed, false) AS missed,
        unix_micros(arrived_at) AS arrived,
        unix_micros(opened_at) AS opened,
        waited_s, late_s, timeout_s,
        -- From arrival to the last deadline. Journals of version 0.2 and older do not have it, and their timeout counts
        -- from the last reschedule: it follows from the lateness of an expired operation. Another one that has ended
        -- later than its timeout was rescheduled, or its loop was busy, and its deadline is not known.
        CASE
            WHEN deadline_s IS NOT NULL THEN deadline_s
            WHEN outcome = 'expired' THEN greatest(waited_s - late_s, 0)
            WHEN waited_s > timeout_s THEN NULL
            ELSE timeout_s
        END AS deadline,
        -- What no row can have. A condition that is null does not hold.
        CASE
            WHEN purgatory IS NULL THEN 'purgatory'
            WHEN operation IS NULL THEN 'operation'
            WHEN array_min(keys) IS NULL THEN 'keys' -- there is none
            WHEN arrived_at IS NULL THEN 'arrived_at'
            WHEN waited_s IS NULL OR NOT (waited_s >= 0 AND waited_s < 1e8) THEN 'waited_s'
            WHEN outcome IS NULL OR outcome NOT IN
                ('completed_at_once', 'satisfied', 'expired', 'closed', 'cancelled', 'failed') THEN 'outcome'
            WHEN NOT (timeout_s >= 0 AND timeout_s < 1e10) OR timeout_s IS NULL AND outcome = 'expired' THEN 'timeout_s'
            WHEN NOT (deadline_s >= 0 AND deadline_s < 1e10) THEN 'deadline_s'
            WHEN NOT (late_s >= 0 AND late_s < 1e10) OR (late_s IS NULL) = (outcome = 'expired') THEN 'late_s'
        END AS impossible
    FROM {journal}
),
rows AS (
    SELECT
        *,
        arrived + try_cast(1e6 * waited_s AS BIGINT) AS finished,
        -- Nobody waits past the deadline but for the timer, or for a busy loop.
        least(waited_s, coalesce(deadline, waited_s)) AS stayed,
        outcome NOT IN ('expired', 'closed') AND waited_s <= coalesce(deadline, waited_s) AS is_gone,
        -- It was pending when its process opened the journal, which has no row of those that had ended by then.
        coalesce(arrived < opened, false) AS entered_late,
        CASE
            WHEN impossible IS NOT NULL THEN concat(impossible, ' in ', file)
            WHEN arrived + try_cast(1e6 * waited_s AS BIGINT) > {now} THEN 'ahead of the clock'
        END AS refused
    FROM read
),
good AS (
    SELECT /*+ BROADCAST(slots) */ rows.*, coalesce(slots.slot, {slot}) AS slot
    FROM rows
    LEFT JOIN {slots} AS slots ON slots.purgatory = rows.purgatory AND slots.operation = rows.operation
    WHERE refused IS NULL
),
operations AS (
    SELECT
        instance, purgatory, operation, opened, slot,
        arrived - pmod(arrived, slot) AS arrived, -- slots begin at multiples of their length
        finished - pmod(finished, slot) AS finished,
        outcome, missed, is_gone, entered_late,
        CAST(ceil(100 * log10(greatest(timeout_s, 1e-6)) - 1e-7) AS INT) AS timeout_bin,
        CAST(ceil(100 * log10(greatest(stayed, 1e-6)) - 1e-7) AS INT) AS wait_bin,
        count(*) AS operations,
        count_if(outcome = 'expired') AS num_expired,
        count_if(missed) AS num_missed,
        sum(waited_s) AS wait_sum,
        max(waited_s) AS wait_max,
        sum(late_s) AS late_sum,
        max(late_s) AS late_max,
        max(timeout_s) AS timeout_max
    FROM good
    GROUP BY ALL
),
refused AS (
    SELECT instance, refused, count(*) AS operations FROM rows WHERE refused IS NOT NULL GROUP BY ALL
),
-- Each arrival adds one pending operation for the rest of its step, and each end takes one away. A step thus has a net
-- count and a net moment, in microseconds, and the mean of a step is what was pending at its start + moment / length.
changes AS (
    SELECT
        purgatory, operation, instance,
        change.at - pmod(change.at, {step}) AS arrived,
        sum(change.net) AS operations,
        sum(change.net * ({step} - pmod(change.at, {step}))) AS moment
    FROM good
    LATERAL VIEW explode(array(named_struct('at', arrived, 'net', 1), named_struct('at', finished, 'net', -1))) AS change
    GROUP BY ALL
),
steps AS (
    SELECT purgatory, operation, arrived, {step} AS slot, sum(operations) AS operations, sum(moment) AS moment
    FROM changes
    GROUP BY ALL
),
instance_steps AS (
    SELECT
        purgatory, instance,
        arrived - pmod(arrived, {instance_step}) AS arrived,
        {instance_step} AS slot,
        sum(operations) AS operations,
        sum(moment + operations * ({instance_step} - {step} - pmod(arrived, {instance_step}))) AS moment
    FROM changes
    GROUP BY ALL
),
keyed AS (
    SELECT purgatory, operation, key, arrived, finished, outcome, missed, arrived - pmod(arrived, 86400000000) AS day
    FROM good
    LATERAL VIEW explode(keys) AS key
    WHERE key IS NOT NULL
),
per_key AS (
    SELECT
        purgatory, key, day,
        count(*) AS operations,
        count_if(outcome = 'expired') AS num_expired,
        count_if(missed) AS num_missed
    FROM keyed
    GROUP BY ALL
),
-- A key is kept if one of its counts is above the cut of that count. No more than {kept} keys are above it.
counted AS (
    SELECT purgatory, day, measure, number, sum(count(*)) OVER (
        PARTITION BY purgatory, day, measure ORDER BY number DESC
    ) AS up_to
    FROM per_key
    LATERAL VIEW stack(3, 'all', operations, 'expired', num_expired, 'missed', num_missed) AS measure, number
    GROUP BY purgatory, day, measure, number
),
cuts AS (
    SELECT
        purgatory, day AS arrived,
        coalesce(max(if(measure = 'all' AND up_to > {kept}, number, NULL)), 0) AS operations,
        coalesce(max(if(measure = 'expired' AND up_to > {kept}, number, NULL)), 0) AS num_expired,
        coalesce(max(if(measure = 'missed' AND up_to > {kept}, number, NULL)), 0) AS num_missed
    FROM counted
    GROUP BY ALL
),
hot_keys AS (
    SELECT
        /*+ BROADCAST(cuts) */
        per_key.purgatory, per_key.key, per_key.day AS arrived,
        per_key.operations, per_key.num_expired, per_key.num_missed
    FROM per_key
    JOIN cuts ON cuts.purgatory = per_key.purgatory AND cuts.arrived = per_key.day
    WHERE per_key.operations > cuts.operations
        OR per_key.num_expired > cuts.num_expired
        OR per_key.num_missed > cuts.num_missed
),
-- Whole keys, up to a bucket of their hashes, with at most {sampled} operations; the first bucket is always there.
buckets AS (
    SELECT
        purgatory, bucket, operations,
        sum(operations) OVER (PARTITION BY purgatory ORDER BY bucket) AS up_to,
        sum(operations) OVER (PARTITION BY purgatory) AS total
    FROM (
        SELECT purgatory, pmod(xxhash64(key), 4096) AS bucket, sum(operations) AS operations FROM per_key GROUP BY ALL
    )
),
samples AS (
    SELECT purgatory, if(max(total) <= {sampled}, 4095, max(bucket)) AS hash
    FROM buckets
    WHERE up_to <= {sampled} OR up_to = operations
    GROUP BY ALL
),
-- Bins of a quarter of a second. That of an end tells how many bins, up to 120, its own arrival came before it.
moments AS (
    SELECT
        /*+ BROADCAST(samples) */
        keyed.purgatory, operation, xxhash64(key) AS hash,
        250000 * moment.bin AS arrived,
        moment.waited,
        count_if(moment.outcome IS NULL) AS operations,
        count_if(moment.outcome = 'expired') AS num_expired,
        count_if(moment.outcome NOT IN ('expired', 'closed')) AS num_others
    FROM keyed
    JOIN samples ON samples.purgatory = keyed.purgatory AND pmod(xxhash64(key), 4096) <= samples.hash
    LATERAL VIEW explode(array(
        named_struct('bin', arrived DIV 250000, 'waited', CAST(NULL AS BIGINT), 'outcome', CAST(NULL AS STRING)),
        named_struct(
            'bin', finished DIV 250000,
            'waited', least(finished DIV 250000 - arrived DIV 250000, 120),
            'outcome', outcome
        )
    )) AS moment
    WHERE coalesce(moment.outcome, '') != 'closed'
    GROUP BY ALL
)
