"""Fresh processes: whatever a job does ends as its own outcome and leaves nothing behind."""

import os
import signal
import subprocess
import sys
import tempfile
import textwrap
import time

import psutil
import pytest
import torch

from attnbench.execute.local import FreshProcesses, Job


@pytest.fixture(scope="module")
def processes():
    with FreshProcesses() as processes:
        yield processes


def wait_until_gone(pids, seconds=10):
    def alive(pid):
        return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE

    until = time.monotonic() + seconds
    while any(alive(pid) for pid in pids) and time.monotonic() < until:
        time.sleep(0.05)
    return [pid for pid in pids if alive(pid)]


def test_each_job_has_a_process_of_its_own_that_leads_its_group(processes):
    jobs = [Job("child_jobs:pid_and_group", ()) for _ in range(3)]
    answers = [outcome.value for _, outcome in processes.run(jobs, at_once=1)]
    assert len({pid for pid, _ in answers}) == 3
    assert all(pid == group for pid, group in answers)
    assert os.getpid() not in {pid for pid, _ in answers}


def test_forkserver_has_loaded_torch_and_the_parent_need_not(processes):
    if processes.start_method != "forkserver":
        pytest.skip("no forkserver on this system")
    assert processes.call("child_jobs:torch_is_loaded").value is True


def test_a_temporary_folder_with_a_name_too_long_for_a_socket_costs_time_and_not_the_run(tmp_path, monkeypatch):
    deep = tmp_path / ("long" * 25)
    deep.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(deep))
    with FreshProcesses() as processes:
        assert processes.start_method == "spawn"
        assert processes.call("child_jobs:add", 1, 2).value == 3


def test_values_come_back_with_the_job_that_asked(processes):
    jobs = [Job("child_jobs:add", (n, 1), tag=n) for n in range(5)]
    assert {job.tag: outcome.value for job, outcome in processes.run(jobs, at_once=2)} == {n: n + 1 for n in range(5)}


def test_an_error_is_told_with_type_message_and_place(processes):
    outcome = processes.call("child_jobs:raise_", ValueError, "no such thing")
    assert outcome.status == "failed"
    assert outcome.reason.startswith("ValueError: no such thing (child_jobs.py:")
    assert "Traceback" in outcome.detail


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (MemoryError, ""),
        (RuntimeError, "[enforce fail at alloc_cpu.cpp:114] DefaultCPUAllocator: can't allocate memory: you tried to"),
        (RuntimeError, "std::bad_alloc"),
        (RuntimeError, "can't start new thread"),
        (RuntimeError, "CUDA out of memory. Tried to allocate 2 GiB"),
        (torch.OutOfMemoryError, "CUDA out of memory. Tried to allocate 2 GiB"),
        (torch.cuda.OutOfMemoryError, "says no more"),
        (torch.AcceleratorError, "CUDA error: out of memory"),
        (RuntimeError, "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    ],
)
def test_every_way_to_run_out_of_memory_is_oom(processes, kind, message):
    assert processes.call("child_jobs:raise_", kind, message).status == "oom"


def test_a_thread_library_that_gives_up_for_want_of_memory_is_oom(processes):
    text = "libgomp: Thread creation failed: Resource temporarily unavailable\n"
    outcome = processes.call("child_jobs:say_and_leave", text)
    assert (outcome.status, outcome.reason) == ("oom", text.strip())


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (ValueError, "out of memory of better days"),
        (torch.AcceleratorError, "CUDA error: device-side assert triggered"),
        (RuntimeError, "CUDA error: an illegal memory access was encountered"),
    ],
)
def test_an_error_about_something_else_is_not_oom(processes, kind, message):
    assert processes.call("child_jobs:raise_", kind, message).status == "failed"


def test_allocation_beyond_the_limit_is_oom_and_below_it_is_fine(processes):
    assert processes.call("child_jobs:allocate_under_limit", 2000, 500).status == "oom"
    assert processes.call("child_jobs:allocate_under_limit", 200, 500).status == "ok"
    assert processes.call("child_jobs:allocate", 2000).status == "ok"


@pytest.mark.parametrize(
    ("number", "hint"), [(signal.SIGKILL, "perhaps out of memory"), (signal.SIGSEGV, "segmentation fault")]
)
def test_a_killed_job_is_killed_with_its_signal(processes, number, hint):
    outcome = processes.call("child_jobs:kill_self", number)
    assert (outcome.status, outcome.reason) == ("killed", f"killed (signal {int(number)}, {hint})")


def test_a_job_that_leaves_without_an_answer_has_failed(processes):
    outcome = processes.call("child_jobs:leave", 7)
    assert (outcome.status, outcome.reason) == ("failed", "the process ended by itself with status 7")


def test_a_sleeper_times_out_and_takes_its_children_along(processes, tmp_path):
    outcome = processes.call("child_jobs:sleep_with_child", str(tmp_path / "pids"), timeout_s=2.0)
    assert outcome.status == "timeout"
    assert 2.0 <= outcome.seconds < 5.0
    assert wait_until_gone([int(pid) for pid in (tmp_path / "pids").read_text().split()]) == []


def test_a_bad_job_harms_no_other(processes):
    jobs = [
        Job("child_jobs:kill_self", (signal.SIGKILL,), tag="killed"),
        Job("child_jobs:add", (1, 1), tag="ok"),
        Job("child_jobs:sleep", (60,), timeout_s=0.5, tag="timeout"),
        Job("child_jobs:raise_", (ValueError, "x"), tag="failed"),
        Job("child_jobs:add", (2, 2), tag="ok"),
    ]
    outcomes = list(processes.run(jobs, at_once=2))
    assert len(outcomes) == 5
    assert all(job.tag == outcome.status for job, outcome in outcomes)


def test_leaving_the_loop_ends_what_runs(processes, tmp_path):
    pids = tmp_path / "pids"
    for _ in processes.run([Job("child_jobs:sleep", (0.5,)), Job("child_jobs:sleep_with_child", (str(pids),))], 2):
        break
    assert wait_until_gone([int(pid) for pid in pids.read_text().split()]) == []
    assert processes.call("child_jobs:add", 1, 1).value == 2


def test_spawned_processes_give_the_same_answers():
    with FreshProcesses("spawn") as processes:
        assert processes.call("child_jobs:add", 20, 22).value == 42
        assert processes.call("child_jobs:raise_", KeyError, "k").status == "failed"


UNGUARDED = """
from attnbench.execute.local import FreshProcesses
print("main runs", flush=True)
with FreshProcesses("spawn") as processes:
    print(processes.call("child_jobs:main_file").value, flush=True)
"""


@pytest.mark.parametrize("from_file", [True, False])
def test_spawned_processes_run_no_script_again_whether_it_is_a_file_or_standard_input(tmp_path, from_file):
    (tmp_path / "script.py").write_text(UNGUARDED)
    command = [sys.executable, tmp_path / "script.py" if from_file else "-"]
    environment = os.environ | {"PYTHONPATH": os.path.dirname(__file__)}
    said = subprocess.check_output(command, input=UNGUARDED, text=True, env=environment, timeout=60)
    assert said.splitlines() == ["main runs", "None"]


SCRIPT = """
import sys, time
from attnbench.execute.local import FreshProcesses, Job
print("main runs", flush=True)
with FreshProcesses() as processes:
    print(processes.call("child_jobs:main_file").value, flush=True)
    for _ in processes.run([Job("child_jobs:sleep_with_child", (sys.argv[1],))], at_once=1):
        pass
"""


def test_script_without_main_guard_is_not_run_again_and_leaves_nothing_when_killed(tmp_path):
    script, pids = tmp_path / "script.py", tmp_path / "pids"
    script.write_text(textwrap.dedent(SCRIPT))
    environment = os.environ | {"PYTHONPATH": os.path.dirname(__file__)}
    process = subprocess.Popen([sys.executable, script, pids], stdout=subprocess.PIPE, text=True, env=environment)
    while not (pids.exists() and len(pids.read_text().split()) == 2):
        time.sleep(0.05)
        assert process.poll() is None
    process.kill()
    output, _ = process.communicate()
    assert output.splitlines() == ["main runs", "None"]
    worker, grandchild = map(int, pids.read_text().split())
    assert wait_until_gone([worker, grandchild]) == []


def test_a_job_that_ends_early_is_told_with_the_stage_it_was_at(processes):
    late = processes.call("child_jobs:stay_at", "importing mine.py", timeout_s=1.0)
    assert (late.status, late.reason) == ("timeout", "ran past its limit of 1 s while importing mine.py")
    dead = processes.call("child_jobs:die_at", "importing mine.py", 7)
    assert dead.reason == "the process ended by itself with status 7 while importing mine.py"
    assert processes.call("child_jobs:die_at", "", 7).reason == "the process ended by itself with status 7"
