"""One run on a machine with CUDA, under 8 minutes: does the engine agree with the CPU, and what does verification cost?

    python experiments/gpu_check.py --out OUT           on a CUDA device
    python experiments/gpu_check.py --smoke --out OUT   the same steps on the CPU at toy sizes (a test runs this)

Three parts, each written to OUT/gpu_check.json when it is done, and to OUT/gpu_check.md at the end:

1. engine: the same prompts on the CPU and on the device in float32. Greedy texts must be equal; sampled runs are
   compared by their block efficiencies, because kernels differ in the last bits and one bit may change a text.
2. verification: seconds of every verifier on a drafted tree at V = 49,152 and 151,936, L = 8, K = 4.
3. stages: seconds of a decoding round by stage with randomly initialised models of 8B and 0.6B shape in bfloat16,
   K = 1..4, L = 4, 8, 16. Random weights accept almost nothing; the stage times do not depend on it.

Parts that no longer fit into ``--budget`` seconds are left out, and the table says so.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from lpverify.core.draft_tree import DraftTree, topology
from lpverify.decode.engine import Request, Settings, generate
from lpverify.decode.load import load_model, quiet
from lpverify.decode.metrics import STAGES, summarize
from lpverify.decode.models import Pair
from lpverify.decode.run import versions
from lpverify.decode.sampling import Sampling
from lpverify.decode.transformer import TransformersModel
from lpverify.verifiers import names, sample, verifier

VERIFIERS = names(any_vocabulary=True)
STAGE_VERIFIERS = ("bv", "traversal", "gbv", "pbv", "ebv")
"""A subset for part 3, to stay within the budget."""
SHAPES: dict[str, dict[str, Any]] = {
    "8B": {"hidden_size": 4096, "intermediate_size": 12_288, "num_hidden_layers": 36, "num_attention_heads": 32,
           "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151_936},
    "0.6B": {"hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28, "num_attention_heads": 16,
             "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151_936},
    "toy": {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
            "num_key_value_heads": 1, "head_dim": 8, "vocab_size": 512},
}  # fmt: skip
PROMPTS = ("def main(argv):\n", "class Reader:\n    def __init__(self", "import os\nimport sys\n\n\ndef walk(")


def random_model(shape: str, device: torch.device, dtype: torch.dtype) -> TransformersModel:
    """A Qwen3 model of this shape with random weights, made where it will run."""
    torch.manual_seed(0)
    config = Qwen3Config(**SHAPES[shape], max_position_embeddings=4096, attn_implementation="sdpa")  # type: ignore[call-arg]
    default = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with device:
            module = Qwen3ForCausalLM(config)
    finally:
        torch.set_default_dtype(default)
    return TransformersModel(shape, module.to(device))


def tiny_pair(device: str, smoke: bool) -> tuple[Pair, list[Request]]:
    """The bundled pair on ``device``; in smoke mode two toy models, which need no weights."""
    if smoke:
        toy = random_model("toy", torch.device(device), torch.float32)
        return Pair(toy, toy), [Request((1, 2, 3), "a"), Request((4,), "b")]
    target, tokenizer = load_model("tiny", "target", dtype="float32", device=device)
    draft, _ = load_model("tiny", "draft", dtype="float32", device=device)
    return Pair(target, draft), [Request(tuple(tokenizer.encode(text)), text) for text in PROMPTS]


def check_engine(device: torch.device, smoke: bool) -> list[dict[str, Any]]:
    """Part 1."""
    rows = []
    tokens = 12 if smoke else 96
    on_cpu, requests = tiny_pair("cpu", smoke)
    on_device, _ = tiny_pair(str(device), smoke)
    for name in VERIFIERS:
        greedy = Settings(2, 4, Sampling(0), tokens)
        sampled = Settings(2 if smoke else 4, 4 if smoke else 8, Sampling(1), tokens)
        equal, runs = True, []
        for request in requests:
            texts = [generate(pair, verifier(name), request, greedy).tokens for pair in (on_cpu, on_device)]
            equal = equal and texts[0] == texts[1]
        for pair in (on_cpu, on_device):
            runs.append(summarize([generate(pair, verifier(name), request, sampled) for request in requests]))
        rows.append(
            {
                "algorithm": name,
                "greedy_equal": equal,
                "cpu_block_efficiency": runs[0].block_efficiency,
                "device_block_efficiency": runs[1].block_efficiency,
                "device_stage_seconds": runs[1].stage_seconds,
            }
        )
    return rows


def drafted_view(vocab_size: int, paths: int, depth: int, device: torch.device) -> DraftTree:
    """Rows with the peaks of a language model, target near draft; tokens drawn from the draft's rows."""
    generator = torch.Generator().manual_seed(0)
    noise = [torch.randn((paths * depth + 1, vocab_size), generator=generator) for _ in range(2)]
    draft = torch.softmax((2.5 * noise[0]).to(device, torch.float64), -1)
    target = torch.softmax((2.5 * noise[0] + 0.3 * noise[1]).to(device, torch.float64), -1)
    below = 1
    drafted = [[0] * depth for _ in range(paths)]
    for path in range(paths):  # a star: common prefixes but the root would need common rows
        row = 0
        for i in range(depth):
            drafted[path][i] = int(torch.multinomial(draft[row].cpu(), 1, generator=generator))
            row, below = below, below + 1
    tree = topology(drafted)
    order = [0]
    for node in range(1, len(tree.parent)):
        path = int((tree.node_of[:, tree.depth[node]] == node).argmax())
        order.append(1 + path * depth + int(tree.depth[node]) - 1)
    inner = int((tree.depth < depth).sum())
    return DraftTree.of(tree, target[order], draft[order[:inner]])


def check_verification(device: torch.device, smoke: bool) -> list[dict[str, Any]]:
    """Part 2."""

    class Uniforms:
        def random(self) -> float:
            return 0.37

    rows = []
    for vocab_size in (512,) if smoke else (49_152, 151_936):
        view = drafted_view(vocab_size, 4, 8, device)
        for name in VERIFIERS:
            algorithm, seconds = verifier(name), []
            for _ in range(2 if smoke else 7):
                _wait(device)
                begin = time.perf_counter()
                sample(algorithm(view), Uniforms())
                _wait(device)
                seconds.append(time.perf_counter() - begin)
            rows.append({"algorithm": name, "vocabulary": vocab_size, "seconds": min(seconds)})
    return rows


def check_stages(device: torch.device, smoke: bool, deadline: float) -> list[dict[str, Any]]:
    """Part 3."""
    dtype = torch.float32 if smoke else torch.bfloat16
    target = random_model("toy" if smoke else "8B", device, dtype)
    draft = random_model("toy" if smoke else "0.6B", device, dtype)
    pair = Pair(target, draft)
    generator = torch.Generator().manual_seed(0)
    prompt = torch.randint(0, target.vocab_size, (8 if smoke else 512,), generator=generator).tolist()
    rows = []
    for name in STAGE_VERIFIERS:
        for paths in (1, 2) if smoke else (1, 2, 3, 4):
            for depth in (2,) if smoke else (4, 8, 16):
                if time.monotonic() > deadline:
                    rows.append({"algorithm": name, "paths": paths, "depth": depth, "left_out": "no time"})
                    continue
                settings = Settings(paths, depth, Sampling(1), 2 if smoke else 8)
                generate(pair, verifier(name), Request(tuple(prompt), "warm-up"), settings)
                stats = summarize([generate(pair, verifier(name), Request(tuple(prompt), "x"), settings)])
                by_round = {stage: stats.stage_seconds[stage] / stats.rounds for stage in STAGES}
                rows.append({"algorithm": name, "paths": paths, "depth": depth, "rounds": stats.rounds}
                            | by_round | {"peak_memory": stats.peak_memory})  # fmt: skip
    return rows


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def markdown(results: dict[str, Any]) -> str:
    """The tables as Markdown, times in milliseconds."""
    lines = [f"Device: {results['device']}, torch {results['versions']['torch']}", ""]
    lines += ["| algorithm | greedy equal | tokens/call CPU | tokens/call device |", "|---|---|---|---|"]
    for row in results.get("engine", []):
        values = f"{row['cpu_block_efficiency']:.2f} | {row['device_block_efficiency']:.2f}"
        lines.append(f"| {row['algorithm']} | {'yes' if row['greedy_equal'] else 'NO'} | {values} |")
    lines += ["", "| algorithm | V | verification, ms |", "|---|---|---|"]
    for row in results.get("verification", []):
        lines.append(f"| {row['algorithm']} | {row['vocabulary']:,} | {1e3 * row['seconds']:.2f} |")
    lines += ["", "| algorithm | K | L | " + " | ".join(f"{stage}, ms" for stage in STAGES) + " |", "|---" * 7 + "|"]
    for row in results.get("stages", []):
        start = f"| {row['algorithm']} | {row['paths']} | {row['depth']} | "
        if "left_out" in row:
            lines.append(start + f"left out: {row['left_out']} | | | |")
        else:
            lines.append(start + " | ".join(f"{1e3 * row[stage]:.2f}" for stage in STAGES) + " |")
    return "\n".join(lines) + "\n"


def main(arguments: list[str] | None = None) -> int:
    """Exit code 0 when greedy texts agree, 1 when not."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("gpu_check"))
    parser.add_argument("--smoke", action="store_true", help="toy sizes on the CPU")
    parser.add_argument("--budget", type=float, default=450.0, help="seconds for everything")
    options = parser.parse_args(arguments)
    if not options.smoke and not torch.cuda.is_available():
        parser.error("no CUDA device (--smoke runs the same steps on the CPU)")
    begin = time.monotonic()
    device = torch.device("cpu" if options.smoke else "cuda")
    name = "cpu (smoke)" if options.smoke else torch.cuda.get_device_name()
    quiet()
    options.out.mkdir(parents=True, exist_ok=True)
    results: dict[str, Any] = {"device": name, "versions": versions(), "seconds": {}}
    parts = {
        "verification": lambda: check_verification(device, options.smoke),
        "engine": lambda: check_engine(device, options.smoke),
        "stages": lambda: check_stages(device, options.smoke, begin + options.budget),
    }
    for part, run in parts.items():
        if time.monotonic() - begin > options.budget:
            print(f"{part}: left out, no time")
            continue
        started = time.monotonic()
        results[part] = run()
        results["seconds"][part] = round(time.monotonic() - started, 1)
        (options.out / "gpu_check.json").write_text(json.dumps(results, indent=1))
        print(f"{part}: {results['seconds'][part]} s", flush=True)
    table = markdown(results)
    (options.out / "gpu_check.md").write_text(table)
    print(table)
    return 0 if all(row["greedy_equal"] for row in results.get("engine", [])) else 1


if __name__ == "__main__":
    raise SystemExit(main())
