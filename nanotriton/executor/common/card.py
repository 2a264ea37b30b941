"""The GPU that candidates are judged for: Triton compiles for it, and a candidate that asks is told of it.

An executor on a GPU asks the driver once, in a process of its own (`ask_driver` in processes.py). The answer
goes as plain data to the processes that record and compile, which see no GPU. On a CPU candidates are judged
for DEFAULT, whatever GPU the machine has: verdicts there are the same on every machine.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Card:
    """A GPU's properties as torch names them. Memory in bytes, clock rates in kHz, bus width in bits."""

    name: str
    major: int  # of the compute capability
    minor: int
    multi_processor_count: int
    max_threads_per_multi_processor: int
    warp_size: int
    regs_per_multiprocessor: int
    regs_per_block: int
    shared_memory_per_block: int  # without asking for more
    shared_memory_per_block_optin: int  # the most that a kernel can ask for
    shared_memory_per_multiprocessor: int
    L2_cache_size: int
    total_memory: int
    is_integrated: int
    clock_rate: int
    memory_clock_rate: int
    memory_bus_width: int

    @property
    def arch(self) -> int:
        """The compute capability as Triton writes it: 90 for 9.0."""
        return 10 * self.major + self.minor

    @property
    def sm(self) -> str:
        return f"sm_{self.arch}"

    @property
    def target(self):
        """What Triton compiles for: a GPUTarget."""
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", self.arch, self.warp_size)

    @property
    def bandwidth(self) -> float:
        """The memory's peak in bytes a second: two transfers a clock. 0 where the driver does not tell."""
        return 2 * self.memory_clock_rate * 1e3 * self.memory_bus_width / 8

    def __str__(self) -> str:
        return f"{self.name} ({self.sm})"


DEFAULT = Card(
    name="NVIDIA H100 80GB HBM3",
    major=9,
    minor=0,
    multi_processor_count=132,
    max_threads_per_multi_processor=2_048,
    warp_size=32,
    regs_per_multiprocessor=65_536,
    regs_per_block=65_536,
    shared_memory_per_block=49_152,
    shared_memory_per_block_optin=232_448,
    shared_memory_per_multiprocessor=233_472,
    L2_cache_size=52_428_800,
    total_memory=85_017_493_504,
    is_integrated=0,
    clock_rate=1_980_000,
    memory_clock_rate=2_619_000,
    memory_bus_width=5_120,
)
