-- Which limits and allowance an account has; what they are is configuration. New users start on beta.
ALTER TABLE quota.accounts ADD COLUMN plan text NOT NULL DEFAULT 'beta'
    CONSTRAINT account_plan_is_known CHECK (plan IN ('free', 'beta', 'pro_monthly', 'pro_annual'));

-- Every charge rewrites its account: room on the page keeps these updates off the index.
ALTER TABLE quota.accounts SET (fillfactor = 60);
