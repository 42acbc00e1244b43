-- Admissions of a user to an endpoint are numbered one by one: windows are counted by the difference of two numbers.
-- If not: windows are miscounted until these rows are a day old. Who wrote to quota.ai_request_log past Quota?
SELECT user_id, endpoint, sequence, count(*) AS admissions
FROM quota.ai_request_log
GROUP BY user_id, endpoint, sequence
HAVING count(*) > 1;
