"""The small interface where the outside world begins: whoever explains a page."""

from datetime import timedelta
from typing import Protocol

from services.worker.domain import Description, Explanation, Image, Page, Usage


class Explainer(Protocol):
    """Explains pages. Raises ModelError for everything that can go wrong with a model."""

    @property
    def model(self) -> str:
        """The name that is part of the cache key."""
        ...

    @property
    def kind(self) -> str:
        """Which implementation this is: "offline" or "openai"."""
        ...

    @property
    def sees(self) -> bool:
        """Whether it can look at pictures."""
        ...

    async def explain(self, page: Page) -> Explanation:
        """Explains one page, or one chunk of it, in the locale it asks for."""
        ...

    async def describe(self, image: Image) -> Description:
        """Tells what a picture shows, in English; only for one that `sees`."""
        ...


class ModelError(Exception):
    """An explanation that did not come about.

    ModelError
    ├── ModelRateLimited      transient, the provider may say how long to wait
    ├── ModelQuotaExhausted   transient, but a person has to pay first
    ├── ModelUnavailable      transient: 5xx, connection, unexpected refusal of our credentials
    ├── ModelTimeout          transient: no answer came
    ├── ModelDripping         transient: an answer began and did not come to its end in time
    ├── ModelEndless          transient: an answer went on and on
    ├── ModelTruncated        transient: the answer broke off
    ├── ModelEmpty            transient: an answer without anything in it
    ├── ModelGarbled          transient: characters in it that no text has
    ├── ModelForeignAnswer    transient: somebody else answered, such as a sign-in page
    ├── ModelPaused           no failure: the model was not asked, the job is given back untouched
    ├── ModelMismatch         no failure: the job is for a worker with another model or version
    ├── ModelBadOutput        permanent: the answer does not fit the schema
    ├── ModelAnswerTooLarge   permanent: the answer announced itself as too large
    ├── ModelRejectedPage     permanent: the provider does not accept this page
    └── ContentRefused        permanent: the model will not explain this page
    """

    reason = "MODEL_UNAVAILABLE"
    permanent = False
    message = "The language model could not be used."

    def __init__(self, cause: str, *, retry_after: timedelta | None = None) -> None:
        super().__init__(cause)
        self.retry_after = retry_after
        # What the provider charges for all the same, as far as it told.
        self.usage = Usage()


class ModelRateLimited(ModelError):
    reason = "MODEL_RATE_LIMITED"
    message = "The language model is busy."


class ModelQuotaExhausted(ModelError):
    reason = "MODEL_QUOTA_EXHAUSTED"
    message = "The account at the language model is used up."


class ModelUnavailable(ModelError):
    reason = "MODEL_UNAVAILABLE"
    message = "The language model could not be reached."


class ModelTimeout(ModelError):
    reason = "MODEL_TIMEOUT"
    message = "The language model did not answer in time."


class ModelDripping(ModelError):
    reason = "MODEL_DRIPPING"
    message = "The language model's answer did not come to its end in time."


class ModelEndless(ModelError):
    reason = "MODEL_ENDLESS"
    message = "The language model's answer did not end."


class ModelTruncated(ModelError):
    reason = "MODEL_TRUNCATED"
    message = "The language model's answer broke off."


class ModelEmpty(ModelError):
    reason = "MODEL_EMPTY"
    message = "The language model's answer was empty."


class ModelGarbled(ModelError):
    reason = "MODEL_GARBLED"
    message = "The language model's answer was garbled."


class ModelForeignAnswer(ModelError):
    reason = "MODEL_FOREIGN_ANSWER"
    message = "Something other than the language model answered."


class ModelPaused(ModelError):
    reason = "MODEL_PAUSED"
    message = "The language model asked for a pause."


class ModelMismatch(ModelError):
    reason = "MODEL_MISMATCH"
    message = "This worker runs another model than the one asked for."


class ModelBadOutput(ModelError):
    reason = "MODEL_BAD_OUTPUT"
    permanent = True
    message = "The language model's answer could not be used."


class ModelAnswerTooLarge(ModelError):
    reason = "MODEL_ANSWER_TOO_LARGE"
    permanent = True
    message = "The language model's answer was too large."


class ModelRejectedPage(ModelError):
    reason = "MODEL_REJECTED_PAGE"
    permanent = True
    message = "The language model does not accept this page."


class ContentRefused(ModelError):
    reason = "CONTENT_REFUSED"
    permanent = True
    message = "The language model declined to explain this page."
