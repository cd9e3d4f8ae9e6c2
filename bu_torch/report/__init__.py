"""From the record that a run leaves beside its checkpoints to a page that shows it; reads records alone."""

from bu_torch.report.comparing import write_comparison
from bu_torch.report.page import render, write_report
from bu_torch.report.reading import find_records, read_record
from bu_torch.report.record import RunRecord
from bu_torch.report.serving import watch

__all__ = ["RunRecord", "find_records", "read_record", "render", "watch", "write_comparison", "write_report"]
