-- The cube of a journal: how many operations ended how, by time, instance and bins of the wait. Beside them are the rows
-- of the keys with the most operations, and counts of the rows that are refused. All of that comes from one scan.
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
        CASE
            WHEN impossible IS NOT NULL THEN concat(impossible, ' in ', file)
            WHEN arrived + try_cast(1e6 * waited_s AS BIGINT) > {now} THEN 'ahead of the clock'
        END AS refused
    FROM read
),
entries AS (
    -- One entry for the operation, whose key is null, and one for each key.
    SELECT rows.*, key
    FROM rows
    LATERAL VIEW posexplode(
        if(refused IS NULL, concat(array(CAST(NULL AS STRING)), keys), array(CAST(NULL AS STRING)))
    ) AS place, key
    WHERE place = 0 OR key IS NOT NULL
),
grouped AS (
    SELECT
        refused,
        key,
        if(impossible IS NULL, purgatory, NULL) AS purgatory,
        if(key IS NULL AND impossible IS NULL, instance, NULL) AS instance,
        if(key IS NULL AND refused IS NULL, operation, NULL) AS operation,
        if(key IS NULL AND refused IS NULL, opened, NULL) AS opened,
        -- Slots begin at multiples of their length. A key's row is of the day.
        if(refused IS NULL, arrived - pmod(arrived, if(key IS NULL, {slot}, 86400000000)), NULL) AS arrived,
        if(key IS NULL AND refused IS NULL, finished - pmod(finished, {slot}), NULL) AS finished,
        if(key IS NULL AND refused IS NULL, outcome, NULL) AS outcome,
        if(key IS NULL AND refused IS NULL, missed, NULL) AS missed,
        if(key IS NULL AND refused IS NULL, is_gone, NULL) AS is_gone,
        if(key IS NULL AND refused IS NULL, CAST(ceil(100 * log10(greatest(timeout_s, 1e-6)) - 1e-7) AS INT), NULL)
            AS timeout_bin,
        if(key IS NULL AND refused IS NULL, CAST(ceil(100 * log10(greatest(stayed, 1e-6)) - 1e-7) AS INT), NULL)
            AS wait_bin,
        count(*) AS operations,
        count_if(outcome = 'expired') AS num_expired,
        count_if(missed) AS num_missed,
        sum(waited_s) AS wait_sum,
        max(waited_s) AS wait_max,
        sum(late_s) AS late_sum,
        max(late_s) AS late_max,
        max(timeout_s) AS timeout_max
    FROM entries
    GROUP BY ALL
),
ranked AS (
    SELECT
        *,
        row_number() OVER (PARTITION BY key IS NULL, purgatory ORDER BY operations DESC, key) AS by_operations,
        row_number() OVER (PARTITION BY key IS NULL, purgatory ORDER BY num_expired DESC, key) AS by_expired,
        row_number() OVER (PARTITION BY key IS NULL, purgatory ORDER BY num_missed DESC, key) AS by_missed
    FROM grouped
)
SELECT * EXCEPT (by_operations, by_expired, by_missed), CAST({slot} AS BIGINT) AS slot
FROM ranked
WHERE key IS NULL OR by_operations <= 100 OR by_expired <= 100 AND num_expired > 0 OR by_missed <= 100 AND num_missed > 0
