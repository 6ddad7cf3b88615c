"""Threads, signals, cancelling, closing, asyncio, progress, errors."""

import asyncio
import gc
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
import time

import pytest

import infinigen
from infinigen import LLM

GREEDY = {"temperature": 0, "ignore_eos": True}


def run(code: str, *arguments: str) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def test_errors_carry_the_sentence(llm, model_path):
    with pytest.raises(infinigen.IoError, match="/nowhere: no such model") as caught:
        LLM("/nowhere")
    assert isinstance(caught.value, (OSError, infinigen.Error))
    with pytest.raises(ValueError, match="no option 'colour'"):
        LLM(model_path, colour="red")
    with pytest.raises(infinigen.InvalidError, match="kv-cap: 'many' is not a share"):
        LLM(model_path, kv_cap="many")
    with pytest.raises(MemoryError, match="not enough memory"):
        LLM(model_path, ctx=1_000_000_000, batch=100)
    with pytest.raises(infinigen.InvalidError, match="temperature must be between"):
        llm.generate("x", temperature=-1.0)
    with pytest.raises(TypeError, match="unknown keyword 'temprature'"):
        llm.generate("x", temprature=1.0)
    with pytest.raises(TypeError, match="max_tokens='many': str is not what it takes"):
        llm.generate("x", max_tokens="many")
    with pytest.raises(infinigen.InvalidError, match=r"the prompt has \d+ tokens, the context holds 1024"):
        llm.generate("word " * 3000)
    with pytest.raises(infinigen.InvalidError, match="request 1: the prompt has"):
        llm.generate(["fine", "word " * 3000])
    with pytest.raises(infinigen.InvalidError, match="takes one prompt"):
        llm.generate(["a", "b"], stream=True)
    with (
        LLM(model_path, ctx=512, kv="h2o") as evicting,
        pytest.raises(NotImplementedError, match="evicts entries"),
    ):
        evicting.generate("x", kv_map=True)
    assert llm.generate("It still", max_tokens=2, **GREEDY).tokens, "and the engine goes on"


def test_threads_share_one_engine(llm):
    prompts = [f"Number {i} is" for i in range(8)]
    alone = [llm.generate(prompt, max_tokens=12, **GREEDY).text for prompt in prompts]
    answers = [""] * len(prompts)

    def work(index):
        answers[index] = llm.generate(prompts[index], max_tokens=12, **GREEDY).text

    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(prompts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == alone


def test_the_gil_is_released(llm):
    ticks = 0
    ended = threading.Event()

    def count():
        nonlocal ticks
        while not ended.wait(0.001):
            ticks += 1

    thread = threading.Thread(target=count)
    thread.start()
    llm.generate("Once upon a time", max_tokens=200, **GREEDY)
    ended.set()
    thread.join()
    assert ticks > 20


def test_cancelling(llm):
    stream = llm.generate("Once upon a time", max_tokens=900, stream=True, **GREEDY)
    next(stream)
    threading.Timer(0.05, stream.cancel).start()
    count = sum(1 for _ in stream)
    assert stream.output.finish_reason == "cancelled"
    assert count < 900
    for _ in llm.generate("Once upon a time", max_tokens=900, stream=True, **GREEDY):
        break  # the stream is dropped here
    deadline = time.monotonic() + 20
    while llm.stats.running and time.monotonic() < deadline:
        time.sleep(0.01)
    assert llm.stats.running == 0


def test_ctrl_c_ends_a_generation(model_path):
    process = run(
        """
        import sys
        from infinigen import LLM
        llm = LLM(sys.argv[1], ctx=8192, threads=1)
        try:
            print("started", flush=True)
            llm.generate("Once upon a time", max_tokens=8000, temperature=0, ignore_eos=True)
            print("ended by itself")
        except KeyboardInterrupt:
            print("interrupted")
        print(len(llm.generate("It goes on", max_tokens=3, temperature=0, ignore_eos=True).tokens))
        """,
        model_path,
    )
    assert process.stdout.readline() == "started\n"
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    began = time.monotonic()
    out, _ = process.communicate(timeout=60)
    assert out.split() == ["interrupted", "3"], out
    assert time.monotonic() - began < 20
    assert process.returncode == 0


def test_a_program_may_end_without_closing(model_path):
    process = run(
        """
        import sys
        from infinigen import LLM
        llm = LLM(sys.argv[1], ctx=8192, threads=1)
        stream = llm.generate("Once upon a time", max_tokens=8000, ignore_eos=True, stream=True)
        next(stream)
        print("ends")
        """,
        model_path,
    )
    out, _ = process.communicate(timeout=60)
    assert (process.returncode, out) == (0, "ends\n")


def test_an_interrupt_ends_all_of_a_batch(model_path):
    def interrupt(done, total):
        raise KeyboardInterrupt

    with LLM(model_path, ctx=1024, batch=4, progress=interrupt) as batched:
        stop = batched.generate("Once upon a time", max_tokens=16, **GREEDY).text[
            -16:
        ]  # the first ends early
        try:
            batched.generate(["Once upon a time", "The sea", "Two"], max_tokens=900, stop=stop, **GREEDY)
        except KeyboardInterrupt:
            deadline = time.monotonic() + 20
            while batched.stats.running and time.monotonic() < deadline:
                time.sleep(0.01)
            assert batched.stats.running == 0, "while the exception, with its frames, is alive"
        else:
            pytest.fail("the interrupt was lost")


def test_closing(model_path):
    llm = LLM(model_path, ctx=1024, batch=2, threads=2)
    stream = llm.generate("Once upon a time", max_tokens=900, stream=True, **GREEDY)
    next(stream)
    waiting = llm.generate_async("Once upon a time", max_tokens=900, **GREEDY)
    llm.close()
    list(stream)
    assert stream.output.finish_reason == "cancelled"
    try:  # it was submitted before the engine closed, or after
        assert asyncio.run(waiting.output()).finish_reason == "cancelled"
    except infinigen.InvalidError as error:
        assert str(error) == "this LLM is closed"
    assert llm.closed and "closed" in repr(llm)
    for call in (lambda: llm.generate("x"), lambda: llm.stats, lambda: llm.plan()):
        with pytest.raises(infinigen.InvalidError, match="this LLM is closed"):
            call()
    llm.close()
    assert llm.tokenizer.encode("x"), "the model stays"
    with LLM(model_path, ctx=256) as short:
        pass
    assert short.closed


def test_closing_while_others_wait(model_path):
    llm = LLM(model_path, ctx=1024, batch=4, threads=2)
    ended = []

    def work():
        try:
            ended.append(llm.generate("Once upon a time", max_tokens=900, **GREEDY).finish_reason)
        except infinigen.InvalidError as error:
            ended.append(str(error))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    time.sleep(0.1)
    llm.close()
    for thread in threads:
        thread.join(timeout=20)
    assert len(ended) == 4
    assert set(ended) <= {"cancelled", "this LLM is closed"}


def test_cycles_do_not_grow(model_path):
    def resident() -> int:
        gc.collect()
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def cycle():
        with LLM(model_path, ctx=256, batch=1, threads=2) as llm:
            llm.generate("Once", max_tokens=2, logits=True, kv_map=True, **GREEDY)

    for _ in range(4):
        cycle()
    before = resident()
    for _ in range(10):
        cycle()
    assert resident() - before < 16 << 20


def test_asyncio(llm):
    prompts = ["The sea", "A small house", "In the year"]
    expected = [llm.generate(prompt, max_tokens=12, **GREEDY).text for prompt in prompts]

    async def answer(prompt):
        stream = llm.generate_async(prompt, max_tokens=12, **GREEDY)
        text = "".join([piece async for piece in stream])
        assert (await stream.output()).text == text
        return text

    async def all_of_them():
        return await asyncio.gather(*(answer(prompt) for prompt in prompts))

    assert asyncio.run(all_of_them()) == expected

    async def give_up():
        stream = llm.generate_async("Once upon a time", max_tokens=900, **GREEDY)
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(stream.output(), 0.1)
        return (await stream.output()).finish_reason

    assert asyncio.run(give_up()) == "cancelled"

    async def refused():
        with pytest.raises(infinigen.InvalidError, match="the context holds 1024"):
            await llm.generate_async("word " * 3000).output()

    asyncio.run(refused())

    async def chat():
        stream = llm.chat_async([{"role": "user", "content": "Hello"}], max_tokens=3, **GREEDY)
        return (await stream.output()).tokens

    assert len(asyncio.run(chat())) == 3


def test_progress(model_path):
    seen = []
    with LLM(model_path, ctx=256, progress=lambda done, total: seen.append((done, total))) as llm:
        llm.generate(["a", "b", "c"], max_tokens=2)
    assert seen[-3:] == [(1, 3), (2, 3), (3, 3)]


def test_an_error_in_a_callback_is_raised(tmp_path, model_path, monkeypatch):
    monkeypatch.setenv("INFINIGEN_CACHE", str(tmp_path / "cache"))
    copied = tmp_path / "model"  # without its skew file: it is calibrated first
    shutil.copytree(model_path, copied, ignore=shutil.ignore_patterns("infinigen.skew"))
    notices = []

    def stop(done, total):
        raise RuntimeError("enough")

    with pytest.raises(RuntimeError, match="enough"):
        LLM(copied, ctx=4096, kv="infinigen", progress=stop, on_notice=notices.append)
    assert any("calibrat" in notice for notice in notices)
