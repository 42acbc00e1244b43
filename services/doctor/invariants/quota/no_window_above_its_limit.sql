-- In no ten seconds, and in no 24 hours, was anybody let in more often than the limits allow.
-- If not: limits do not hold. Or they were lowered within the last day, or the doctor was started with other
-- settings than Quota: GLOSSA_HARD_LIMIT, GLOSSA_DAILY_LIMIT, GLOSSA_LIMITS, GLOSSA_SHADOW_LIMITS.
WITH admitted AS (
    SELECT log.user_id, log.endpoint, log.admitted_at, allowed.hard, allowed.daily,
           lag(log.admitted_at, allowed.hard) OVER (
               PARTITION BY log.user_id, log.endpoint ORDER BY log.admitted_at, log.sequence
           ) AS hard_since,
           lag(log.admitted_at, allowed.daily) OVER (PARTITION BY log.user_id ORDER BY log.admitted_at) AS daily_since
    FROM quota.ai_request_log AS log
    INNER JOIN quota.accounts AS account USING (user_id)
    INNER JOIN jsonb_to_recordset(current_setting('glossa.limits')::jsonb)
        AS allowed (plan text, endpoint text, hard integer, daily integer)
        ON allowed.plan = account.plan AND allowed.endpoint = log.endpoint
)
SELECT user_id, endpoint, admitted_at, hard, hard_since, daily, daily_since
FROM admitted
WHERE hard_since > admitted_at - interval '10 seconds' OR daily_since > admitted_at - interval '24 hours';
