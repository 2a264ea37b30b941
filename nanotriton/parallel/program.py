"""The start and the end of a script, in every process that torchrun has started, or in the only one."""

import errno
import os
import sys
from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

import torch.distributed as dist

from nanotriton import config
from nanotriton.parallel import stop
from nanotriton.parallel.checkpoint import CheckpointError
from nanotriton.parallel.watch import AGAIN, Watch, is_lost, one_line
from nanotriton.parallel.world import World, leave, setup
from nanotriton.transformer.model_config import ModelError

# what the operating system says of a disk that can't be written to: not our fault
DISK = {
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EFBIG,
    errno.EROFS,
    errno.EACCES,
    errno.EPERM,
    errno.ENAMETOOLONG,
    errno.EIO,
    errno.ESTALE,
}
T = TypeVar("T")


def launch(main: Callable[[Any, World], T], cfg: Any) -> T:
    """Run main(cfg, world) in every process -> what it returns.

    A user's mistake ends in one line and not in a traceback, and so does a signal. What ends one of several
    ranks ends them all; the first says why.
    """
    stop.install()
    watch = Watch()
    try:
        world = setup()
        watch.begin(world)
        result = main(cfg, world)
        world.barrier()  # torchrun ends the others when one rank fails as it ends: all have written by now
        return result
    except stop.Interrupted as signal:
        if not signal.told and os.environ.get("RANK", "0") == "0":
            print(f"ended by {signal}; the same command continues", file=sys.stderr)
        if "TORCHELASTIC_RUN_ID" in os.environ and os.environ.get("RANK") == "0":
            print("(the traceback below is torchrun's own: it ends with SignalException)", file=sys.stderr)
        raise SystemExit(128 + signal.number) from None
    except Exception as error:
        line, lost = users(error), watch.begun and is_lost(error)
        if line or watch.begun:
            watch.fail(line or one_line(error), lost)
        if line or lost:
            raise SystemExit(2 if isinstance(error, (config.ConfigError, ModelError)) else 1) from None
        raise
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()
        watch.end()


def users(error: Exception) -> str:
    """A line about the user's mistake or the machine's; "" for one of ours, which needs a traceback."""
    if isinstance(error, (config.ConfigError, ModelError, CheckpointError)):
        return str(error)
    if isinstance(error, OSError) and error.errno in DISK:
        return f"{error.filename or 'a file'} can't be written: {error.strerror}{AGAIN}"
    return ""


def program(main: Callable[[Any, World], Any], cfg: Any) -> NoReturn:
    """launch() as the last act of a script. Its exit status is what main returns, if that is a number."""
    try:
        result = launch(main, cfg)
        code = result if isinstance(result, int) else 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
        if isinstance(error.code, str):
            print(error.code, file=sys.stderr)
    except BaseException:
        sys.excepthook(*sys.exc_info())
        code = 1
    leave(code)
