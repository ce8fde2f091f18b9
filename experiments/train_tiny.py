"""Train the bundled pair, a target of 1.8 million parameters and a draft of 0.5, on this Python's own library.

    python experiments/train_tiny.py [--out lpverify/decode/bundled] [--work DIR] [--seed 0]

1. Text: every module of the standard library but its tests and data tables; one file in 20 is held out.
2. Tokenizer: byte-level BPE of 1,024 tokens.
3. Target: next-token cross-entropy, windows of 256 tokens, at the end of 1,024.
4. Draft: KL(target || draft) per position, on the text and on the target's own samples, because in speculative
   decoding the contexts are samples.
5. Report: held-out loss, token acceptance at temperature 1 and 0.6 on held-out text and on samples, time a token.

The number of steps is fixed, not the time, and everything is drawn from the seed, so one machine with one set of
versions repeats the weights. Another Python has another library, and another processor rounds bfloat16 differently.
Each stage is kept in ``--work``; a rerun starts at the first one missing. About 15 minutes of one core.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import sysconfig
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import tokenizers
import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from experiments.token_acceptance import token_acceptance
from lpverify.decode.sampling import Sampling

VOCAB, CONTEXT, SHORT = 1024, 1024, 256
BATCH = 2048  # tokens a step
BOS, EOS = "<|begin|>", "<|end|>"
SHAPES = {
    "target": {"hidden_size": 192, "intermediate_size": 512, "num_hidden_layers": 4, "num_attention_heads": 3},
    "draft": {"hidden_size": 128, "intermediate_size": 320, "num_hidden_layers": 2, "num_attention_heads": 2},
}
Losses = Iterator[Callable[[], Tensor]]  # one function a step: the loss of that step's batch
LEFT_OUT = {"test", "tests", "idle_test", "site-packages", "dist-packages", "encodings", "pydoc_data", "_bundled"}


def library_files() -> list[tuple[str, str]]:
    """``(path, text)`` of the library's modules in sorted order, without tests, tables and installed packages."""
    root = Path(sysconfig.get_path("stdlib"))
    found = []
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).parts
        if not LEFT_OUT.intersection(parts) and not parts[-1].startswith("_sysconfigdata"):
            found.append(("/".join(parts), path.read_text(encoding="utf-8", errors="replace")))
    return found


def held_out(name: str) -> bool:
    """One file in 20, by its name only, so that the choice is the same everywhere."""
    return zlib.crc32(name.encode()) % 20 == 0


def train_tokenizer(texts: list[str], folder: Path) -> PreTrainedTokenizerFast:
    """Byte-level BPE: every text has tokens, and decoding them gives the text back."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB,
        special_tokens=[BOS, EOS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.post_processor = processors.Sequence(
        [processors.ByteLevel(trim_offsets=False), processors.TemplateProcessing(f"{BOS} $A", None, [(BOS, 0)])]
    )
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=BOS,
        eos_token=EOS,
        pad_token=EOS,
        model_max_length=CONTEXT,
        clean_up_tokenization_spaces=False,
    )
    fast.save_pretrained(folder)
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    settings["tokenizer_class"] = "PreTrainedTokenizerFast"  # the name that transformers 4 and 5 both know
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n")
    return fast


def stream(tokenizer: PreTrainedTokenizerFast, texts: list[str]) -> Tensor:
    """All texts as one row of tokens, each closed by the end token."""
    ids: list[int] = []
    for encoding in tokenizer.backend_tokenizer.encode_batch(texts, add_special_tokens=False):
        ids += [*encoding.ids, tokenizer.eos_token_id]
    return torch.tensor(ids)


def windows(tokens: Tensor, rows: int, length: int, generator: torch.Generator) -> Tensor:
    """(rows, length): the begin token and then a random stretch of ``tokens``."""
    starts = torch.randint(len(tokens) - length + 1, (rows, 1), generator=generator)
    batch = tokens[starts + torch.arange(length) - 1]
    batch[:, 0] = 0  # BOS is the tokenizer's first special token
    return batch


def new_model(role: str) -> LlamaForCausalLM:
    """An untrained model of the role's shape."""
    config = LlamaConfig(
        vocab_size=VOCAB,
        max_position_embeddings=CONTEXT,
        num_key_value_heads=1,
        tie_word_embeddings=True,
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=1,
        **SHAPES[role],
    )
    return LlamaForCausalLM(config)


def optimise(model: LlamaForCausalLM, losses: Losses, steps: int, log: str) -> None:
    """Muon for the layers' matrices, AdamW for the rest; warm-up of 50 steps, then a cosine to a twentieth."""
    matrices = [w for name, w in model.named_parameters() if w.ndim == 2 and "embed" not in name]
    rest = [w for name, w in model.named_parameters() if w.ndim != 2 or "embed" in name]
    optimisers = [
        torch.optim.Muon(matrices, lr=0.02, weight_decay=0.01),
        torch.optim.AdamW(rest, lr=4e-3, betas=(0.9, 0.98), weight_decay=0.0),
    ]

    def rate(step: int) -> float:
        return min(1.0, (step + 1) / 50) * (0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * step / steps)))

    schedules = [torch.optim.lr_scheduler.LambdaLR(each, rate) for each in optimisers]
    start, mean = time.perf_counter(), 0.0
    model.train()
    for step, loss_of in zip(range(steps), losses, strict=False):
        with torch.autocast("cpu", torch.bfloat16):
            loss = loss_of()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for each in (*optimisers, *schedules):
            each.step()
        model.zero_grad()
        mean = loss.item() if step == 0 else 0.98 * mean + 0.02 * loss.item()
        if step % 50 == 49:
            print(f"{log} step {step + 1}/{steps} loss {mean:.4f} {time.perf_counter() - start:.0f} s", flush=True)
    model.eval()


def target_losses(model: LlamaForCausalLM, text: Tensor, steps: int, seed: int) -> Losses:
    """Cross-entropy; the last seventh of the steps sees the full context."""
    generator = torch.Generator().manual_seed(seed)
    for step in range(steps):
        length = SHORT if step < steps * 6 // 7 else CONTEXT
        batch = windows(text, BATCH // length, length, generator)
        yield lambda batch=batch: next_token_loss(model, batch)


def next_token_loss(model: LlamaForCausalLM, batch: Tensor) -> Tensor:
    """Mean cross-entropy of the next token, in nats."""
    logits = model(input_ids=batch, use_cache=False).logits[:, :-1].float()
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())


def draft_losses(
    draft: LlamaForCausalLM, target: LlamaForCausalLM, text: Tensor, samples: Tensor, steps: int, seed: int
) -> Losses:
    """KL(target || draft) a position, steps on short and full contexts in turn; half of a short batch is samples."""
    generator = torch.Generator().manual_seed(seed)
    for step in range(steps):
        length = (SHORT, CONTEXT)[step % 2]  # a draft that saw long contexts only at the end stays bad at them
        rows = BATCH // length
        batch = windows(text, rows, length, generator)
        if length == SHORT:
            batch[: rows // 2] = samples[torch.randint(len(samples), (rows // 2,), generator=generator)]

        def loss(batch: Tensor = batch) -> Tensor:
            with torch.no_grad():
                wanted = target(input_ids=batch, use_cache=False).logits.float().log_softmax(-1)
            given = draft(input_ids=batch, use_cache=False).logits.float().log_softmax(-1)
            return torch.nn.functional.kl_div(given, wanted, log_target=True, reduction="sum") / batch.numel()

        yield loss


def sample(target: LlamaForCausalLM, prompts: Tensor, length: int, temperature: float, seed: int) -> Tensor:
    """Rows of ``length`` tokens: ``prompts`` and the target's continuation. The end token is a token like others."""
    torch.manual_seed(seed)
    with torch.inference_mode():
        return target.generate(
            prompts,
            attention_mask=torch.ones_like(prompts),
            do_sample=True,
            temperature=temperature,
            top_k=0,
            top_p=1.0,
            min_new_tokens=0,
            max_new_tokens=length - prompts.shape[1],
            eos_token_id=VOCAB,  # never drawn
            pad_token_id=1,
        )


def sample_pool(target: LlamaForCausalLM, text: Tensor, seed: int) -> Tensor:
    """1,024 rows of 256 tokens; 8 tokens of text, then the target's at temperature 1."""
    prompts = windows(text, 1024, 8, torch.Generator().manual_seed(seed))
    with torch.autocast("cpu", torch.bfloat16):
        return torch.cat([sample(target, rows, SHORT, 1.0, seed + i) for i, rows in enumerate(prompts.split(128))])


def save(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """float16 weights with a configuration that says float32: half the size, and plain loading computes in float32."""
    half = LlamaForCausalLM(model.config).half()
    half.load_state_dict(model.state_dict())
    half.save_pretrained(folder)
    settings = json.loads((folder / "config.json").read_text())
    settings.pop("dtype", None)
    settings["torch_dtype"] = "float32"
    (folder / "config.json").write_text(json.dumps(settings, indent=2, sort_keys=True) + "\n")
    (folder / "generation_config.json").unlink(missing_ok=True)
    for file in ("tokenizer.json", "tokenizer_config.json"):
        (folder / file).write_bytes((Path(tokenizer.name_or_path) / file).read_bytes())


def seconds_a_token(model: LlamaForCausalLM) -> float:
    """Time of one step of plain generation after 128 tokens, batch 1, one thread; the best of three runs."""
    times = []
    for _ in range(3):
        start = time.perf_counter()
        sample(model, torch.zeros(1, 128, dtype=torch.long), 192, 1.0, 0)
        times.append((time.perf_counter() - start) / 64)
    return min(times)


def measure(out: Path, held: Tensor, characters: int, seed: int) -> dict[str, object]:
    """The report, from the files as they will be loaded."""
    target, draft = (AutoModelForCausalLM.from_pretrained(out / role).eval() for role in ("target", "draft"))
    generator = torch.Generator().manual_seed(seed)
    text = windows(held, 32, 512, generator)
    report: dict[str, object] = {}
    with torch.inference_mode():
        losses = {role: float(next_token_loss(model, text)) for role, model in (("target", target), ("draft", draft))}
    report["held_out_nats_per_token"] = losses
    report["held_out_bits_per_byte_target"] = losses["target"] / math.log(2) * len(held) / characters
    for temperature in (1.0, 0.6):
        sampling = Sampling(temperature=temperature)
        own = sample(target, text[:, :32], 512, temperature, seed)
        report[f"token_acceptance_at_{temperature}"] = {
            "held_out_text": float(token_acceptance(target, draft, text, sampling, skip=32).mean()),
            "target_samples": float(token_acceptance(target, draft, own, sampling, skip=32).mean()),
        }
    report["seconds_per_token"] = {"target": seconds_a_token(target), "draft": seconds_a_token(draft)}
    report["parameters"] = {"target": target.num_parameters(), "draft": draft.num_parameters()}
    report["bytes"] = sum(file.stat().st_size for file in out.rglob("*") if file.is_file())
    return report


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    bundled = Path(__file__).parents[1] / "lpverify" / "decode" / "bundled"
    parser.add_argument("--out", type=Path, default=bundled)
    parser.add_argument("--work", type=Path, default=Path("train-tiny"), help="where finished stages are kept")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--target-steps", type=int, default=1300)
    parser.add_argument("--draft-steps", type=int, default=700)
    options = parser.parse_args()
    torch.set_num_threads(1)  # sums in one order; and small matrices gain little from a second core
    transformers.utils.logging.disable_progress_bar()
    options.work.mkdir(parents=True, exist_ok=True)
    options.out.mkdir(parents=True, exist_ok=True)

    files = library_files()
    texts = [text for name, text in files if not held_out(name)]
    kept = [text for name, text in files if held_out(name)]
    folder = options.work / "tokenizer"
    if not folder.exists():
        train_tokenizer(texts, folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    text, held = stream(tokenizer, texts), stream(tokenizer, kept)
    print(f"{len(texts)} files, {len(text)} tokens; held out {len(kept)} files, {len(held)} tokens", flush=True)

    def stage(role: str, losses: Callable[[LlamaForCausalLM], Losses], steps: int) -> LlamaForCausalLM:
        torch.manual_seed(options.seed)
        model, file = new_model(role), options.work / f"{role}.pt"
        if file.exists():
            model.load_state_dict(torch.load(file))
        else:
            optimise(model, losses(model), steps, role)
            torch.save(model.state_dict(), file)
        save(model.eval(), tokenizer, options.out / role)
        return model

    target = stage("target", lambda m: target_losses(m, text, options.target_steps, options.seed), options.target_steps)
    pool = options.work / "samples.pt"
    if not pool.exists():
        torch.save(sample_pool(target, text, options.seed), pool)
    samples = torch.load(pool)
    print(tokenizer.decode(samples[0]), flush=True)
    stage(
        "draft",
        lambda m: draft_losses(m, target, text, samples, options.draft_steps, options.seed),
        options.draft_steps,
    )
    report = {
        "seed": options.seed,
        "steps": {"target": options.target_steps, "draft": options.draft_steps},
        "text": {"training_tokens": len(text), "held_out_tokens": len(held)},
        **measure(options.out, held, sum(len(each.encode()) for each in kept), options.seed),
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "tokenizers": tokenizers.__version__,
        },
    }
    (options.out / "report.json").write_text(json.dumps(report, indent=2) + "\n")
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
