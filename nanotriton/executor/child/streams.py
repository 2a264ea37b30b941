"""Streams and events of a recording. All of its steps are in order, whatever stream they are put on.

A kernel on a stream of its own is honest only if forward waits for it. So each stream remembers whether
it has work that no other stream has waited for, and a forward that ends before such work is refused.
"""

import torch


class Stream:
    """In place of torch.cuda's streams. `pending`: work was put on it, and nobody has waited for it."""

    cuda_stream = stream_id = device_index = priority = 0
    device = torch.device("cuda", 0)

    def __init__(self, *args, **kwargs):
        self.pending = False
        self._outer: list[Stream] = []

    def __enter__(self):
        streams = _streams()
        self._outer.append(streams.current)
        streams.enter(self)
        return self

    def __exit__(self, *error):
        _streams().enter(self._outer.pop())

    def wait_stream(self, other) -> None:
        if isinstance(other, Stream):
            other.pending = False

    def synchronize(self) -> None:
        self.pending = False

    def wait_event(self, event) -> None:
        event.wait(self)

    def record_event(self, event=None):
        event = event or Event()
        event.record(self)
        return event

    def query(self) -> bool:
        return True


class Event:
    """In place of torch.cuda.Event. No work takes time."""

    def __init__(self, *args, **kwargs):
        self._stream: Stream | None = None  # whose work so far it stands for

    def record(self, stream=None) -> None:
        self._stream = stream if isinstance(stream, Stream) else _streams().current

    def wait(self, stream=None) -> None:
        if self._stream is not None:
            self._stream.pending = False

    synchronize = wait

    def query(self) -> bool:
        return True

    def elapsed_time(self, other) -> float:
        return 1.0


class Guard:
    """In place of torch.cuda.device and its like. There is one device."""

    def __init__(self, *args, **kwargs):
        pass

    def __enter__(self):
        return self

    def __exit__(self, *error):
        return None


class Streams:
    """The streams of a recording. Work on the main one needs no waiting for."""

    active: "Streams"  # those of the recording that runs

    def __init__(self):
        self.main = self.current = Stream()
        self._others: list[Stream] = []

    def enter(self, stream: Stream) -> None:
        self.current = stream
        if stream is not self.main and stream not in self._others:
            self._others.append(stream)

    def note_work(self) -> None:
        """A step is put on the current stream."""
        self.current.pending = self.current is not self.main

    def synchronize(self) -> None:
        for stream in self._others:
            stream.pending = False

    @property
    def pending(self) -> bool:
        return any(stream.pending for stream in self._others)


Streams.active = Streams()


def _streams() -> Streams:
    return Streams.active


def stream_context(stream=None):
    """In place of torch.cuda.stream."""
    return stream if isinstance(stream, Stream) else Guard()


def current_stream(device=None) -> Stream:
    return _streams().current


def default_stream(device=None) -> Stream:
    return _streams().main


def set_stream(stream) -> None:
    if isinstance(stream, Stream):
        _streams().enter(stream)


def synchronize(device=None) -> None:
    _streams().synchronize()
