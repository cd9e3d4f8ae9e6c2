"""Scripts in processes of their own, forked from one that has imported everything: imports take longer than most."""

import multiprocessing
import os
import runpy
import sys
import warnings
from multiprocessing.forkserver import ensure_running
from unittest import mock

from torch.distributed import TCPStore

FORKED = multiprocessing.get_context("forkserver")
FORKED.set_forkserver_preload(["problems", "torch.distributed.fsdp"])


def run_apart(file, n_processes=1):
    """Exit codes and output of a script, in processes that find each other as those of `torchrun` do."""
    here = {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    with mock.patch.dict(os.environ, here):
        ensure_running()
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)  # others may take a port that is only free
    said = file.with_suffix(".txt")
    ranks = [FORKED.Process(target=_run, args=(file, said, n, n_processes, store.port)) for n in range(n_processes)]
    for one in ranks:
        one.start()
    for one in ranks:
        one.join(300)
        one.kill()
        one.join()
    return [one.exitcode for one in ranks], said.read_text()


def _run(file, said, rank, n_processes, port):
    place = {"LOCAL_RANK": rank, "NODE_RANK": 0, "WORLD_SIZE": n_processes, "MASTER_PORT": port}
    place |= {"MASTER_ADDR": "127.0.0.1", "TORCHELASTIC_USE_AGENT_STORE": True}
    os.environ |= {name: str(value) for name, value in place.items()}
    output = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(output, 1)
    os.dup2(output, 2)
    warnings.simplefilter("ignore")
    runpy.run_path(str(file), run_name="__main__")
