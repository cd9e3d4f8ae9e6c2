"""Copies of a network to look at: the user's own network is never run, so nothing of it needs to be put back."""

import types
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from bu_torch.internal.copying import CopyError, Copying, place_of_storage
from bu_torch.internal.random_state import preserved_random_state
from bu_torch.internal.shards import evaluated_in_place, has_shards, replaced_in_place

_MOST_COPIED = 2**26  # bytes of frozen parameters


class Replica:
    """A copy of a network in eval mode, whose weights, buffers and attributes are its own.

    Frozen parameters share their memory if they are most of the network and more than 64 MiB, for a large network that
    is fine-tuned should not be held twice; but those below a module with a `train` or `eval` of its own, which may
    merge weights, and of embeddings with `max_norm` are copied. Containers, arrays, generators, hooks, closures and
    plain objects are copied to any depth; datasets, loaders, optimisers, files and what belongs to a trainer are the
    same objects. Compiled modules and wrappers for several processes are copied as the networks within, under the names
    that weights have there.

    Args:
        network: The network, without lazy layers and without shards.
        values: Values of parameters and buffers by name that replace the network's own.

    Raises:
        CopyError: If a module cannot be copied; the message names it.
    """

    def __init__(self, network: nn.Module, values: Mapping[str, Tensor] | None = None) -> None:
        made, shared = _copied(network, values)
        self._versions = {name: (one, one._version) for name, one in shared.items() if not one.is_inference()}
        self.network: nn.Module = made.eval()

    def check_shared(self) -> None:
        """Raise a `CopyError` if a parameter that the network shares with this copy was changed in place."""
        for name, (parameter, version) in self._versions.items():
            if parameter._version != version:
                raise CopyError(
                    f"A look at a copy of the network has changed its frozen parameter `{name}`, which is not copied:"
                    " `forward` and `eval` must not write to it. Register it as a buffer, or let it require a gradient."
                )


def copy_of(value: Any, values: Mapping[str, Tensor] | None = None) -> Any:
    """Copy an object by the rules of `Replica`, in the modes that it has; itself if it cannot be copied."""
    return _copied(value, values)[0]


def _copied(value: Any, values: Mapping[str, Tensor] | None) -> tuple[Any, dict[str, Any]]:
    """Copy of an object, and the parameters whose memory it shares."""
    network = value if isinstance(value, nn.Module) else nn.Module()
    replaced = {n: one for n, one in _named(network) if values and n in values and one.shape == values[n].shape}
    shared = _shareable(network, replaced)
    with torch.no_grad(), torch.inference_mode(False):
        copying = Copying(network, shared.values(), {id(one) for one in replaced.values()})
        made = copying.root(value)
        if copying.held:
            vars(made)["_held_by_copy"] = copying.held
        if values and replaced:
            own = {name: one for name, one in _named(made) if name in replaced}
            torch._foreach_copy_([one.data for one in own.values()], [values[name] for name in own])
    return made, shared


@contextmanager
def looking_at(
    model: Any,
    values: Mapping[str, Tensor] | None = None,
    *,
    is_sharded: bool = False,
) -> Iterator[Any]:
    """Give a copy of a model to look at, without gradient; random states are put back on leaving.

    A bound method of a module becomes that of the copy. A model that is no module is given as it is. A sharded network
    cannot be copied: its modes, its buffers and what `values` replaces are put back on leaving instead. (`is_sharded`
    says so if its parameters do not show it.) Arguments and errors are those of `Replica`.
    """
    owner = model.__self__ if isinstance(model, types.MethodType) else model
    with preserved_random_state(), torch.no_grad():
        if not isinstance(owner, nn.Module):
            yield model
        elif is_sharded or has_shards(owner):
            with replaced_in_place(owner, values or {}), evaluated_in_place(owner):
                yield model
        else:
            replica = Replica(owner, values)
            yield replica.network if owner is model else types.MethodType(model.__func__, replica.network)
            replica.check_shared()


def has_lazy_layers(module: nn.Module) -> bool:
    """Return True if the first batch has yet to make some layers."""
    return any(map(is_lazy, (*module.parameters(), *module.buffers())))


def _shareable(network: nn.Module, replaced: Collection[str]) -> dict[str, Any]:
    """Frozen parameters by name whose memory a copy shares, if they are most of a large network.

    Those in the memory of trained or `replaced` ones are copied with these.
    """
    own: set[int] = set()
    for part in network.modules():
        modes = ("train", "eval")
        is_merging = any(
            name in vars(part) or not getattr(getattr(type(part), name), "__module__", "").startswith("torch.")
            for name in modes
        )
        is_renorming = isinstance(part, nn.Embedding | nn.EmbeddingBag) and part.max_norm is not None
        if is_merging or is_renorming:
            own.update(map(id, part.parameters(recurse=is_merging)))
    trained = {place_of_storage(one) for one in network.parameters() if one.requires_grad}
    named = [(name, one) for name, one in network.named_parameters() if not one.requires_grad]
    found = {
        name: one
        for name, one in named
        if not (name in replaced or id(one) in own or is_lazy(one) or place_of_storage(one) in trained)
    }
    n_trained = sum(one.nbytes for one in network.parameters() if one.requires_grad and not is_lazy(one))
    return found if sum(one.nbytes for one in found.values()) > max(_MOST_COPIED, n_trained) else {}


def _named(network: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from network.named_parameters(remove_duplicate=False)
    yield from network.named_buffers(remove_duplicate=False)
