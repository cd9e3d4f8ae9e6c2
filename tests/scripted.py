"""A stopping callback that measures what a script says, so that tests decide what is kept and when it stops."""

from bu_torch.callbacks import BoundaryUncertaintyMonitor, BoundaryUncertaintyStopping
from bu_torch.callbacks.fit import Fit
from bu_torch.callbacks.network import NetworkReader
from bu_torch.callbacks.samples import CheckSamples

AGREEMENTS = ("expected_accuracy", "label_agreement", "vote_agreement", "neighbor_agreement")


class NoSamples(CheckSamples):
    """Reads nothing, and prepares nothing."""

    def prepare(self, trainer, pl_module):
        return self._tracker.go_on("the same")


class NoNetwork(NetworkReader):
    """Reads nothing."""

    def try_out(self, trainer, pl_module, n_classes):
        self.is_tried = True


class ScriptedFit(Fit):
    """Measures what the script of its callback says, by epoch or check by check; after its end the last value."""

    samples, network = NoSamples, NoNetwork

    def __init__(self, settings, schedule, source, script):
        super().__init__(settings, schedule, source)
        self.script = script
        self._network = self.network(None, None)
        self._samples = self.samples(settings, source, schedule, self.tracker, self._network)

    def start_batch(self, trainer, pl_module, batch):
        super().start_batch(trainer, pl_module, batch)
        self.watch.end()

    def _measure(self, trainer, network):
        script = self.script
        place = len(self.tracker.history) if self.schedule.is_by_steps else trainer.current_epoch
        value = script[min(place, len(script) - 1)]
        values = dict.fromkeys(("boundary_uncertainty", *AGREEMENTS), value)
        return {**values, "trust_score": 2 * value, "prediction_changes": 1 - value, "omission": 0.0}


class ScriptMixin:
    fit_class = ScriptedFit
    script = (0.1, 0.9, 0.5)

    def _new_fit(self):
        made = super()._new_fit()
        return self.fit_class(made.settings, made.schedule, made.source, self.script)


class Scripted(ScriptMixin, BoundaryUncertaintyStopping):
    """Stops by a script, and keeps the weights as they are in training."""

    def __init__(self, script=ScriptMixin.script, **kwargs):
        self.script = script
        super().__init__(**{"n_draws": 1, "rule": "boundary_uncertainty", "averaging": None, **kwargs})


class ScriptedMonitor(ScriptMixin, BoundaryUncertaintyMonitor):
    """Measures by a script."""

    def __init__(self, script=ScriptMixin.script, **kwargs):
        self.script = script
        super().__init__(**{"n_draws": 1, **kwargs})
