"""Models of the tests: some are good, some do what a process for a cell has to survive."""

import torch
from torch import nn


class Inverse(nn.Module):
    def forward(self, x):
        return torch.linalg.inv_ex(x + 1)[0].relu()


class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        return self.linear(x)

    def half(self, x, *, scale):
        return self.linear(x) * scale


def small():
    print("loaded small")
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()).eval(), (
        torch.randn(1, 3, 8, 8),
    )


def inverse():
    return Inverse().eval(), (torch.eye(3),)


def methods():
    model = Two().eval()
    forward = {
        "model": model,
        "args": (torch.ones(2, 4),),
        "dynamic_shapes": ({0: torch.export.Dim("n", max=9)},),
    }
    half = nn.Linear(4, 4).eval()
    return {
        "methods": {
            "forward": forward,
            "half": {"model": half, "args": (), "kwargs": {"input": torch.ones(1, 4)}},
        }
    }


def wrong():
    return 7


def exits():
    import os

    os._exit(0)


def orphaned():
    """Ends the process that waits for this one."""
    import os
    import signal
    import time

    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(3600)


def interrupts():
    raise KeyboardInterrupt("nobody pressed a key")


def hangs():
    import os
    import time

    print("patience")
    open("at_work", "w").write(str(os.getpid()))
    time.sleep(3600)


def greedy():
    kept = []
    while True:
        kept.append(torch.ones(1 << 24))


def noisy():
    print("x" * (1 << 22))
    return small()


def forks():
    """One copy goes on as the model, another in a session of its own; neither may
    answer or stay.
    """
    import os
    import time

    if os.fork() == 0:
        os.setsid()
        open("forked", "w").write(str(os.getpid()))
        time.sleep(3600)
    while not os.path.exists("forked") or not open("forked").read():
        time.sleep(0.01)
    os.fork()
    return small()


def killed():
    import os
    import signal

    with open("attempts", "a") as file:
        file.write("x")
    os.kill(os.getpid(), signal.SIGKILL)
