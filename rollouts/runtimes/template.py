"""A process that is forked for every rollout: `python -P -m rollouts.runtimes.template DESCRIPTOR [MODULE]`.

MODULE is imported once, here. Every rollout is then a fork of this process: a process of its own, with its own
session, folder and environment, that starts in milliseconds where importing would cost the better part of a second.
The launcher's requests arrive on the socket DESCRIPTOR: one message with the order (see `keeper`) and four
descriptors: the keeper's control socket, standard input, output and error. It ends when that socket does.
"""

import gc
import importlib
import json
import os
import signal
import socket
import sys

from rollouts.runtimes.keeper import keep

ORDER_LIMIT_BYTES = 128 * 1024
"""Most bytes of one order; a socket message cannot be much larger."""


def main(argv: list[str]) -> int:
    """Serve until the launcher's end of the socket is closed."""
    orders = socket.socket(fileno=int(argv[0]))
    for module in argv[1:]:
        warm_up = getattr(importlib.import_module(module), "warm_up", None)
        if warm_up is not None:
            warm_up()
    # objects made so far are left alone by later collections: forks then share their memory
    gc.collect()
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # keepers report to the launcher; nobody waits for them
    orders.send(b"ready")
    while True:
        message, descriptors, _flags, _address = socket.recv_fds(orders, ORDER_LIMIT_BYTES, 4)
        if not message:
            return 0
        if os.fork() == 0:
            orders.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            keep(json.loads(message), socket.socket(fileno=descriptors[0]), descriptors[1:])
        for descriptor in descriptors:
            os.close(descriptor)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
