#!/usr/bin/env python3
"""Counts the tests of a ctest run from the JUnit file it wrote.

Prints what each failed test printed at its end, "skipped: NAME: REASON" for each skipped test, "failed: NAME: REASON"
for each failed one, and at the end "N passed, N failed, N skipped". A test counts as skipped only when it says so
itself (exit code 77, or GoogleTest's skip) or is disabled; one that could not be started is a failure. Exit code 1 when
any failed.
"""

import re
import sys
import xml.etree.ElementTree

SHOWN_LINES = 60  # of a failed test's output: its end tells what failed
OWN_SKIP = ("SKIP_RETURN_CODE", "SKIP_REGULAR_EXPRESSION_MATCHED", "Skipped")
NOISE = re.compile(r"^\s*$|^\[|^Note: Google|^Running main|^\S+\.(cpp|hpp|c|h|cc):\d+: Skipped$|tests? ran|^Repeating")


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


def main():
    try:
        suite = xml.etree.ElementTree.parse(sys.argv[1]).getroot()
    except (OSError, xml.etree.ElementTree.ParseError) as error:
        print(f"no test results: {error}")
        print("0 passed, 1 failed, 0 skipped")
        return 1
    passed, failed, skipped = 0, [], 0
    for case in suite.iter("testcase"):
        name, status = case.get("name"), case.get("status")
        output = case.findtext("system-out") or ""
        message = (case.find("skipped").get("message") or "") if case.find("skipped") is not None else ""
        if status == "run":
            passed += 1
        elif status == "disabled":
            skipped += 1
            print(f"skipped: {name}: disabled")
        elif status == "notrun" and message.startswith(OWN_SKIP):
            skipped += 1
            print(f"skipped: {name}: {skip_reason(output)}")
        else:
            failed.append(": ".join(text for text in (name, message, failure_reason(output)) if text))
            print(f"\n---- {name} failed; its last lines:")
            print("\n".join(output.splitlines()[-SHOWN_LINES:]))
    for text in failed:
        print(f"failed: {text}")
    print(f"{passed} passed, {len(failed)} failed, {skipped} skipped")
    return 1 if failed or passed + skipped == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
