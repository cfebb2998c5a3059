"""Training with Hugging Face's Trainer, and in several processes."""

import os
import socket

import pytest
import reasons

torch = pytest.importorskip("torch", reason=reasons.TORCH)
transformers = pytest.importorskip("transformers", reason=reasons.TRANSFORMERS)

import torch.distributed as dist  # noqa: E402
import torch.multiprocessing as processes  # noqa: E402

from falcon_fwa.models import FalconFwaConfig, FalconFwaForCausalLM  # noqa: E402

STEPS = 20


def model():
    torch.manual_seed(0)
    config = FalconFwaConfig(vocab_size=30, hidden_size=32, num_hidden_layers=2, intermediate_size=48, mixer="falcon-1",
                             head_dim=8, head_v_dim=8, mup_base_width=32, initializer_range=0.5)  # fmt: skip
    return FalconFwaForCausalLM(config)


def batches(count=4, time=24):
    generator = torch.Generator().manual_seed(1)
    return torch.randint(30, (STEPS, count, time), generator=generator)


def optimizer_of(module):
    return torch.optim.SGD(module.parameters(), lr=0.02)


def trained_alone():
    lm = model()
    optimizer = optimizer_of(lm)
    for ids in batches():
        lm(ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return {name: parameter.detach() for name, parameter in lm.named_parameters()}


def _worker(rank, port, kind, expected):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=2)
    lm = model()
    if kind == "ddp":
        wrapped = torch.nn.parallel.DistributedDataParallel(lm)
    else:
        from torch.distributed.fsdp import fully_shard

        mesh = dist.device_mesh.init_device_mesh("cpu", (2,))
        for block in lm.model.layers:
            fully_shard(block, mesh=mesh)
        wrapped = fully_shard(lm, mesh=mesh)
    optimizer = optimizer_of(wrapped)
    for ids in batches():
        # Each process takes its half of the batch.
        half = ids[2 * rank : 2 * rank + 2]
        wrapped(input_ids=half, labels=half).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    for name, parameter in lm.named_parameters():
        whole = parameter.full_tensor() if hasattr(parameter, "full_tensor") else parameter
        # Two halves of a batch are added in another order than the whole, in float32, at each of the steps.
        torch.testing.assert_close(
            whole.detach(), expected[name], atol=2e-5, rtol=2e-4, msg=lambda text, name=name: f"{name}: {text}"
        )
    dist.barrier()
    dist.destroy_process_group()
    # Without the destructors of PyTorch: some of gloo's threads may still run, and the process would abort. A failed
    # check above has raised, and that is what the parent sees.
    os._exit(0)


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_two_processes_match_one_with_twice_the_batch(kind):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    processes.spawn(_worker, args=(port, kind, trained_alone()), nprocs=2)


def test_trainer_works_unmodified(tmp_path):
    pytest.importorskip("accelerate", reason=reasons.ACCELERATE)
    ids = torch.arange(12).repeat(8, 2)
    data = [{"input_ids": row, "labels": row} for row in ids]
    arguments = transformers.TrainingArguments(
        output_dir=str(tmp_path / "out"), max_steps=30, per_device_train_batch_size=4, learning_rate=2e-2, report_to=[],
        use_cpu=True, logging_steps=5, save_steps=30, seed=0,
    )  # fmt: skip
    trainer = transformers.Trainer(model=model(), args=arguments, train_dataset=data)
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    # A model that does not learn stays at the first loss.
    assert losses[-1] < 0.3 * losses[0], f"the loss should fall to less than 0.3 of the first: {losses}"
    opened = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out" / "checkpoint-30")
    assert opened(ids[:1], labels=ids[:1]).loss.item() < losses[0]
