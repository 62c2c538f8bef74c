"""From records to what the notebooks say: the paper's numbers, statistics, tables, verdicts."""
