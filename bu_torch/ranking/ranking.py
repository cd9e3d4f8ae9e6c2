"""Ranking of classifiers, as a table and as files."""

import csv
import filecmp
import json
import math
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, overload

from bu_torch.internal.files import whole_file
from bu_torch.internal.inputs import check_integer
from bu_torch.internal.printing import cleaned


class Candidate(NamedTuple):
    """One classifier of a `Ranking`."""

    rank: int  # 1 is the best
    name: str  # its path as given, its name, or its place and type
    score: float  # by the rule, larger is better; NaN if its logits are not finite, which ranks last
    epoch: int | None  # in its checkpoint; None if there is none
    step: int | None  # optimiser steps in its checkpoint; None if there are none
    signals: dict[str, float]  # all that `Signals` measures of one classifier, such as `boundary_uncertainty`
    path: Path | None = None  # its file; None if it has none

    def as_record(self) -> dict[str, Any]:
        """Rank, name, epoch, step, score and all signals, by name."""
        return {name: getattr(self, name) for name in ("rank", "name", "epoch", "step", "score")} | self.signals


@dataclass(frozen=True)
class Ranking(Sequence[Candidate]):
    """Classifiers in order, the best first, at least one (ValueError); printed, it is a table."""

    rule: str  # that ranked them; see `rank_checkpoints`
    candidates: tuple[Candidate, ...]

    def __post_init__(self) -> None:
        if not self.candidates:
            raise ValueError("`candidates` must hold at least one candidate, got none.")

    @property
    def best(self) -> Candidate:
        """The first candidate."""
        return self.candidates[0]

    @property
    def paths(self) -> list[Path]:
        """Files in order; candidates without a file are left out."""
        return [candidate.path for candidate in self.candidates if candidate.path is not None]

    @overload
    def __getitem__(self, index: int) -> Candidate: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Candidate, ...]: ...
    def __getitem__(self, index: int | slice) -> Candidate | tuple[Candidate, ...]:
        return self.candidates[index]

    def __len__(self) -> int:
        return len(self.candidates)

    def __str__(self) -> str:
        records = [candidate.as_record() for candidate in self.candidates]
        names = [name for name in records[0] if any(record[name] is not None for record in records)]
        names.append(names.pop(names.index("name")))  # the name comes last, because it may be long
        columns = [[name, *(_shown(record[name]) for record in records)] for name in names]
        *widths, _ = (max(map(len, column)) for column in columns)
        rows = zip(*columns, strict=True)
        lines = ["  ".join(map(str.rjust, row, (*widths, 0))) for row in rows]
        return "\n".join([f"{len(self)} candidates by {self.rule}, best first", *lines])

    def to_json(self, path: str | Path) -> None:
        """Write the rule and a record for each candidate; a number that is not finite is null. Folders are made."""

        def plain(value: Any) -> Any:
            return None if isinstance(value, float) and not math.isfinite(value) else value

        records = [{name: plain(value) for name, value in one.as_record().items()} for one in self.candidates]
        text = json.dumps({"rule": self.rule, "candidates": records}, indent=2, allow_nan=False)
        with whole_file(Path(path)) as part:
            part.write_text(text + "\n", encoding="utf-8")

    def to_csv(self, path: str | Path) -> None:
        """Write a header and a row for each candidate; folders are made, unprintable characters of names replaced."""
        with whole_file(Path(path)) as part, part.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(self.best.as_record()))
            writer.writeheader()
            for one in self.candidates:
                name = cleaned(one.name)
                safe = f"'{name}" if name.startswith(("=", "+", "-", "@")) else name  # not a formula
                writer.writerow({**one.as_record(), "name": safe})

    def copy_best(self, n_best: int, folder: str | Path) -> list[Path]:
        """Copy the files of the best candidates to a folder, under their paths below the folder common to all.

        The folder is made. Returns the copies in order. Nothing is overwritten: if a different file has the name of a
        copy, FileExistsError is raised, and nothing is copied. ValueError is raised if `n_best` is not from 1 to the
        number of candidates, or a candidate has no file.
        """
        if check_integer("n_best", n_best, 1) > len(self):
            raise ValueError(f"`n_best` must be at most the number of candidates, {len(self)}, got {n_best}.")
        if len(self.paths) < len(self):
            raise ValueError("`copy_best` needs candidates with files, got some without.")
        common = Path(os.path.commonpath([path.resolve().parent for path in self.paths]))
        copies = [(path, Path(folder) / path.resolve().relative_to(common)) for path in self.paths[:n_best]]
        for path, copy in copies:
            if copy.exists() and not (copy.is_file() and filecmp.cmp(path, copy, shallow=False)):
                raise FileExistsError(f"`{copy}` already exists and differs from `{path}`.")
        for path, copy in copies:
            if not copy.exists():
                with whole_file(copy) as part:
                    shutil.copy2(path, part)
        return [copy for _, copy in copies]


def _shown(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.4f}" if isinstance(value, float) else cleaned(value)
