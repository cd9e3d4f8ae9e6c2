"""From the record that a run leaves beside its checkpoints to a page that shows it; reads records alone."""

from bu_torch.report.page import render as render
from bu_torch.report.page import write_comparison, write_report
from bu_torch.report.reading import find_records as find_records
from bu_torch.report.reading import read_record
from bu_torch.report.record import RunRecord as RunRecord

__all__ = ["read_record", "write_comparison", "write_report"]
