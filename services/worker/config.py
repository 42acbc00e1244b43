"""Settings of the Worker."""

from datetime import timedelta
from typing import Annotated

from pydantic import Field, SecretStr, StringConstraints

from services.runtime.settings import ExplanationSettings, ServiceSettings

# A name and nothing else: no scheme, no port, no path.
Host = Annotated[str, StringConstraints(pattern=r"^[a-z0-9-]+(\.[a-z0-9-]+)+$", max_length=100)]


# Scheme, host and port, and nothing after them.
ORIGIN = r"^(https?://[a-z0-9.-]+(:\d{1,5})?)?$"


class Config(ServiceSettings):
    """Where jobs and pages come from and how many run at a time; `GLOSSA_CONCURRENCY` and so on."""

    explanation: ExplanationSettings = Field(default_factory=ExplanationSettings)
    registry_address: str = "127.0.0.1:50051"
    cache_address: str = "127.0.0.1:50052"
    quota_address: str = "127.0.0.1:50053"
    # Watchers hold a call each, and thousands of them are normal.
    max_concurrent_rpcs: int = Field(default=20_000, ge=1)
    # Names this process in leases; made up when empty.
    worker_id: str = Field(default="", max_length=64)
    concurrency: int = Field(default=8, ge=1, le=100)
    renew_seconds: float = Field(default=10.0, gt=0, le=20)
    # How long running attempts may go on after SIGTERM.
    attempt_grace_seconds: float = Field(default=10.0, ge=0)
    # Watchers hear from us at least this often.
    heartbeat_seconds: float = Field(default=15.0, gt=0)
    # How long a watcher may leave a message before it is cut off.
    slow_reader_seconds: float = Field(default=30.0, gt=0)
    # How often it is looked which generations have failed.
    collect_seconds: float = Field(default=5.0, gt=0)
    # How long events are kept after the end of their generation.
    event_days: float = Field(default=7, gt=0)
    dead_letter_days: float = Field(default=30, gt=0)
    # Calls to the model at a time, at most; fewer while it says that there are too many.
    model_concurrency: int = Field(default=16, ge=1, le=1000)
    # For one call to the model, from the question to the end of the answer.
    model_call_seconds: float = Field(default=60.0, gt=0, le=300)
    # How long nothing is asked after the model said that its account is used up.
    model_quota_pause_seconds: float = Field(default=900.0, gt=0, le=3600)
    # How long a page is held while the model wants a pause, before it goes back into the queue.
    model_hold_seconds: float = Field(default=30.0, gt=0, le=50)
    # Hosts that links in explanations may lead to, e.g. '["en.wikipedia.org"]'; none unless told.
    link_hosts: tuple[Host, ...] = ()

    # Who may see the admin pages, comma separated; nobody unless told.
    admin_emails: str = Field(default="", validation_alias="ADMIN_EMAILS")
    # Where browsers reach them, e.g. https://glossa.example.org; loopback unless told.
    admin_origin: Annotated[str, StringConstraints(pattern=ORIGIN)] = ""
    # What the pages read with, as glossa_dashboard; without it there are none.
    dashboard_database_url: SecretStr = SecretStr("")

    @property
    def admins(self) -> frozenset[str]:
        emails = (email.strip().lower() for email in self.admin_emails.split(","))
        return frozenset(email for email in emails if email)

    @property
    def model_hold(self) -> timedelta:
        return timedelta(seconds=self.model_hold_seconds)

    @property
    def model_quota_pause(self) -> timedelta:
        return timedelta(seconds=self.model_quota_pause_seconds)

    @property
    def renew_every(self) -> timedelta:
        return timedelta(seconds=self.renew_seconds)

    @property
    def heartbeat(self) -> timedelta:
        return timedelta(seconds=self.heartbeat_seconds)

    @property
    def slow_reader(self) -> timedelta:
        return timedelta(seconds=self.slow_reader_seconds)

    @property
    def collect_every(self) -> timedelta:
        return timedelta(seconds=self.collect_seconds)

    @property
    def events_kept(self) -> timedelta:
        return timedelta(days=self.event_days)

    @property
    def dead_letters_kept(self) -> timedelta:
        return timedelta(days=self.dead_letter_days)

    @property
    def attempt_grace(self) -> timedelta:
        return timedelta(seconds=self.attempt_grace_seconds)
