"""What `glossa doctor --watch` exports for Prometheus."""

from math import nan

from prometheus_client import Gauge

from services.doctor.verdict import Kind, Report, Status

VIOLATIONS = Gauge(
    "glossa_doctor_violations",
    "Rows that violate an invariant; NaN while that is not known.",
    ["invariant"],
)
UNFIT = Gauge(
    "glossa_doctor_unfit_checks", "Parts of the environment that are not as they must be."
)
UNKNOWN = Gauge("glossa_doctor_unknown_checks", "Checks that could not be made.")
LAST_RUN = Gauge("glossa_doctor_last_run_timestamp_seconds", "When the doctor last looked.")
SECONDS = Gauge("glossa_doctor_check_seconds", "How long the last look took.")


def export(report: Report) -> None:
    """The last look, for whoever scrapes."""
    for check in report.checks:
        if check.kind is Kind.INVARIANT:
            known = check.status in {Status.SOUND, Status.VIOLATED}
            VIOLATIONS.labels(check.name).set(check.rows if known else nan)
    UNFIT.set(
        sum(
            check.kind is Kind.ENVIRONMENT and check.status is Status.VIOLATED
            for check in report.checks
        )
    )
    UNKNOWN.set(report.count(Status.UNKNOWN))
    LAST_RUN.set(report.taken_at.timestamp())
    SECONDS.set(report.seconds)
