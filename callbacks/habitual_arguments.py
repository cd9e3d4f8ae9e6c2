"""Arguments of Lightning's callbacks that users pass by habit, and what there is instead of them."""

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

T = TypeVar("T", bound=type)

_NOTHING_TO_MONITOR = "this callback measures by itself, at the training samples: `rule=` chooses what decides"
INSTEAD = {
    "monitor": _NOTHING_TO_MONITOR,
    "mode": f"a larger score is better; {_NOTHING_TO_MONITOR}",
    "save_top_k": "one checkpoint is kept, the best. A `ModelCheckpoint(monitor='expected_accuracy', mode='max',"
    " save_top_k=3)` beside it keeps more",
    "class_weights": "`class_weight=`",
    "log_rank_zero_only": "with `verbose=True` each process logs an improvement",
    "strict": "the score is never missing",
    "divergence_threshold": "scores are bounded; `check_finite=` ends a training whose outputs are not finite",
    "save_last": "a `ModelCheckpoint(save_last=True)` beside it saves the last",
}


def without(names: dict[str, str]) -> Callable[[T], T]:
    """Make a class say what there is instead of some arguments; its signature does not change."""

    def decorate(cls: T) -> T:
        init = cls.__init__  # type: ignore[misc]

        @wraps(init)
        def checked(self: Any, *args: Any, **kwargs: Any) -> None:
            if found := [name for name in names if name in kwargs]:
                raise TypeError(f"{type(self).__name__} has no `{found[0]}`: {names[found[0]]}.")
            init(self, *args, **kwargs)

        cls.__init__ = checked  # type: ignore[misc]
        return cls

    return decorate
