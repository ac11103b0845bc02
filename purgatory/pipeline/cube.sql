-- The cube of a journal. Below are the common tables, and then a query for each part, whose rows add up over files.
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
            WHEN get(keys, 0) IS NULL THEN 'keys'
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
        try_add(arrived, try_cast(1e6 * waited_s AS BIGINT)) AS finished,
        -- Nobody waits past the deadline but for the timer, or for a busy loop.
        least(waited_s, coalesce(deadline, waited_s)) AS stayed,
        outcome NOT IN ('expired', 'closed') AND waited_s <= coalesce(deadline, waited_s) AS is_gone,
        -- It was pending when its process opened the journal, which has no row of those that had ended by then.
        coalesce(arrived < opened, false) AS entered_late,
        CASE
            WHEN impossible IS NOT NULL THEN concat(impossible, ' in ', file)
            WHEN try_add(arrived, try_cast(1e6 * waited_s AS BIGINT)) > {now} THEN 'ahead of the clock'
        END AS refused
    FROM read
),
-- What the other parts need of the rows. A row that no row can have stops it all, so it is no matter if it is here.
timely AS (
    SELECT
        instance, purgatory, operation, keys, outcome, coalesce(missed, false) AS missed,
        unix_micros(arrived_at) AS arrived,
        unix_micros(arrived_at) + CAST(1e6 * waited_s AS BIGINT) AS finished
    FROM {journal}
    WHERE waited_s >= 0 AND waited_s < 1e8
        AND unix_micros(arrived_at) + CAST(1e6 * greatest(least(waited_s, 1e8), 0) AS BIGINT) <= {now}
),
keyed AS (
    SELECT purgatory, operation, key, arrived, finished, outcome, missed, arrived - pmod(arrived, 86400000000) AS day
    FROM timely
    LATERAL VIEW explode(keys) AS key
)

-- part: operations
-- How they ended, by time, instance and bins of the wait; and the rows that are refused, by reason.
SELECT
    if(refused IS NULL, 'operations', 'refused') AS part,
    refused, instance,
    purgatory, operation, opened, slot,
    arrived - pmod(arrived, slot) AS arrived, -- slots begin at multiples of their length
    finished - pmod(finished, slot) AS finished,
    outcome, missed, is_gone, entered_late,
    CAST(ceil(100 * log10(least(greatest(timeout_s, 1e-6), 1e10)) - 1e-7) AS INT) AS timeout_bin,
    CAST(ceil(100 * log10(least(greatest(stayed, 1e-6), 1e10)) - 1e-7) AS INT) AS wait_bin,
    count(*) AS operations,
    count_if(outcome = 'expired') AS num_expired,
    count_if(missed) AS num_missed,
    sum(waited_s) AS wait_sum,
    max(waited_s) AS wait_max,
    sum(late_s) AS late_sum,
    max(late_s) AS late_max,
    max(timeout_s) AS timeout_max
FROM (
    SELECT /*+ BROADCAST(slots) */ rows.*, coalesce(slots.slot, {slot}) AS slot
    FROM rows
    LEFT JOIN {slots} AS slots ON slots.purgatory = rows.purgatory AND slots.operation = rows.operation
)
GROUP BY ALL

-- part: steps
-- Each arrival adds one pending operation for the rest of its step, and each end takes one away. A step thus has a net
-- count and a net moment, in microseconds, and the mean of a step is what was pending at its start + moment / length.
-- The steps of an instance are longer than those of all together.
SELECT
    if(is_all, 'steps', 'instance_steps') AS part,
    purgatory,
    if(is_all, operation, NULL) AS operation,
    if(is_all, NULL, instance) AS instance,
    slot,
    start AS arrived,
    sum(net) AS operations,
    sum(moment + net * (start + slot - step_end)) AS moment
FROM (
    SELECT
        purgatory, operation, instance,
        change.at - pmod(change.at, {step}) + {step} AS step_end,
        sum(change.net) AS net,
        sum(change.net * ({step} - pmod(change.at, {step}))) AS moment
    FROM timely
    LATERAL VIEW explode(array(named_struct('at', arrived, 'net', 1), named_struct('at', finished, 'net', -1))) AS change
    GROUP BY ALL
)
LATERAL VIEW inline(array(
    named_struct('slot', {step}, 'start', step_end - {step}, 'all', true),
    named_struct(
        'slot', {instance_step}, 'start', step_end - {step} - pmod(step_end - {step}, {instance_step}), 'all', false
    )
)) AS slot, start, is_all
GROUP BY ALL

-- part: per_key
-- What hot keys, cuts and samples are made of. It is no part of the cube, because it has a row for each key.
SELECT
    purgatory, key, day,
    count(*) AS operations,
    count_if(outcome = 'expired') AS num_expired,
    count_if(missed) AS num_missed
FROM keyed
GROUP BY ALL

-- part: moments
-- Bins of a quarter of a second. A key has at most 345,600 of them a day, however many operations it has.
SELECT
    /*+ BROADCAST(samples) */
    'moments' AS part, keyed.purgatory, operation, xxhash64(key) AS hash,
    250000 * moment.bin AS arrived,
    count_if(moment.outcome IS NULL) AS operations,
    count_if(moment.outcome = 'expired') AS num_expired,
    count_if(moment.outcome NOT IN ('expired', 'closed')) AS num_others
FROM keyed
JOIN {samples} AS samples ON samples.purgatory = keyed.purgatory AND pmod(xxhash64(key), 4096) <= samples.hash
LATERAL VIEW explode(array(
    named_struct('bin', arrived DIV 250000, 'outcome', CAST(NULL AS STRING)),
    named_struct('bin', finished DIV 250000, 'outcome', outcome)
)) AS moment
WHERE key IS NOT NULL AND coalesce(moment.outcome, '') != 'closed'
GROUP BY ALL
