"""Models of the program `falcon` open in Python, and those of Python in the program."""

import json
import os
import subprocess
from pathlib import Path

import pytest
import reasons

torch = pytest.importorskip("torch", reason=reasons.TORCH)
transformers = pytest.importorskip("transformers", reason=reasons.TRANSFORMERS)

PROGRAM = Path(os.environ.get("FALCON", Path(__file__).resolve().parents[2] / "target/release/falcon"))
pytestmark = pytest.mark.skipif(
    not PROGRAM.exists(), reason="the program is not built: cargo build --release -p falcon-cli"
)

TEXT = "the river ran to the sea, and the sea ran to the river; once upon a time it did not.\n" * 60
PRESETS = ["falcon-1a.3", "falcon-1.3", "falcon-2.3", "falcon-3.1", "falcon-1a-deep", "transformer", "linear-attention",
           "retnet", "lightning", "mamba2", "deltanet", "gated-deltanet"]  # fmt: skip


def falcon(*arguments, folder):
    done = subprocess.run([PROGRAM, *arguments], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("preset", PRESETS)
def test_a_trained_model_opens_in_python(preset, tmp_path):
    (tmp_path / "text.txt").write_text(TEXT)
    falcon("train", "--task", "text", "--model", preset, "--size", "micro", "--run", "run",
           "--set", "task.train=text.txt", "--set", "train.steps=12", "--set", "train.batch=2",
           "--set", "task.length=64", "--set", "train.lr=2e-3", folder=tmp_path)  # fmt: skip
    falcon("export", "run", "--hf", "hf", folder=tmp_path)
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "hf", trust_remote_code=True).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "hf")
    begin = torch.tensor([[tokenizer.bos_token_id]])

    def tokens_of(text):
        return torch.cat([begin, tokenizer(text, return_tensors="pt").input_ids], 1)

    # Greedy generation gives the same text.
    generated = json.loads(
        falcon("generate", "run", "the river", "--temperature", "0", "-n", "20", "--json", folder=tmp_path)
    )
    ids = tokens_of("the river")
    tokens = model.generate(ids, max_new_tokens=20, do_sample=False, pad_token_id=tokenizer.eos_token_id)
    assert tokenizer.decode(tokens[0, ids.shape[1] :]) == generated["texts"][0]["text"]
    # The likelihood of a text agrees, too.
    (tmp_path / "short.txt").write_text(TEXT[:200])
    found = json.loads(falcon("eval", "run", "--text", "short.txt", "--json", folder=tmp_path))[0]["texts"][0]
    ids = tokens_of(TEXT[:200])
    with torch.no_grad():
        logits = model(ids, use_cache=False).logits.log_softmax(-1)
    nats = -logits[0, :-1].gather(1, ids[0, 1:, None]).sum().item()
    assert found["tokens"] == 200
    # Both compute in float32, and add 200 tokens.
    assert nats == pytest.approx(found["nats"], rel=1e-5)
    # Saved by Python, the model still opens in the program.
    model.save_pretrained(tmp_path / "again")
    tokenizer.save_pretrained(tmp_path / "again")
    again = json.loads(falcon("eval", "again", "--text", "short.txt", "--json", folder=tmp_path))[0]["texts"][0]
    assert again["nats"] == found["nats"]


def test_a_model_of_python_opens_in_the_program(tmp_path):
    from falcon_fwa.models import FalconFwaConfig, FalconFwaForCausalLM

    torch.manual_seed(0)
    config = FalconFwaConfig(vocab_size=257, hidden_size=32, num_hidden_layers=2, intermediate_size=64,
                             mixer="falcon-3", window=4, head_dim=8, head_v_dim=8)  # fmt: skip
    model = FalconFwaForCausalLM(config).eval()
    model.save_pretrained(tmp_path / "model")
    printed = falcon("generate", "model", "abc", "--tokenizer", "bytes", "--temperature", "0", "-n", "8", "--json",
                     folder=tmp_path)  # fmt: skip
    tokens = model.generate(torch.tensor([[256, 97, 98, 99]]), max_new_tokens=8, do_sample=False)[0, 4:]
    text = bytes(token for token in tokens.tolist() if token < 256).decode(errors="replace")
    assert json.loads(printed)["texts"][0]["text"] == text
