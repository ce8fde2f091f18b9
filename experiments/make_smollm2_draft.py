"""Drafts for SmolLM2-135M-Instruct: choose layers to leave out, distil a small one, measure them.

    python experiments/make_smollm2_draft.py select  [--leave-out 5] [--json FILE]
    python experiments/make_smollm2_draft.py distil  [--layers 0,1,10,20,28,29] [--steps 300]
    python experiments/make_smollm2_draft.py measure [--prompts FILE.jsonl ...] [--json FILE]

``select`` starts from all 30 layers and leaves out, one after the other, the layer whose absence costs the least token
acceptance on the target's own samples; its result is copied by hand into ``lpverify/decode/smollm2.py``. The drafts
``near`` and ``far`` are close to the target but nearly as slow: good for studying verification, not for speed.

``distil`` trains a model of a few of the target's layers, embeddings shared and frozen, by KL(target || draft) on texts
that the target wrote itself after an opening like "user" (as in Magpie, arXiv 2406.08464) or after a stretch of the
standard library's source. It goes to the cache folder; ``--draft smollm2:distilled`` then names it.

``measure`` reports, on the target's samples after each prompt, token acceptance at temperature 1 and 0.6, the cost of
a step relative to the target's, and the memory of the weights. Needs ``lpverify[decode,smollm]``.
"""

from __future__ import annotations

import argparse
import copy
import json
import shutil
import sysconfig
import time
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor

from experiments.token_acceptance import token_acceptance
from lpverify.decode.sampling import Sampling
from lpverify.decode.smollm2 import LEFT_OUT, distilled_folder, leave_out, load_smollm2, save

QUESTIONS = (
    "What is the capital of Australia, and why is it not Sydney?",
    "Write a Python function that returns the n-th Fibonacci number.",
    "A train travels 180 km in 2 hours and then 60 km in 1 hour. What is its average speed? Explain step by step.",
    "Explain photosynthesis to a ten-year-old.",
    "Write a short story about a lighthouse keeper who finds a letter.",
    "Give three tips for learning a new language.",
    "Summarise the causes of the First World War in one paragraph.",
    "What does the derivative of a function tell us?",
)
OPENINGS = tuple(f"def {name}(" for name in ("read_lines", "is_prime", "merge", "count_words"))


def chat(tokenizer: Any, question: str) -> Tensor:
    """The token row of a question in the model's chat form, ready for the answer."""
    messages = [{"role": "user", "content": question}]
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    return tokenizer(text, return_tensors="pt", add_special_tokens=False).input_ids


def continuation(target: Any, prompt: Tensor, length: int, temperature: float, seed: int) -> Tensor:
    """``prompt`` (rows, n) and ``length`` more tokens of the target's; the end token does not stop it."""
    torch.manual_seed(seed)
    with torch.inference_mode():
        return target.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            do_sample=True,
            temperature=temperature,
            top_k=0,
            top_p=1.0,
            max_new_tokens=length,
            eos_token_id=target.config.vocab_size,  # never drawn
            pad_token_id=2,
        )


def select(count: int, seed: int) -> list[dict[str, Any]]:
    """Greedy: the layers to leave out, in order, each with the token acceptance at temperature 1 that remains."""
    target, tokenizer = load_smollm2("target", dtype=torch.bfloat16)  # rounding matters less than the layer
    prompts = [chat(tokenizer, each) for each in QUESTIONS]
    prompts += [tokenizer(each, return_tensors="pt", add_special_tokens=False).input_ids for each in OPENINGS]
    rows = [continuation(target, prompt, 64, 1.0, seed + i) for i, prompt in enumerate(prompts)]
    skips = [prompt.shape[1] - 1 for prompt in prompts]
    laws = [logits(target, row, skip).softmax(-1) for row, skip in zip(rows, skips, strict=True)]
    chosen: list[int] = []
    steps = []
    for _ in range(count):
        scores = {}
        for layer in set(range(target.config.num_hidden_layers)) - set(chosen):
            draft = without(target, (*chosen, layer))
            overlaps = [
                torch.minimum(law, logits(draft, row, skip).softmax(-1)).sum(-1)
                for law, row, skip in zip(laws, rows, skips, strict=True)
            ]
            scores[layer] = float(torch.cat(overlaps, dim=1).mean())
        best = max(scores, key=lambda layer: (scores[layer], -layer))
        chosen.append(best)
        steps.append({"layer": best, "token_acceptance": round(scores[best], 4)})
        print(f"leave out {sorted(chosen)}: token acceptance {scores[best]:.4f}", flush=True)
    return steps


def without(model: Any, layers: tuple[int, ...]) -> Any:
    """A second model that shares ``model``'s weights but lacks ``layers``."""
    memo = {id(weight): weight for weight in model.parameters()}
    return leave_out(copy.deepcopy(model, memo), layers)


@torch.inference_mode()
def logits(model: Any, row: Tensor, skip: int) -> Tensor:
    """float32 logits from position ``skip`` to the last but one: those that chose the tokens after the prompt."""
    return model(input_ids=row, use_cache=False).logits[:, skip:-1].float()


def write_texts(target: Any, tokenizer: Any, batches: int, seed: int) -> Tensor:
    """(64 * batches, 256) tokens: the target's own conversations and its continuations of library source."""
    opening = tokenizer("<|im_start|>user\n", return_tensors="pt", add_special_tokens=False).input_ids
    source = "".join(p.read_text("utf-8") for p in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")))
    code = tokenizer(source[:2_000_000], return_tensors="pt", add_special_tokens=False).input_ids[0]
    generator = torch.Generator().manual_seed(seed)
    texts = []
    for batch in range(batches):
        starts = torch.randint(len(code) - 32, (64, 1), generator=generator)
        prompt = opening.expand(64, -1) if batch % 4 < 3 else code[starts + torch.arange(32)]
        texts.append(continuation(target, prompt, 256 - prompt.shape[1], 1.0, seed + batch))
        print(f"wrote {batch + 1}/{batches} batches of 64 texts", flush=True)
    return torch.cat(texts)


def distil(layers: tuple[int, ...], batches: int, steps: int, seed: int) -> None:
    """Train the few-layer draft and put it into the cache folder."""
    target, tokenizer = load_smollm2("target", dtype=torch.bfloat16)
    texts = write_texts(target, tokenizer, batches, seed)
    print(tokenizer.decode(texts[0]), flush=True)
    draft, _ = load_smollm2("target")
    draft = leave_out(draft, tuple(set(range(draft.config.num_hidden_layers)) - set(layers)))
    draft.model.embed_tokens.requires_grad_(False)
    weights = [w for w in draft.parameters() if w.requires_grad]
    optimiser = torch.optim.AdamW(weights, lr=6e-4, betas=(0.9, 0.95), weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, 6e-4, total_steps=steps, pct_start=0.1)
    generator = torch.Generator().manual_seed(seed)
    start = time.perf_counter()
    for step in range(steps):
        batch = texts[torch.randint(len(texts), (8,), generator=generator)]
        places = torch.randperm(batch.numel(), generator=generator)[:512]  # the vocabulary costs more than the layers
        with torch.no_grad():
            wanted = target.lm_head(target.model(input_ids=batch, use_cache=False)[0].flatten(0, 1)[places])
            wanted = wanted.float().log_softmax(-1)
        with torch.autocast("cpu", torch.bfloat16):
            given = draft.lm_head(draft.model(input_ids=batch, use_cache=False)[0].flatten(0, 1)[places])
        loss = torch.nn.functional.kl_div(given.float().log_softmax(-1), wanted, log_target=True, reduction="batchmean")
        loss.backward()
        torch.nn.utils.clip_grad_norm_(weights, 1.0)
        optimiser.step()
        schedule.step()
        optimiser.zero_grad()
        if step % 10 == 9:
            print(f"step {step + 1}/{steps} KL {loss.item():.3f} {time.perf_counter() - start:.0f} s", flush=True)
    folder = distilled_folder()
    fresh = folder.with_name(f"{folder.name}-new")
    save(fresh, draft.eval(), tokenizer)
    shutil.rmtree(folder, ignore_errors=True)
    fresh.rename(folder)


def read_prompts(tokenizer: Any, files: list[Path], limit: int) -> dict[str, list[Tensor]]:
    """Token rows by file: a ``question`` or ``problem`` as a chat, a ``prompt`` as text to continue."""
    if not files:
        return {"built-in questions": [chat(tokenizer, each) for each in QUESTIONS[:limit]]}
    found = {}
    for file in files:
        records = [json.loads(line) for line in file.read_text("utf-8").splitlines()[:limit]]
        found[file.stem] = [
            tokenizer(record["prompt"], return_tensors="pt", add_special_tokens=False).input_ids
            if "prompt" in record
            else chat(tokenizer, record.get("question") or record["problem"])
            for record in records
        ]
    return found


def measure(files: list[Path], limit: int, length: int, seed: int) -> dict[str, Any]:
    """Acceptance, relative cost and memory of every draft there is."""
    target, tokenizer = load_smollm2("target")
    names = [*LEFT_OUT, *(["distilled"] if distilled_folder().exists() else [])]
    drafts = {name: load_smollm2("draft", draft=name)[0] for name in names}
    report: dict[str, Any] = {"step_seconds": step_seconds({"target": target, **drafts})}
    report["relative_cost"] = {
        name: seconds / report["step_seconds"]["target"] for name, seconds in report["step_seconds"].items()
    }
    report["weight_megabytes"] = {
        name: round(model.get_memory_footprint() / 1e6, 1) for name, model in {"target": target, **drafts}.items()
    }
    for file, prompts in read_prompts(tokenizer, files, limit).items():
        for temperature in (1.0, 0.6):
            sampling = Sampling(temperature=temperature)
            means: dict[str, list[float]] = {name: [] for name in drafts}
            for number, prompt in enumerate(prompts):
                row = continuation(target, prompt, length, temperature, seed + number)
                for name, draft in drafts.items():
                    overlap = token_acceptance(target, draft, row, sampling, skip=prompt.shape[1] - 1)
                    means[name].append(float(overlap[:, :-1].mean()))
            for name, values in means.items():
                tensor = torch.tensor(values)
                report.setdefault("token_acceptance", {})[f"{file}, T={temperature}, {name}"] = {
                    "mean": round(float(tensor.mean()), 4),
                    "standard_error": round(float(tensor.std() / len(values) ** 0.5), 4),
                    "prompts": len(values),
                }
            print(json.dumps(report["token_acceptance"], indent=1), flush=True)
    return report


def step_seconds(models: dict[str, Any]) -> dict[str, float]:
    """Processor time of one generated token after 64, batch 1, by model: best of five, models interleaved."""
    prompt = torch.full((1, 64), 100)
    best = {(name, length): float("inf") for name in models for length in (1, 17)}
    for _ in range(5):
        for name, length in best:
            start = time.process_time()
            continuation(models[name], prompt, length, 1.0, 0)
            best[name, length] = min(best[name, length], time.process_time() - start)
    return {name: round((best[name, 17] - best[name, 1]) / 16, 5) for name in models}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("select", "distil", "measure"))
    parser.add_argument("--leave-out", type=int, default=5)
    parser.add_argument("--layers", default="0,1,10,20,28,29", help="target layers the distilled draft starts from")
    parser.add_argument("--batches", type=int, default=12, help="batches of 64 texts to distil on")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--prompts", type=Path, nargs="*", default=[])
    parser.add_argument("--limit", type=int, default=12, help="prompts of each file")
    parser.add_argument("--length", type=int, default=64, help="tokens sampled after each prompt")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    transformers.utils.logging.disable_progress_bar()
    result: Any = None
    if options.what == "select":
        result = select(options.leave_out, options.seed)
    elif options.what == "distil":
        distil(tuple(int(layer) for layer in options.layers.split(",")), options.batches, options.steps, options.seed)
    else:
        result = measure(options.prompts, options.limit, options.length, options.seed)
    if result is not None:
        text = json.dumps(result, indent=2)
        print(text)
        if options.json:
            options.json.write_text(text + "\n")


if __name__ == "__main__":
    main()
