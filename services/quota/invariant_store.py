"""What must always hold, as SQL that returns zero rows while it does; for tests and for doctors."""

from collections.abc import Mapping

BALANCE_IS_SUM_OF_ENTRIES = """
SELECT account.user_id, account.balance_units, sum(entry.units) AS entries
FROM quota.accounts AS account
LEFT JOIN quota.ledger_entries AS entry ON entry.user_id = account.user_id
GROUP BY account.user_id, account.balance_units
HAVING account.balance_units <> coalesce(sum(entry.units), 0)
"""

BALANCE_IS_NEVER_NEGATIVE = """
SELECT account.user_id, account.balance_units
FROM quota.accounts AS account
WHERE account.balance_units < 0
"""

REFUND_COMES_AT_MOST_ONCE = """
SELECT entry.request_id, count(*) AS refunds
FROM quota.ledger_entries AS entry
WHERE entry.kind = 'refund'
GROUP BY entry.request_id
HAVING count(*) > 1
"""

# What a request costs by its row is what its entries add up to, whoever wrote either.
REQUEST_COSTS_ITS_ENTRIES = """
SELECT request.request_id, request.status, request.quota_units, sum(entry.units) AS entries
FROM quota.explain_requests AS request
LEFT JOIN quota.ledger_entries AS entry
    ON entry.request_id = request.request_id AND entry.user_id = request.user_id
GROUP BY request.request_id
HAVING sum(entry.units) IS DISTINCT FROM
    CASE WHEN request.status = 'charged' THEN -request.quota_units ELSE 0 END
"""

# `used` of an endpoint's hard window, from limit to limit: the entry `limit` places later came a
# window later. $1 is the limit, $2 the window.
WINDOW_IS_NEVER_ABOVE_ITS_LIMIT = """
SELECT first.user_id, first.endpoint, first.admitted_at, later.admitted_at AS too_soon
FROM quota.ai_request_log AS first
JOIN quota.ai_request_log AS later
    ON later.user_id = first.user_id AND later.endpoint = first.endpoint
    AND later.sequence = first.sequence + $1::bigint
WHERE later.admitted_at < first.admitted_at + $2::interval
"""

ADMISSION_HAS_ITS_OWN_NUMBER = """
SELECT log.user_id, log.endpoint, log.sequence, count(*) AS admissions
FROM quota.ai_request_log AS log
GROUP BY log.user_id, log.endpoint, log.sequence
HAVING count(*) > 1
"""

SPENDING_IS_SUM_OF_OPERATIONS = """
WITH summed AS (
    SELECT part.kind, part.subject, sum(operation.cost_nanodollars) AS cost_nanodollars
    FROM quota.ai_operations AS operation
    CROSS JOIN LATERAL (VALUES
        ('day', to_char(operation.created_at AT TIME ZONE 'UTC', 'YYYY-MM-DD')),
        ('document', operation.pdf_hash),
        ('generation', operation.generation_id::text),
        ('user_month',
         operation.user_id || to_char(operation.created_at AT TIME ZONE 'UTC', ' YYYY-MM'))
    ) AS part (kind, subject)
    WHERE part.subject IS NOT NULL
    GROUP BY part.kind, part.subject
)
SELECT kind, subject, spent.cost_nanodollars, summed.cost_nanodollars AS operations
FROM quota.spending AS spent
FULL JOIN summed USING (kind, subject)
WHERE spent.cost_nanodollars IS DISTINCT FROM summed.cost_nanodollars
"""

# Those that need nothing but the tables; the window's needs the limits that are configured.
INVARIANTS: Mapping[str, str] = {
    "balance is the sum of entries": BALANCE_IS_SUM_OF_ENTRIES,
    "balance is never negative": BALANCE_IS_NEVER_NEGATIVE,
    "a refund comes at most once": REFUND_COMES_AT_MOST_ONCE,
    "a request costs what its entries say": REQUEST_COSTS_ITS_ENTRIES,
    "an admission has its own number": ADMISSION_HAS_ITS_OWN_NUMBER,
    "spending is the sum of operations": SPENDING_IS_SUM_OF_OPERATIONS,
}
