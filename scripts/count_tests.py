#!/usr/bin/env python3
"""What became of the tests of a ctest run: a line for each that failed or was skipped, then "PASSED FAILED SKIPPED".

usage: count_tests.py JUNIT_FILE RESULTS_DIRECTORY

ctest --output-junit wrote the first. A test that ran a whole GoogleTest binary has a file of its name in the second: then its cases are
counted, not the binary. A binary that died has none and counts as one failure, whatever it had run.
"""

import json
import os
import sys
import xml.etree.ElementTree


def cases(path):
    """(name, outcome) of each case; outcome: passed, failed or the reason why it was skipped."""
    with open(path, encoding="utf-8") as file:
        for suite in json.load(file)["testsuites"]:
            for case in suite["testsuite"]:
                name = f"{suite['name']}.{case['name']}"
                if case.get("failures"):
                    yield name, "failed"
                elif case["result"] == "SKIPPED":
                    said = [part["message"].strip() for part in case.get("skipped", [])]
                    yield name, "skipped: " + (said[0].splitlines()[-1] if said else "")
                elif case["status"] == "RUN":
                    yield name, "passed"


def tests(junit, results):
    for test in xml.etree.ElementTree.parse(junit).getroot().iter("testcase"):
        name = test.get("name")
        path = os.path.join(results, name + ".json")
        said = (test.findtext("system-out") or "").strip().splitlines()
        if test.find("skipped") is not None or test.get("status") == "notrun":
            # ctest says so as well of a binary that could not be started.
            missing = "not" in (test.find("skipped").get("message") if test.find("skipped") is not None else "not") and not said
            yield name, "failed" if missing else "skipped: " + (said[-1].removeprefix("skipped: ") if said else "")
        elif os.path.exists(path):
            outcomes = list(cases(path))
            yield from ((f"{name}: {case}", outcome) for case, outcome in outcomes)
            if test.get("status") == "fail" and all(outcome != "failed" for _, outcome in outcomes):
                yield name, "failed"  # afterwards: a leak, a race that was only reported
        else:
            yield name, "failed" if test.get("status") == "fail" else "passed"


def main():
    counts = {"passed": 0, "failed": 0, "skipped": 0}
    for name, outcome in tests(*sys.argv[1:3]):
        counts[outcome.split(":")[0]] += 1
        if outcome != "passed":
            print(f"{outcome.split(':')[0]:8} {name}{outcome[len('skipped'):] if outcome.startswith('skipped') else ''}")
    print(counts["passed"], counts["failed"], counts["skipped"])


if __name__ == "__main__":
    main()
