"""Pages that show runs, made only from the records that runs leave beside their checkpoints."""

from bu_torch.report.page import render, write_report
from bu_torch.report.record import RunRecord, find_records, read_record

__all__ = ["RunRecord", "find_records", "read_record", "render", "write_report"]
