#!/usr/bin/env python3
"""Runs ctest for a part of scripts/test, runs once more what may be run once more, and counts.

    scripts/run_ctest.py PART BUILD_FOLDER LOG_FOLDER [--never-skipped FILE] [--] [CTEST OPTION...]
    scripts/run_ctest.py --judge-skips PART FILE LOG       of what runs without ctest: says which skips FILE forbids

A test is run once more, alone, if it failed and is labelled `timing`, `bench` or `tools`: a busy machine can do that. If it
passes then it counts as passed, and is named as flaky. Never run again is what a machine cannot be blamed for: a hang, a
crash, an abort, a sanitizer's report, damaged contents, a model's finding. That stays failed. So does all, if more than ten
would have to be run again.

Where one process runs several tests of GoogleTest they are counted one by one. One that ends before its last test has
failed, whatever its exit code. So has one that skipped a test and then ends with another exit code than 0.

A hang is what takes ten minutes. Programs of GoogleTest and of tests/integration end themselves a minute before by SIGABRT
(tests/support/keep_core.cpp), so that their core dump shows where they hung.

Prints, behind ctest's own output, which is indented by a space:
    skipped: NAME: REASON     a test that says so itself (exit code 77, or GoogleTest's skip), or is disabled
    flaky: NAME: REASON
    failed: NAME: REASON      also a test that could not be started, and one in FILE that was skipped
    core: FILE                what a crash has left, if the kernel writes core dumps to the working folder
    took: SECONDS NAME        of the slowest ten
    N passed, N failed, N skipped
LOG_FOLDER/failed/PART/NAME.log holds what a failed test printed, and the command that repeats it; in failed/PART.before are
those of the run before, in flaky/PART those of flaky tests. Exit code 1 when any failed, or there was none to run.
"""

import contextlib
import dataclasses
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
import xml.etree.ElementTree

TIME_OUT_S = 600  # for hangs only
HANG_S = TIME_OUT_S - 60  # time for a core dump
ALL_OUTPUT = str(16 << 20)  # ctest keeps 1 KiB of a test that passed, unless told
SLOWEST = 10
MOST_AGAIN = 10
AGAIN = {"timing", "bench", "tools"}  # labels
OWN_SKIP = "SKIP_RETURN_CODE"
NOISE = re.compile(r"^\s*$|^\[|^Note: Google|^Running main|^\S+\.(cpp|hpp|c|h|cc):\d+: Skipped$|tests? ran|^Repeating")
# In a failed test's output: not the machine's fault, whatever its labels. (Python shows a process that a signal has ended as
# one that returned a negative number.)
GRAVE = re.compile(
    r"Sanitizer: |runtime error: |SIG(SEGV|ABRT|BUS|ILL|FPE|SYS|TRAP)\b|[Ss]egmentation fault|core dumped|\bAborted\b|"
    r"(?<!\w)spanalloc: (?!ignored|.*command not found)|\bdamaged\b|\boverwritten\b|\b(crashed|CRASHED)\b|killed by|"
    r"double free|corrupt|terminate called|Assertion .* failed|\(-\d+, |-\d+ != 0|\bfailure found\b|"
    r"\bTimeoutExpired\b|\bhung\b",
)
NOTHING_RUN = re.compile(r"^Ran 0 tests in ", re.MULTILINE)  # unittest, which takes that for success
# How ctest lists a failed test at its end ("	  3 - name (SEGFAULT)"), and what it says there of one that ended by itself.
# Anything else is a signal's name, or a time-out.
LISTED = re.compile(r"^\s+\d+ - (.+) \(([^()]+)\)$")
ORDINARY_ENDS = ("Failed", "Not Run")
# And how it tells of each: all there is when ctest itself does not come to its end.
TOLD = re.compile(r"^\s*\d+/\d+ Test\s+#\d+: (.+?) \.*\s*(Passed|[\w ]*\*\*\*.*?)\s+([\d.]+) sec")
# Includes a build folder. ctest takes a test for skipped whose output says so, whatever its exit code: there it is not told.
WITHOUT_SKIPS = """function(set_tests_properties)
  cmake_parse_arguments(PARSE_ARGV 0 given "" "SKIP_REGULAR_EXPRESSION" "")
  _set_tests_properties(${given_UNPARSED_ARGUMENTS})
endfunction()
subdirs([==[%s]==])
"""


@dataclasses.dataclass
class Suite:
    """What a process of GoogleTest says of its tests."""

    announced: int
    finished: bool
    passed: list
    skipped: list  # (name, reason)
    failed: list  # (name, reason)
    running: str = ""  # when the process ended
    told: str = ""  # what the failed ones printed


@dataclasses.dataclass
class Result:
    """One test of ctest."""

    name: str
    outcome: str  # passed, failed, skipped
    reason: str
    output: str
    seconds: float
    grave: bool = False
    suite: Suite = None


@dataclasses.dataclass
class Facts:
    """What the build folder says of a test."""

    labels: set
    says_skip: list  # patterns: output of one that was skipped


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
    """A Suite; None of a process that is no GoogleTest's. What a test's children print may stand anywhere."""
    announced = re.search(r"^\[==========\] Running (\d+) tests?", output, re.MULTILINE)
    if not announced:
        return None
    finished = re.search(r"^\[==========\] \d+ tests? from \d+ test suites? ran", output, re.MULTILINE)
    suite = Suite(int(announced.group(1)), finished is not None, [], [], [])
    told = []
    for text in re.split(r"^\[ RUN      \] ", output, flags=re.MULTILINE)[1:]:
        line, _, printed = text.partition("\n")
        name = line.split(",")[0].strip()
        end = re.search(r"\[ +(OK|SKIPPED|FAILED) +\] " + re.escape(name) + r"\b", printed)
        printed = printed[: end.start()] if end else printed
        if end is None:
            suite.running = name
            told.append(text)
        elif end.group(1) == "OK":
            suite.passed.append(name)
        elif end.group(1) == "SKIPPED":
            suite.skipped.append((name, skip_reason(printed)))
        else:
            suite.failed.append((name, failure_reason(printed)))
            told.append(f"[ RUN      ] {line}\n{printed}")
    suite.told = "\n".join(told)
    return suite


def judged(name, status, message, output, seconds, end, says_skip):
    """A Result of what ctest says. `end`: how it listed the test, if it failed. `says_skip`: as in Facts."""
    suite = suite_of(output)
    if status == "disabled":
        return Result(name, "skipped", "disabled", output, seconds)
    if status == "notrun" and message.startswith(OWN_SKIP) and not (suite and (suite.failed or not suite.finished)):
        return Result(name, "skipped", skip_reason(output), output, seconds, suite=suite)
    if status == "run" and (suite is None or (suite.finished and suite.announced > 0 and not suite.failed)):
        if NOTHING_RUN.search(output):
            return Result(name, "failed", "ran no tests", output, seconds, grave=True)
        if suite.skipped if suite else any(re.search(pattern, output) for pattern in says_skip):
            if suite is None or suite.announced == 1:
                return Result(name, "skipped", skip_reason(output), output, seconds, suite=suite)
        return Result(name, "passed", "", output, seconds, suite=suite)
    end = end or message or "Failed"
    said = end if end != "Failed" else ""
    if status == "run":
        said = f"ended with exit code 0, but not after the last of {suite.announced} tests"
    running = f"in {suite.running}" if suite and suite.running and suite.announced > 1 else ""
    reason = failure_reason(suite.told if suite and suite.running else output)
    grave = end not in ORDINARY_ENDS or status == "run" or GRAVE.search(output) is not None
    return Result(name, "failed", ": ".join(text for text in (said, running, reason) if text), output, seconds,
                  grave=grave, suite=suite)


def read_results(path, facts, ends, told):
    """The tests of a JUnit file that ctest wrote. `ends`: by name, how it listed those that failed. `told`: by name, what it
    told of each as it went, for when it came to no end."""
    results = []
    try:
        cases = list(xml.etree.ElementTree.parse(path).getroot().iter("testcase"))
    except (OSError, xml.etree.ElementTree.ParseError) as error:
        for name, (outcome, seconds) in told.items():
            results.append(judged(name, "run" if outcome == "Passed" else "fail", "", "", seconds,
                                  outcome.strip("* ") or "Failed", []))
        results.append(Result("ctest", "failed", f"came to no end, so outputs are missing: {error}", "", 0, grave=True))
        return results
    for case in cases:
        skipped = case.find("skipped")
        message = (skipped.get("message") or "") if skipped is not None else ""
        name = case.get("name")
        results.append(judged(name, case.get("status"), message, case.findtext("system-out") or "",
                              float(case.get("time") or 0), ends.get(name),
                              facts[name].says_skip if name in facts else []))
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


def forbidden(rules, name):
    """Why this may not be skipped; None if it may."""
    return next((reason for pattern, reason in rules if pattern.match(name)), None)


def forbid_skips(results, rules):
    """What is skipped and may not be becomes failed."""
    for result in results:
        if result.outcome == "skipped":
            names = [result.name, *(name for name, _ in result.suite.skipped)] if result.suite else [result.name]
            why = next(filter(None, (forbidden(rules, name) for name in names)), None)
            if why is not None:
                result.outcome = "failed"
                result.reason = f"may not be skipped ({why}), but was: {result.reason}"
        elif result.suite:
            for name, reason in list(result.suite.skipped):
                why = forbidden(rules, name) or forbidden(rules, result.name)
                if why is not None:
                    result.suite.skipped.remove((name, reason))
                    result.suite.failed.append((name, f"may not be skipped ({why}), but was: {reason}"))
                    result.outcome = "failed"


def judge_skips(part, path, log):
    """The same for a log with the lines that this program prints, of what runs without ctest."""
    rules = read_never_skipped(path, part)
    failed = 0
    with open(log, encoding="utf-8", errors="replace") as file:
        skips = [line[len("skipped: "):].strip().partition(": ") for line in file if line.startswith("skipped: ")]
    for name, _, reason in skips:
        why = forbidden(rules, name)
        if why is not None:
            failed += 1
            print(f"failed: {name}: may not be skipped ({why}), but was: {reason}")
    print(f"0 passed, {failed} failed, 0 skipped")
    return 1 if failed else 0


def escaped(name):
    """A test's name as a regular expression of CMake's."""
    return re.sub(r"([][^$.*+?|()\\])", r"\\\1", name)


def facts_of(folder, options):
    """Facts by test."""
    shown = subprocess.run(
        ["ctest", "--test-dir", folder, "--show-only=json-v1", *options], stdout=subprocess.PIPE, check=True, text=True
    ).stdout
    facts = {}
    for test in json.loads(shown)["tests"]:
        properties = {each["name"]: each["value"] for each in test.get("properties", ())}
        facts[test["name"]] = Facts(set(properties.get("LABELS", ())), properties.get("SKIP_REGULAR_EXPRESSION", []))
    return facts


def ctest(folder, junit, facts, options, crashed=lambda: None):
    """Runs it; what it prints goes where this program prints, indented: so no line of a test's is taken for one of ours.
    `crashed` is called behind each test that a signal has ended."""
    if os.path.exists(junit):
        os.remove(junit)
    around = junit + ".around"
    os.makedirs(around, exist_ok=True)
    with open(os.path.join(around, "CTestTestfile.cmake"), "w", encoding="utf-8") as file:
        file.write(WITHOUT_SKIPS % folder)
    ends, told = {}, {}
    with subprocess.Popen(
        ["ctest", "--test-dir", around, "--output-on-failure", "--no-tests=error", "--timeout", str(TIME_OUT_S),
         "--test-output-size-passed", ALL_OUTPUT, "--test-output-size-failed", ALL_OUTPUT, "--output-junit", junit,
         *options],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
    ) as run:
        for line in run.stdout:
            print(" " + line, end="", flush=True)
            listed, one = LISTED.match(line.rstrip()), TOLD.match(line)
            if listed:
                ends[listed.group(1)] = listed.group(2)
            if one:
                told[one.group(1)] = (one.group(2), float(one.group(3)))
                if "Exception" in one.group(2):
                    crashed()
    return read_results(junit, facts, ends, told)


def run_again(results, facts, folder, junit):
    """Runs once more, one at a time, what may be. The flaky ones, as they were at first."""
    again = [each for each in results if each.outcome == "failed" and not each.grave
             and each.name in facts and facts[each.name].labels & AGAIN]
    if len(again) > MOST_AGAIN:
        print(f"not run again: {len(again)} tests, which is more than a busy machine fails")
        again = []
    if not again:
        return []
    print(f"once more, alone: {', '.join(each.name for each in again)}")
    names = "|".join(escaped(each.name) for each in again)
    second = {each.name: each for each in ctest(folder, junit, facts, ["-j", "1", "-R", f"^({names})$"])}
    flaky = []
    for each in again:
        then = second.get(each.name)
        if then is not None and then.outcome == "passed":
            flaky.append(dataclasses.replace(each))
            each.outcome, each.suite = "passed", then.suite
        elif then is not None and then.grave:
            each.reason = f"{then.reason} (at first: {each.reason})"
            each.output = f"{then.output}\n---- at first:\n{each.output}"
    return flaky


def repeating(folder, name):
    """The command that runs a test again, with what decides its course."""
    names = ("SPANALLOC_TEST_FULL", "SPANALLOC_TEST_SEED", "SPANALLOC_SEED", "RC_PARAMS", "STRESS_SCALE")
    words = [f"{each}={shlex.quote(os.environ[each])}" for each in names if os.environ.get(each)]
    if os.environ.get("SPANALLOC_FIXED_ADDRESSES"):
        words.append("setarch -R")
    pattern = shlex.quote("^" + escaped(name) + "$")
    return " ".join([*words, f"ctest --test-dir {shlex.quote(folder)} --output-on-failure -R {pattern}"])


def keep_outputs(results, part, folder, kept):
    """A file of each, with what it printed: of several tests the failed ones first."""
    for at, result in enumerate(results):
        os.makedirs(kept, exist_ok=True)
        name = re.sub(r"[^\w.<>-]+", "_", result.name)[:120]
        path = os.path.join(kept, name + ".log")
        if os.path.exists(path):
            path = os.path.join(kept, f"{name}.{at}.log")
        told = f"{result.suite.told}\n\n---- all of it:\n" if result.suite and result.suite.announced > 1 else ""
        with open(path, "w", encoding="utf-8", errors="replace") as file:
            file.write(f"{part}: {result.name}: {result.reason}\nrepeat: {repeating(folder, result.name)}\n\n"
                       f"{told}{result.output}")


def put_aside(kept):
    """What a run before has kept."""
    if os.path.isdir(kept):
        shutil.rmtree(kept + ".before", ignore_errors=True)
        os.rename(kept, kept + ".before")


def keep_cores(folder, part, logs, since):
    """Moves the core dumps that have been left in the build folder, and says where to. At once: the next one has the same
    name. Those of tests that hung lie in folders of their own."""
    kept = os.path.join(logs, "cores")
    for place, _, files in os.walk(folder):
        for name in files:
            path = os.path.join(place, name)
            if not re.fullmatch(r"core(\.\d+)?|qemu_.*\.core", name):
                continue
            with contextlib.suppress(FileNotFoundError):  # a test that runs has removed it
                keep_core(path, kept, part, since)
            if re.fullmatch(r"hung-\d+", os.path.basename(place)):
                with contextlib.suppress(OSError):  # another file is in it
                    os.rmdir(place)


def keep_core(path, kept, part, since):
    """Moves one, if it is newer than `since`."""
    written = os.path.getmtime(path)
    if written < since:
        return
    os.makedirs(kept, exist_ok=True)
    when = time.strftime("%Y%m%d-%H%M%S", time.gmtime(written))
    target = os.path.join(kept, f"{part}-{os.path.basename(os.path.dirname(path))}-{when}-{os.path.basename(path)}")
    if os.path.exists(target):
        target += f".{time.monotonic_ns()}"
    shutil.move(path, target)
    print(f"core: {target}", flush=True)


def report(results, flaky):
    """Prints the lines that scripts/test reads; the exit code."""
    passed, skipped, failed = 0, [], []
    for result in results:
        suite = result.suite
        if suite is None or suite.announced < 2:
            passed += result.outcome == "passed"
            skipped += [(result.name, result.reason)] if result.outcome == "skipped" else []
            failed += [(result.name, result.reason)] if result.outcome == "failed" else []
            continue
        passed += len(suite.passed)
        skipped += suite.skipped
        failed += [(f"{result.name}: {name}", reason) for name, reason in suite.failed]
        # A crash, a hang, an end too early: none of those.
        if result.outcome == "failed" and (suite.running or not suite.finished or not suite.failed):
            failed.append((result.name, result.reason))
    for word, named in (("skipped", skipped), ("flaky", [(each.name, each.reason) for each in flaky]), ("failed", failed)):
        for name, reason in named:
            print(f"{word}: {name}: {reason}" if reason else f"{word}: {name}")
    for result in sorted(results, key=lambda each: each.seconds, reverse=True)[:SLOWEST]:
        print(f"took: {result.seconds:.1f} {result.name}")
    print(f"{passed} passed, {len(failed)} failed, {len(skipped)} skipped")
    return 1 if failed else 0


def main(arguments):
    if arguments[:1] == ["--judge-skips"] and len(arguments) == 4:
        return judge_skips(*arguments[1:])
    if len(arguments) < 3:
        sys.exit(__doc__)
    part, folder, logs, *options = arguments
    folder, logs = os.path.abspath(folder), os.path.abspath(logs)
    rules = []
    if options[:1] == ["--never-skipped"]:
        rules = read_never_skipped(options[1], part.removesuffix("-alone"))
        options = options[2:]
    if options[:1] == ["--"]:
        options = options[1:]
    since = time.time() - 1
    kept, kept_flaky = (os.path.join(logs, word, part) for word in ("failed", "flaky"))
    put_aside(kept)
    shutil.rmtree(kept_flaky, ignore_errors=True)
    os.environ["SPANALLOC_TEST_CORES"] = "yes"  # tests/support/keep_core.cpp
    os.environ.setdefault("SPANALLOC_TEST_HANG_S", str(HANG_S))
    facts = facts_of(folder, options)
    results = ctest(folder, os.path.join(logs, f"{part}.xml"), facts, options,
                    lambda: keep_cores(folder, part, logs, since))
    if not results:
        results = [Result("ctest", "failed", "no tests match " + " ".join(options), "", 0)]
    if "ctest" not in (each.name for each in results):
        results += [Result(name, "failed", "was not run", "", 0, grave=True)
                    for name in sorted(facts.keys() - {each.name for each in results})]
    flaky = run_again(results, facts, folder, os.path.join(logs, f"{part}-again.xml"))
    forbid_skips(results, rules)
    keep_outputs([each for each in results if each.outcome == "failed"], part, folder, kept)
    keep_outputs(flaky, part, folder, kept_flaky)
    keep_cores(folder, part, logs, since)
    return report(results, flaky)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
