"""Pages that show runs, from the records that they leave beside their checkpoints, and from nothing else."""

from bu_torch.report.page import render as render
from bu_torch.report.page import write_report
from bu_torch.report.record import RunRecord as RunRecord
from bu_torch.report.record import find_records as find_records
from bu_torch.report.record import read_record

__all__ = ["read_record", "write_report"]
