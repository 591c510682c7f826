"""The lab: measures what memory costs, beside what others do."""
