#!/usr/bin/env python3
"""Runs ctest for a part of scripts/test, runs once more what may be run once more, and counts.

    scripts/run_ctest.py PART BUILD_FOLDER LOG_FOLDER [--never-skipped FILE] [--] [CTEST OPTION...]
    scripts/run_ctest.py --judge-skips PART FILE LOG       of a part without ctest: says which skips FILE forbids

A test is run once more, alone, if it failed and is labelled `timing`, `bench` or `tools`, or ran into its time-out: a busy
machine can do that. If it passes then it counts as passed, and is named as flaky. Never run again is what a machine cannot be
blamed for: a crash, an abort, a sanitizer's report, damaged contents, a model's finding. That stays failed.

Where one process runs a whole suite of GoogleTest its tests are counted one by one.

Prints, behind ctest's own output:
    skipped: NAME: REASON     a test that says so itself (exit code 77, or GoogleTest's skip), or is disabled
    flaky: NAME: REASON
    failed: NAME: REASON      also a test that could not be started, and one in FILE that was skipped
    core: FILE                what a crash has left, if the kernel writes core dumps to the working folder
    took: SECONDS NAME        of the slowest ten
    N passed, N failed, N skipped
LOG_FOLDER/failed/PART/NAME.log holds all that a failed test printed, and the command that repeats it. Exit code 1 when any
failed, or there was none to run.
"""

import dataclasses
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import xml.etree.ElementTree

TIME_OUT_S = 600  # for hangs only
ALL_OUTPUT = str(16 << 20)  # ctest keeps 1 KiB of a test that passed, unless told
SLOWEST = 10
AGAIN = {"timing", "bench", "tools"}  # labels
OWN_SKIP = ("SKIP_RETURN_CODE", "SKIP_REGULAR_EXPRESSION_MATCHED", "Skipped")
NOISE = re.compile(r"^\s*$|^\[|^Note: Google|^Running main|^\S+\.(cpp|hpp|c|h|cc):\d+: Skipped$|tests? ran|^Repeating")
# In a failed test's output: not the machine's fault, whatever its labels.
GRAVE = re.compile(
    r"Sanitizer: |runtime error: |SIG(SEGV|ABRT|BUS|ILL|FPE|SYS|TRAP)|[Ss]egmentation fault|core dumped|"
    r"^spanalloc: |\bdamaged\b|\boverwritten\b|CRASHED|^model: |interleaving",
    re.MULTILINE,
)
# How ctest lists a failed test at its end ("	  3 - name (SEGFAULT)"), and what it says there of one that ended by itself or was
# stopped. Anything else is a signal's name.
LISTED = re.compile(r"^\s+\d+ - (.+) \(([^()]+)\)$")
ORDINARY_ENDS = ("Failed", "Timeout", "Not Run")


@dataclasses.dataclass
class Result:
    """One test of ctest."""

    name: str
    outcome: str  # passed, failed, skipped
    reason: str
    output: str
    seconds: float
    grave: bool = False
    timed_out: bool = False
    suite: tuple = ()  # suite_of(output)


def skip_reason(output):
    """The first line of a test's output that is not the framework's."""
    for line in output.splitlines():
        if not NOISE.search(line):
            return re.sub(r"^\s*(skip(ped)?|SKIP(PED)?)\s*:\s*", "", line).strip()
    return "no reason given"


def failure_reason(output):
    """The first thing that was not as expected, in one line: the end of a long log may be all that somebody sees."""
    lines = output.splitlines()
    for at, line in enumerate(lines):
        if re.match(r"^\S+:\d+: Failure$", line):  # GoogleTest: the lines until an empty one
            text = [line.rsplit("/", 1)[-1]]
            for more in lines[at + 1 : at + 12]:
                if not more.strip() or more.startswith("["):
                    break
                text.append(more.strip())
            text += [death for death in lines[at:] if death.startswith("[  DEATH")][:1]
            return " ".join(text)[:400]
        if re.match(r"^[\w.]*(Error|Exception|Expired|TimedOut|SimulationFailed)\b.*:", line):  # unittest
            where = [before.strip() for before in lines[:at] if re.match(r"^(FAIL|ERROR): ", before)]
            return " ".join(where[-1:] + [line.strip()])[:400]
    return ""


def suite_of(output):
    """What a process of GoogleTest says of its tests: (number of passed, [(name, reason)] of the skipped, names of the
    failed). () of another process, or one that did not come to its end."""
    if not re.search(r"^\[==========\] \d+ tests? from \d+ test suites? ran", output, re.MULTILINE):
        return ()
    passed = re.search(r"^\[  PASSED  \] (\d+) tests?\.", output, re.MULTILINE)
    skipped, failed = [], []
    for text in re.split(r"^\[ RUN      \] ", output, flags=re.MULTILINE)[1:]:
        name = text.partition("\n")[0].strip()
        if re.search(r"^\[  SKIPPED \] \S+.* \(\d+ ms\)$", text, re.MULTILINE):
            skipped.append((name, skip_reason(text.partition("\n")[2])))
        elif re.search(r"^\[  FAILED  \] \S+.* \(\d+ ms\)$", text, re.MULTILINE):
            failed.append(name)
    return int(passed.group(1)) if passed else 0, skipped, failed


def running_test(output):
    """The test of a suite that was running when its process ended without a summary."""
    begun = re.findall(r"^\[ RUN      \] (\S+)", output, re.MULTILINE)
    if len(begun) < 2 or re.search(r"^\[==========\] .* ran", output, re.MULTILINE):
        return ""
    return f"in {begun[-1]}"


def read_results(path, ends):
    """The tests of a JUnit file that ctest wrote. `ends`: by name, how it listed those that failed."""
    results = []
    for case in xml.etree.ElementTree.parse(path).getroot().iter("testcase"):
        name, status = case.get("name"), case.get("status")
        output = case.findtext("system-out") or ""
        seconds = float(case.get("time") or 0)
        skipped = case.find("skipped")
        message = (skipped.get("message") or "") if skipped is not None else ""
        if status == "run":
            results.append(Result(name, "passed", "", output, seconds, suite=suite_of(output)))
        elif status == "disabled":
            results.append(Result(name, "skipped", "disabled", output, seconds))
        elif status == "notrun" and message.startswith(OWN_SKIP):
            results.append(Result(name, "skipped", skip_reason(output), output, seconds))
        else:
            end = ends.get(name, message or "Failed")
            said = end if end != "Failed" else ""
            reason = ": ".join(text for text in (said, running_test(output), failure_reason(output)) if text)
            grave = end not in ORDINARY_ENDS or GRAVE.search(output) is not None
            results.append(Result(
                name, "failed", reason, output, seconds, grave=grave, timed_out=end == "Timeout", suite=suite_of(output),
            ))
    return results


def read_never_skipped(path, part):
    """[(pattern, reason)] of a list of tests that may not be skipped in this part (the file says how it is written)."""
    rules = []
    parts = set()
    with open(path, encoding="utf-8") as file:
        for line in file:
            line = line.strip()
            if not line or line.startswith("#"):
                continue
            if line.startswith("["):
                parts = set(line.strip("[]").split())
                continue
            pattern, _, reason = line.partition("  ")
            if part in parts:
                rules.append((re.compile(pattern.strip() + r"\Z"), reason.strip(" #")))
    return rules


def forbid_skips(results, rules):
    """What is skipped and may not be becomes failed."""
    for result in results:
        of_suite = [name for name, _ in result.suite[1]] if result.suite else []
        names = [result.name, *of_suite]
        skips = result.outcome == "skipped" or of_suite
        for pattern, reason in rules if skips else ():
            if any(pattern.match(name) for name in names):
                result.reason = f"may not be skipped ({reason}), but was: {result.reason}"
                result.outcome, result.grave = "failed", True
                break


def judge_skips(part, path, log):
    """The same for a log with the lines that this program prints, of a part without ctest."""
    rules = read_never_skipped(path, part)
    failed = 0
    with open(log, encoding="utf-8", errors="replace") as file:
        skips = [line[len("skipped: "):].strip().partition(": ") for line in file if line.startswith("skipped: ")]
    for name, _, why in skips:
        reasons = [reason for pattern, reason in rules if pattern.match(name)]
        if reasons:
            failed += 1
            print(f"failed: {name}: may not be skipped ({reasons[0]}), but was: {why}")
    print(f"0 passed, {failed} failed, 0 skipped")
    return 0


def escaped(name):
    """A test's name as a regular expression of CMake's."""
    return re.sub(r"([][^$.*+?|()\\])", r"\\\1", name)


def labels_of(folder, options):
    """Labels by test."""
    shown = subprocess.run(
        ["ctest", "--test-dir", folder, "--show-only=json-v1", *options], stdout=subprocess.PIPE, check=False, text=True
    ).stdout
    labels = {}
    for test in json.loads(shown or "{}").get("tests", ()):
        properties = {each["name"]: each["value"] for each in test.get("properties", ())}
        labels[test["name"]] = set(properties.get("LABELS", ()))
    return labels


def ctest(folder, junit, options):
    """Runs it; what it prints goes where this program prints."""
    if os.path.exists(junit):
        os.remove(junit)
    ends = {}
    with subprocess.Popen(
        ["ctest", "--test-dir", folder, "--output-on-failure", "--no-tests=error", "--timeout", str(TIME_OUT_S),
         "--test-output-size-passed", ALL_OUTPUT, "--test-output-size-failed", ALL_OUTPUT, "--output-junit", junit,
         *options],
        stdout=subprocess.PIPE, text=True, errors="replace",
    ) as run:
        for line in run.stdout:
            print(line, end="", flush=True)
            listed = LISTED.match(line.rstrip())
            if listed:
                ends[listed.group(1)] = listed.group(2)
    return read_results(junit, ends)


def run_again(results, labels, folder, junit):
    """Runs once more, one at a time, what may be."""
    again = [each for each in results if each.outcome == "failed" and not each.grave
             and (each.timed_out or labels.get(each.name, set()) & AGAIN)]
    if not again:
        return []
    names = [each.name for each in again]
    print(f"once more, alone: {' '.join(names)}")
    second = {each.name: each for each in ctest(
        folder, junit, ["-j", "1", "-R", "^(" + "|".join(escaped(name) for name in names) + ")$"])}
    flaky = []
    for each in again:
        then = second.get(each.name)
        if then is not None and then.outcome == "passed":
            flaky.append((each.name, each.reason))
            each.outcome, each.suite = "passed", then.suite
    return flaky


def environment_of_tests():
    """What decides the tests' course, as it must be set to repeat one."""
    names = ("SPANALLOC_TEST_FULL", "SPANALLOC_TEST_SEED", "SPANALLOC_SEED", "RC_PARAMS", "STRESS_SCALE")
    return " ".join(f"{name}={shlex.quote(os.environ[name])}" for name in names if os.environ.get(name))


def keep_failures(results, part, folder, logs):
    """A file of each failed test, with all that it printed."""
    kept = os.path.join(logs, "failed", part)
    shutil.rmtree(kept, ignore_errors=True)
    for result in results:
        if result.outcome != "failed":
            continue
        os.makedirs(kept, exist_ok=True)
        name = re.sub(r"[^\w.<>-]+", "_", result.name)[:120]
        command = f"ctest --test-dir {shlex.quote(folder)} --output-on-failure -R {shlex.quote('^' + escaped(result.name) + '$')}"
        with open(os.path.join(kept, name + ".log"), "w", encoding="utf-8") as file:
            file.write(f"{part}: {result.name}: {result.reason}\nrepeat: {environment_of_tests()} {command}\n\n{result.output}")


def keep_cores(folder, part, logs):
    """Moves the core dumps that were left in the build folder, and says where to."""
    kept = os.path.join(logs, "cores")
    for place, _, files in os.walk(folder):
        for name in files:
            if not re.fullmatch(r"core(\.\d+)?", name):
                continue
            os.makedirs(kept, exist_ok=True)
            target = os.path.join(kept, f"{part}-{os.path.basename(place)}-{name}")
            shutil.move(os.path.join(place, name), target)
            print(f"core: {target}")


def report(results, flaky):
    """Prints the lines that scripts/test reads; the exit code."""
    passed, skipped, failed = 0, [], []
    for result in results:
        tests, skips, failures = result.suite or (int(result.outcome == "passed"), [], [])
        passed += tests
        skipped += [(result.name, result.reason)] if result.outcome == "skipped" else skips
        if result.outcome == "failed":
            of_suite = failures if tests + len(skips) + len(failures) > 1 else []
            names = [f"{result.name}: {name}" for name in of_suite] or [result.name]
            failed += [": ".join(text for text in (name, result.reason) if text) for name in names]
    for word, named in (("skipped", skipped), ("flaky", flaky)):
        for name, reason in named:
            print(f"{word}: {name}: {reason}")
    for text in failed:
        print(f"failed: {text}")
    for result in sorted(results, key=lambda each: each.seconds, reverse=True)[:SLOWEST]:
        print(f"took: {result.seconds:.1f} {result.name}")
    print(f"{passed} passed, {len(failed)} failed, {len(skipped)} skipped")
    return 1 if failed else 0


def no_results(error):
    print(f"failed: no test results: {error}")
    print("0 passed, 1 failed, 0 skipped")
    return 1


def main(arguments):
    if arguments[:1] == ["--judge-skips"] and len(arguments) == 4:
        return judge_skips(*arguments[1:])
    if len(arguments) < 3:
        sys.exit(__doc__)
    part, folder, logs, *options = arguments
    rules = []
    if options[:1] == ["--never-skipped"]:
        rules = read_never_skipped(options[1], part)
        options = options[2:]
    if options[:1] == ["--"]:
        options = options[1:]
    os.environ["SPANALLOC_TEST_CORES"] = "yes"  # tests/support/keep_core.cpp
    try:
        results = ctest(folder, os.path.join(logs, f"{part}.xml"), options)
        flaky = run_again(results, labels_of(folder, options), folder, os.path.join(logs, f"{part}-again.xml"))
    except (OSError, xml.etree.ElementTree.ParseError) as error:
        return no_results(error)
    if not results:
        return no_results("nothing matches " + " ".join(options))
    forbid_skips(results, rules)
    keep_failures(results, part, folder, logs)
    keep_cores(folder, part, logs)
    return report(results, flaky)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
