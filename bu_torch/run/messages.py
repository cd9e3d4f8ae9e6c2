"""Sentences for the log, made from plain facts."""

from bu_torch.rule.decision import Reason
from bu_torch.run.budget import Plan
from bu_torch.run.history import History
from bu_torch.run.record import Account
from bu_torch.run.settings import Settings
from bu_torch.samples.samples import IGNORED


def why_stopped(checks: History, epoch: int, step: int | None = None) -> str:
    """Name the reason to stop after the last check; "" if there is none."""
    selection, settings, verdict = checks.selection, checks.settings, checks.verdict
    if selection is None or not isinstance(settings, Settings) or not verdict.should_stop:
        return ""
    where = f"in epoch {epoch}" if step is None else f"at step {step} of epoch {epoch}"
    start = f"Stopped {where}: {selection.title}"
    if verdict.reason == Reason.NON_FINITE_METRIC:
        return f"{start} gave a score that is not finite ({checks.last_score})."
    if verdict.reason == Reason.STOPPING_THRESHOLD:
        return f"{start} rose above the stopping threshold {settings.stopping_threshold}."
    wait, compared = verdict.wait, checks.compared
    now, unit = (epoch, "epoch") if step is None else (step, "step")
    then = compared[-1 - wait].get(unit) if wait < len(compared) else None
    since = f" ({now - then} {unit}s)" if then is not None and now - then > wait else ""
    by = f" by more than {settings.min_delta:g}" if settings.min_delta else ""
    return f"{start} did not improve{by} in the last {'check' if wait == 1 else f'{wait} checks'}{since}."


def why_none_kept(checks: History) -> str:
    """Name the reason for which no epoch is kept."""
    if not checks.entries:
        return "no check was made"
    if not checks.compared:
        return "no check counted"
    selection = checks.selection
    if selection is not None and all(selection.score(entry) is None for entry in checks.compared):
        return f"all checks were of epochs before `start_from_epoch={selection.start_from_epoch}`"
    return "no finite check counted"


def cost(account: Account) -> str:
    """Tell what a training has cost beside training itself; of a resumed one, since then.

    At least so much: what a trainer does for its hooks and with what is logged is not known here.
    """
    parts = {"preparation": account.setup_seconds, "checks": account.check_seconds, "saving": account.saving_seconds}
    seconds = account.training_seconds
    share = sum(parts.values()) / max(seconds, 1e-9)
    listed = ", ".join(f"{name} {spent:.1f} s" for name, spent in parts.items() if spent or name != "saving")
    total = sum(round(spent, 1) for spent in parts.values())  # of the parts as they are listed
    start = "Since the run resumed, boundary" if account.has_resumed else "Boundary"
    return (
        f"{start} uncertainty took at least {total:.1f} s ({listed}) beside {seconds:.1f} s of training: {share:.0%}."
    )


def ignored(n_ignored: int) -> str:
    """Tell how many samples are left out; "" for none."""
    if not n_ignored:
        return ""
    return f"{n_ignored} samples have the label {IGNORED}, which torch's losses ignore: they are left out."


def bound_in_bytes(wanted: Plan, made: Plan, max_bytes: int | None) -> str:
    """Tell that fewer samples are looked at because all would take more than `max_bytes`; "" if they do not."""
    if made.n_samples >= wanted.n_samples:
        return ""
    return (
        f"Boundary uncertainty holds {made.n_samples} samples and not {wanted.n_samples}, to take no more than"
        f" {max_bytes} bytes. To change it: `max_bytes`."
    )
