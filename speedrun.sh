#!/usr/bin/env bash
# The speedrun: from open weights that invent Triton's API to kernels that are executed and right, on one GPU.
#
#     ./speedrun.sh DATA KERNELBENCH [MODEL] [OUT]
#
# DATA: a folder that collect_data.py has filled (sft.jsonl, rl.jsonl, heldout.jsonl, packed with xz or not), such
# as results/data. If it has a curriculum.jsonl as well, GRPO takes its tasks: those of rl.jsonl that the SFT model
# solves sometimes, and not always (bench.channels.tasks --hard-last writes one).
# KERNELBENCH: a clone of the benchmark.
# Each command continues where it was stopped, so the script can be cut anywhere and started again.
# docs/speedrun.md explains the numbers and keeps the records. MINUTES=10 ./speedrun.sh ... gives GRPO less time,
# EPOCHS=7 gives SFT more. TASKS, TEMPERATURE, LR and STEPS are GRPO's.
set -euo pipefail
if [ $# -lt 2 ]; then
    echo "error: DATA and KERNELBENCH are expected: ./speedrun.sh results/data KERNELBENCH [MODEL] [OUT]" >&2
    exit 2
fi
data=$1
kernelbench=$2
model=${3:-Qwen/Qwen2.5-Coder-0.5B-Instruct}
out=${4:-out/speedrun}
rows() { ls "$data/$1.jsonl" "$data/$1.jsonl.xz" 2> /dev/null | head -n 1 || true; }

# A wrong path is found before anything is trained.
for name in sft rl heldout; do
    if [ -z "$(rows $name)" ]; then
        echo "error: $data: no $name.jsonl or $name.jsonl.xz in it; a folder of collect_data.py's is expected" >&2
        exit 2
    fi
done
if [ "$kernelbench" != hub ] && [ -z "$(find "$kernelbench" -maxdepth 3 -name level1 2> /dev/null)" ]; then
    echo "error: $kernelbench: no folder level1 in it; a clone of KernelBench, or hub, is expected" >&2
    exit 2
fi

# 1. SFT on verified pairs teaches Triton.
python train_sft.py --name sft --out "$out" --model "$model" --data "$(rows sft)" \
    --lora 32 --lr 4e-4 --batch 64 --epochs "${EPOCHS:-2}" --max-len 3072 --micro-tokens 32768 --save-every 100

# 2. GRPO on tasks without a known answer: what runs and is right is paid. The next step is sampled while this one is
# judged.
tasks=${TASKS:-$(rows curriculum)}
python train_grpo.py --name grpo --out "$out" --model "$out/sft/model" --tasks "${tasks:-$(rows rl)}" --no-preflight \
    --lora 8 --lr "${LR:-1.5e-4}" --warmup 0.03 --min-lr 0.1 --kl 0.1 --steps "${STEPS:-72}" --minutes "${MINUTES:-16}" --ahead \
    --prompts 48 --group 16 --updates 2 --max-tokens 1536 --truncated mask --timeout 5 --temperature "${TEMPERATURE:-1}" \
    --micro-tokens 32768 --kv-gib 32

# 3. What each model can do: held-out operators, compositions and shapes, and KernelBench.
for name in base sft grpo; do
    folder=$out/$name/model
    if [ $name = base ]; then folder=$model; fi
    python -m bench.channels.tasks --data "$(rows heldout)" --model "$folder" \
        --n 4 --limit 80 --max-tokens 2048 --out "$out/$name.heldout.json"
    python -m bench.channels.kernelbench --data "$kernelbench" --levels 1 2 --model "$folder" \
        --n 10 --max-tokens 2048 --policy strict --memory-gib 16 --out "$out/$name.kernelbench.json"
done
python -m bench.channels.compare "$out/sft.heldout.json" "$out/grpo.heldout.json"
python -m bench.channels.compare "$out/sft.kernelbench.json" "$out/grpo.kernelbench.json"
python -m bench.channels.learned "$out/grpo" --out "$out/learned.png" \
    --before "$out/sft.heldout.json" "$out/sft.kernelbench.json" \
    --after "$out/grpo.heldout.json" "$out/grpo.kernelbench.json"
