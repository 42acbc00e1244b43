"""Holds counts, references, files and bytes against each other, and mends what can be mended."""

import asyncio
from collections import Counter
from dataclasses import dataclass, replace

from services.registry import metrics
from services.registry.domain import Finding, HealthReport, Problem
from services.registry.health_store import INVARIANTS, HealthStore
from services.registry.objects import Objects

BATCH = 200
AT_ONCE = 16


@dataclass(frozen=True, kw_only=True)
class CheckHealth:
    """Repairs in the order of cause and effect: references first, counts last."""

    store: HealthStore
    objects: Objects

    async def run(self, *, repair: bool, check_bytes: bool) -> HealthReport:
        """Everything that is not as it must be, and whether it is now."""
        findings: list[Finding] = []
        for problem in INVARIANTS:
            findings += await self.store.find(problem)
        if repair:
            findings = [await self._mend(finding) for finding in findings]
        if check_bytes:
            findings += await self._missing_bytes()
        left = Counter(finding.problem for finding in findings if not finding.repaired)
        looked_for = [*INVARIANTS, *([Problem.BYTES_MISSING] if check_bytes else [])]
        for problem in looked_for:
            metrics.reference_drift.labels(problem.value).set(left[problem])
        documents, references = await self.store.count_all()
        return HealthReport(documents=documents, references=references, findings=tuple(findings))

    async def _mend(self, finding: Finding) -> Finding:
        if finding.file_id is not None:
            await self.store.mend_file(finding.file_id)
        else:
            await self.store.recount(finding.pdf_hash)
        return replace(finding, repaired=True)

    async def _missing_bytes(self) -> list[Finding]:
        missing: list[Finding] = []
        limit, after = asyncio.Semaphore(AT_ONCE), ""

        async def look(pdf_hash: str, size_bytes: int) -> None:
            async with limit:
                if await self.objects.size(pdf_hash) != size_bytes:
                    missing.append(Finding(problem=Problem.BYTES_MISSING, pdf_hash=pdf_hash))

        while held := await self.store.list_held_documents(after=after, most=BATCH):
            await asyncio.gather(*(look(*one) for one in held))
            after = held[-1][0]
        return sorted(missing, key=lambda finding: finding.pdf_hash)
