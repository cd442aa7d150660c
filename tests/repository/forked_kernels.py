"""Notebook kernels that start without importing: forks of one process that has imported the libraries.

As a program, this file is that process. For each line of its input, a JSON object with the connection file, the folder
and the environment of a kernel, it forks a kernel and prints its process id. It only imports and forks: a fork has none
of the threads that kernels of torch start, and would wait for them forever.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any


@contextmanager
def forked_kernels(environment: Mapping[str, str]) -> Iterator[type]:
    """Start the process; give the class of kernel managers whose kernels are its forks."""
    from jupyter_client import AsyncKernelManager

    command = [sys.executable, str(Path(__file__).resolve())]
    given = {**os.environ, **environment}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=given, text=True) as parent:  # noqa: S603

        class ForkedKernelManager(AsyncKernelManager):
            """A manager of a forked kernel, whose process is a stand-in that ends with the kernel."""

            def format_kernel_cmd(self, extra_arguments: list[str] | None = None) -> list[str]:  # noqa: ARG002
                wanted = {name: self._launch_args[name] for name in ("cwd", "env")}
                wanted["connection_file"] = os.path.realpath(self.connection_file)
                assert parent.stdin is not None
                assert parent.stdout is not None
                parent.stdin.write(json.dumps(wanted) + "\n")
                parent.stdin.flush()
                kernel = int(parent.stdout.readline())
                return ["sh", "-c", f"while kill -0 {kernel} 2> /dev/null; do sleep 0.1; done"]

        yield ForkedKernelManager


def main() -> None:
    """Import the libraries, then fork a kernel for each line of the input."""
    import timm
    import torch
    import transformers
    from ipykernel.kernelapp import IPKernelApp

    import vitrail

    modules = (timm.create_model, torch.nn, transformers.AutoModel, vitrail.explain)  # some are imported at first use
    assert all(modules)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # kernels that ended are no longer processes
    for line in sys.stdin:
        wanted: dict[str, Any] = json.loads(line)
        kernel = os.fork()
        if kernel:
            sys.stdout.write(f"{kernel}\n")
            sys.stdout.flush()
            continue
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # process ids alone are read from standard output
        sys.path.remove(str(Path(__file__).resolve().parent))
        os.chdir(wanted["cwd"])
        os.environ.clear()
        os.environ.update(wanted["env"], JPY_PARENT_PID=str(os.getppid()))  # a kernel ends with its parent
        IPKernelApp.launch_instance(["-f", wanted["connection_file"]])
        os._exit(0)
    os._exit(0)  # at once, without freeing every module


if __name__ == "__main__":
    main()
