"""Who may call what: a second copy of the `@allow` marks, so that none is loosened by itself."""

USERS = frozenset({"gateway", "admin", "user"})
SERVING_USERS = USERS | {"cache"}
ADMINS = frozenset({"admin"})
WORKERS = frozenset({"worker"})

ALLOWED: dict[str, frozenset[str]] = {
    # Registry
    "UploadDocument": SERVING_USERS,
    "GetFile": SERVING_USERS,
    "ListFiles": SERVING_USERS,
    "DeleteFile": SERVING_USERS,
    "BulkDeleteFiles": SERVING_USERS,
    "AddReference": frozenset({"gateway", "worker", "admin"}),
    "RemoveReference": frozenset({"gateway", "worker", "admin"}),
    "GetDocument": SERVING_USERS | WORKERS,
    "ResolvePage": SERVING_USERS,
    "BatchGetPageMetadata": SERVING_USERS | WORKERS,
    "GetPageContent": WORKERS | ADMINS,
    "DownloadDocument": USERS,
    "BackfillContentHashes": ADMINS,
    "CollectGarbage": ADMINS,
    "CheckReferenceHealth": ADMINS,
    "WatchRevocations": frozenset({"cache"}),
    # Cache
    "ExplainPage": USERS,
    "ConvertDocument": USERS,
    "GetGeneration": USERS | WORKERS,
    "DescribeRequest": USERS,
    "DescribeQueue": ADMINS,
    "ListLeaseLosses": ADMINS,
    "InvalidateGenerations": frozenset({"admin", "registry"}),
    "LookupResponse": frozenset({"gateway", "worker", "admin"}),
    "StoreResponse": frozenset({"gateway", "worker", "admin"}),
    "InvalidateResponses": frozenset({"gateway", "worker", "admin"}),
    # Jobs
    "LeaseJobs": WORKERS,
    "RenewLeases": WORKERS,
    "CompleteJobs": WORKERS,
    "FailJobs": WORKERS,
    "ReleaseJobs": WORKERS,
    "GetGenerations": WORKERS | ADMINS,
    "ListFailedJobs": WORKERS,
    "RedriveJobs": WORKERS,
    # Quota
    "Admit": frozenset({"cache", "admin"}),
    "AdmitMany": frozenset({"cache", "admin"}),
    "Refund": frozenset({"cache", "admin"}),
    "GetQuotaStatus": SERVING_USERS,
    "ResetQuota": ADMINS,
    "ListLedger": USERS,
    "GetCharge": SERVING_USERS,
    "RecordOperations": WORKERS | ADMINS,
    "GetUserCosts": USERS,
    "ListDailyTotals": ADMINS,
    "GetGenerationCosts": WORKERS | ADMINS,
    "CheckBudget": USERS,
    "GetPreferences": SERVING_USERS,
    "UpdatePreferences": USERS,
    # Worker
    "WatchGeneration": USERS,
    "ListDeadLetters": ADMINS,
    "GetDeadLetter": ADMINS,
    "RedriveDeadLetters": ADMINS,
    "RecordSamples": frozenset({"cache"}),
    "GetDailySummary": ADMINS,
}
