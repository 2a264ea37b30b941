"""A task is judged by the precision that its reference has on the GPU: convolutions in TF32, products in fp32."""

from pathlib import Path

import pytest
import torch

if not torch.cuda.is_available():
    pytest.skip("needs a CUDA device", allow_module_level=True)

from nanotriton.executor import Executor
from nanotriton.tasks.task import load_task

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def executor():
    with Executor("cuda", workers=2) as executor:
        yield executor


@pytest.mark.parametrize(
    ("case", "status"), [("conv2d/as_a_matrix_product", "correct"), ("matmul/persistent", "wrong_value")]
)
def test_tf32_is_right_where_the_reference_has_it(executor, case, status):
    task = load_task(ROOT / "honest" / case.split("/")[0] / "task.py")
    exact = (ROOT / "honest" / f"{case}.py").read_text()
    short = exact.replace('input_precision="ieee"', 'input_precision="tf32"').replace(
        "allow_tf32=False", "allow_tf32=True"
    )
    assert short != exact
    futures = [executor.submit(task, source) for source in (exact, short)]
    full, reduced = [future.result() for future in futures]
    assert full.correct, full.message
    assert reduced.status == status, reduced.message


def test_a_convolution_in_bfloat16_is_wrong(executor):
    task = load_task(ROOT / "honest" / "conv2d" / "task.py")
    source = (ROOT / "honest" / "conv2d" / "as_a_matrix_product.py").read_text()
    source = source.replace("tl.dot(a, y, acc", "tl.dot(a.to(tl.bfloat16), y.to(tl.bfloat16), acc").replace(
        ', input_precision="ieee"', ""
    )
    assert executor.submit(task, source).result().status == "wrong_value"
