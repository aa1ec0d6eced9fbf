#!/usr/bin/env python3
"""Runs test programs that cargo has built: those that wait alongside those that compute, and says where the time went.

usage: run-tests.py BUILD.json [TARGET…], with what `cargo build --message-format=json` has printed. TARGET is the name of a test
target or of a crate, as in `e2e` or `windlass-control`; without any, all run. TEST_THREADS overrides how many tests of one program
run side by side; TEST_LANES=1 runs one program at a time. With TEST_QUICK only what computes runs, without the tests in SLOW.

Why not cargo test: it runs one program after the other, so that both cores idle while a program waits. Why not nextest: it gives
each test a process of its own, and four hundred pods' cases, the workloads and forty tests of a node share a node in one.
"""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time

# What waits for containers, the kernel or a clock, by lane: those of a lane run one after the other, the longest first, and lanes
# side by side. With it, how many tests of it run side by side. All else computes: one program after the other on all cores, at a
# lower priority, so that it takes what the waiting ones leave, and they do not run late because of it.
LANES = {
    "nodes": {"e2e": 2},
    "pods": {"pod_conformance": 3, "workloads": 6, "clients": 2, "cluster": 1, "judges": 1, "differential": 1, "recordings": 1, "kernel": 2, "packets": 1, "kill": 1, "model": 1},
    "alone": {"docker": 1},
}
# After all others: its containers use a known share of a core, which they must get.
ALONE = "alone"
COMPUTING = "computing"
LOWER_PRIORITY = 5
# Programs with a harness of their own, which has no times of single tests.
OWN_HARNESS = {"clients", "cluster", "differential", "judges", "pod_conformance", "recordings", "workloads"}
SLOWEST = 25
# Characters of what a failed test has said that are repeated at the end, where they are found.
FAILURE_SHOWN = 3000
# Minutes in which a program prints nothing, after which it hangs: it is ended and fails with what it has printed. The longest test
# takes five on a busy machine.
SILENCE = 20
# Seconds in which all that a program started must have let go of its output after its end.
LEFT_BEHIND = 30
# Tests that take longer than some seconds, by crate: what is run before each commit leaves them to `make test`.
SLOW = os.path.join(os.path.dirname(os.path.abspath(__file__)), "slow-tests.txt")
QUICK_LIMIT = 4

report = threading.Lock()


class Program:
    """A built test program: of which target of which crate, and how it ended."""

    def __init__(self, artifact):
        target = artifact["target"]
        self.path = artifact["executable"]
        self.folder = os.path.dirname(artifact["manifest_path"])
        self.crate = re.sub(r".*[/#]([\w-]+)@.*", r"\1", artifact["package_id"])
        if "@" not in artifact["package_id"]:
            self.crate = os.path.basename(self.folder)
        self.is_unit = target["kind"][0] in ("lib", "bin")
        self.target = target["name"]
        self.name = f"{self.crate} (unit tests)" if self.is_unit else f"{self.crate} {self.target}"
        self.lane, self.threads = COMPUTING, os.cpu_count() or 2
        for lane, targets in LANES.items():
            if not self.is_unit and self.target in targets:
                self.lane, self.threads = lane, targets[self.target]
        if os.environ.get("TEST_THREADS"):
            self.threads = int(os.environ["TEST_THREADS"])
        self.wall = self.cpu = 0.0
        self.code = None
        self.output = ""
        self.pid = self.printed = None

    def run(self):
        command = [self.path, f"--test-threads={self.threads}"]
        environment = dict(os.environ, CARGO_MANIFEST_DIR=self.folder)
        if self.target not in OWN_HARNESS:
            # The time of each test; libtest keeps that to nightly compilers but for this variable. The output stays the same else.
            command += ["-Zunstable-options", "--report-time"]
            environment["RUSTC_BOOTSTRAP"] = "1"
        if os.environ.get("TEST_QUICK"):
            for crate, name in slow_tests():
                if crate == self.crate:
                    command += ["--skip", name]
        if self.lane == COMPUTING:
            command = ["nice", "-n", str(LOWER_PRIORITY), *command]
        began = time.monotonic()
        child = subprocess.Popen(command, cwd=self.folder, env=environment, stdin=subprocess.DEVNULL,
                                 stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True)
        self.pid, self.printed = child.pid, began
        running.add(self)
        if self.lane == COMPUTING:
            lower(child.pid)
        reader = threading.Thread(target=self.read, args=(child.stdout,), daemon=True)
        reader.start()
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = 0
        self.wall = time.monotonic() - began
        self.cpu = usage.ru_utime + usage.ru_stime
        self.code = os.waitstatus_to_exitcode(status)
        # A process that a test has left behind may hold the other end for ever.
        reader.join(LEFT_BEHIND)
        if reader.is_alive():
            self.output += f"\nrun-tests.py: a process that it started still holds its output {LEFT_BEHIND} s after its end\n"
            self.code = self.code or 1
        running.discard(self)
        with report:
            print(f"\n     Running {self.name} ({os.path.relpath(self.path)})", flush=True)
            # As libtest prints it without the times, which are told together at the end.
            print(re.sub(r" <[\d.]+s>$", "", self.output.strip("\n"), flags=re.M), flush=True)
            print(f"{self.name}: {minutes(self.wall)}, ended with {self.code}", flush=True)

    def read(self, pipe):
        for line in pipe:
            self.output += line.decode(errors="replace")
            self.printed = time.monotonic()

    def end(self, number):
        try:
            os.killpg(self.pid, number)
        except ProcessLookupError:
            pass

    def unfinished(self):
        """The tests that libtest has named as long ones and that have not ended."""
        long = re.findall(r"^test (\S+) has been running for over", self.output, re.M)
        return [name for name in long if not re.search(rf"^test {re.escape(name)} \.\.\. ", self.output, re.M)]

    def tests(self):
        """The tests with their times in seconds."""
        found = re.findall(r"^test (\S+)(?: - should panic)? \.\.\. \w+ <([\d.]+)s>$", self.output, re.M)
        return [(float(seconds), f"{self.name}: {name}") for name, seconds in found]

    def failures(self):
        """What each failed test has said, cut to what shows why."""
        said = re.split(r"^---- (\S+) (?:stdout )?----$", self.output, flags=re.M)
        if len(said) == 1 and self.code != 0:
            return [("the end of its output", self.output[-FAILURE_SHOWN:])]
        end = re.compile(r"^(?:failures:|test result:)", re.M)
        # Where it failed stands in the message; the calls above it stay in the whole output.
        frames = re.compile(r"^stack backtrace:\n(?:\s+\d+: .*\n(?:\s+at .*\n)?)*", re.M)
        return [(name, shortened(frames.sub("", end.split(text)[0]).strip("\n"))) for name, text in zip(said[1::2], said[2::2])]

    def counts(self):
        lines = re.findall(r"^test result: .*? (\d+) passed; (\d+) failed; (\d+) ignored", self.output, re.M)
        return [sum(int(line[place]) for line in lines) for place in range(3)]


def shortened(text):
    """The beginning and the end: an object that is shown has its status at its end."""
    half = FAILURE_SHOWN // 2
    return text if len(text) <= FAILURE_SHOWN else f"{text[:half]}\n[…]\n{text[-half:]}"


running = set()


def lower(pid):
    """A session has a share of the cores of its own, in which `nice` counts for nothing, where the kernel groups by sessions."""
    try:
        with open(f"/proc/{pid}/autogroup", "w", encoding="ascii") as group:
            group.write(str(LOWER_PRIORITY))
    except OSError:
        pass


def end_all(number, _):
    """Ends all programs, and says which those were: whoever ended this waited for one of them."""
    for program in list(running):
        program.end(signal.SIGTERM)
        quiet = minutes(time.monotonic() - program.printed)
        print(f"\nEnded while it ran: {program.name}, silent for {quiet}, unfinished: {program.unfinished() or 'none by name'}\n"
              + shortened(program.output), flush=True)
    os._exit(128 + number)


def end_silent():
    for program in list(running):
        if time.monotonic() - program.printed > 60 * SILENCE:
            program.output += f"\nrun-tests.py: it printed nothing for {SILENCE} min and was ended; unfinished: {program.unfinished()}\n"
            program.printed = time.monotonic()
            program.end(signal.SIGKILL)


def slow_tests():
    with open(SLOW, encoding="utf-8") as lines:
        return [tuple(line.split()) for line in lines if line.strip() and not line.startswith("#")]


def minutes(seconds):
    return f"{int(seconds) // 60} min {seconds % 60:04.1f} s"


def programs(file, wanted):
    """Those of the build's messages that are tests, each once."""
    found = {}
    with open(file, encoding="utf-8") as lines:
        for line in lines:
            message = json.loads(line) if line.startswith("{") else {}
            if message.get("reason") != "compiler-artifact" or not message.get("executable"):
                continue
            if message["profile"]["test"] and message["target"]["kind"][0] in ("lib", "bin", "test") and message["target"]["test"]:
                program = Program(message)
                if os.environ.get("TEST_QUICK") and program.lane != COMPUTING:
                    continue
                if not wanted or {program.target, program.crate, program.name} & set(wanted):
                    found[program.path] = program
    return list(found.values())


def main():
    file, wanted = sys.argv[1], sys.argv[2:]
    all_programs = programs(file, wanted)
    if not all_programs:
        sys.exit(f"run-tests.py: the build made no test program of {wanted or 'the workspace'}")
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, end_all)
    queues = {}
    for program in all_programs:
        queues.setdefault("all" if os.environ.get("TEST_LANES") == "1" else program.lane, []).append(program)
    for lane, queue in queues.items():
        order = list(LANES.get(lane, {}))
        # The unit tests of the API server and of its clients are the longest.
        queue.sort(key=lambda p: (order.index(p.target) if p.target in order else 99, p.crate not in ("windlass-control", "windlass-controllers"), p.name))
    began = time.monotonic()
    threads = [threading.Thread(target=lambda queue=queue: [program.run() for program in queue], daemon=True) for lane, queue in queues.items() if lane != ALONE]
    for thread in threads:
        thread.start()
    for thread in threads:
        while thread.is_alive():
            thread.join(1)
            end_silent()
    for program in queues.get(ALONE, []):
        program.run()
    wall = time.monotonic() - began

    print("\nWhere the time went (minutes of the clock, CPU of the program and the children that it waited for):")
    for lane, queue in queues.items():
        print(f"  {lane}: {minutes(sum(p.wall for p in queue))}")
        for program in sorted(queue, key=lambda p: -p.wall):
            if program.wall >= 1:
                print(f"    {minutes(program.wall):>16}  CPU {minutes(program.cpu):>16}  {program.name}")
    slowest = sorted((test for program in all_programs for test in program.tests()), reverse=True)[:SLOWEST]
    if slowest and slowest[0][0] >= 1:
        print("  the slowest tests:")
        for seconds, name in slowest:
            print(f"    {seconds:8.1f} s  {name}")
    listed = slow_tests()
    unlisted = [f"{name} ({seconds:.0f} s)" for program in all_programs if program.lane == COMPUTING
                for seconds, name in program.tests()
                if seconds > 2 * QUICK_LIMIT and not any(part in name for crate, part in listed if crate == program.crate)]
    if unlisted:
        print("  slow, and not in scripts/slow-tests.txt: " + ", ".join(unlisted))
    passed, failed, ignored = (sum(program.counts()[place] for program in all_programs) for place in range(3))
    broken = [program for program in all_programs if program.code != 0]
    print(f"  tests: {minutes(wall)} of {os.cpu_count()} cores; the load was {' '.join(f'{load:.1f}' for load in os.getloadavg())}")
    for program in broken:
        for name, text in program.failures():
            print(f"\nFailed: {program.name}: {name}\n{text}")
    for program in broken:
        print(f"FAILED: {program.name} ended with {program.code}: "
              + ", ".join(re.findall(r"^test (\S+) \.\.\. FAILED", program.output, re.M)))
    # What counts is the exit code; the line is for readers.
    print(f"{passed} passed, {max(failed, len(broken))} failed, {ignored} skipped")
    sys.exit(1 if broken else 0)


if __name__ == "__main__":
    main()
