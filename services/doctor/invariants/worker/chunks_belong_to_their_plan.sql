-- What was explained of a page is a piece that its plan has, so a retry puts together what belongs together.
-- If not: stickers stand at the wrong place. Delete the plan: the page is cut and explained anew.
SELECT made.generation_id, made.chunk, cardinality(plan.chunk_ends) AS chunks
FROM worker.chunk_explanations AS made
LEFT JOIN worker.chunk_plans AS plan USING (generation_id)
WHERE plan.generation_id IS NULL OR made.chunk >= cardinality(plan.chunk_ends);
