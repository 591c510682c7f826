"""The process that runs the simulated GPU for a plan: a request on stdin, answers on stdout."""

from __future__ import annotations

import sys

import msgspec

from vramkit.weights.planner.compare import make_plan
from vramkit.weights.planner.request import Answer, Failure, Progress, Request, Success


def main() -> None:
    def say(answer: Answer) -> None:
        sys.stdout.buffer.write(msgspec.json.encode(answer) + b"\n")
        sys.stdout.buffer.flush()

    request = msgspec.json.decode(sys.stdin.buffer.read(), type=Request)
    try:
        say(Success(make_plan(request, lambda what: say(Progress(what)))))
    except ValueError as error:
        say(Failure(type(error).__name__, str(error)))


if __name__ == "__main__":
    main()
