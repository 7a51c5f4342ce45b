"""A phone made of pyVoIP that answers each call. It prints what happens, an event a line.

| command | event |
|---|---|
| | `registered` |
| | `incoming`, `answered`, and `ended` when the other side hangs up |
| `stop` | `stopped` when it has unregistered |
"""

import argparse
import sys
import time

import pyVoIP
from pyVoIP.VoIP import CallState, PhoneStatus, VoIPPhone

# Longer than any machine takes.
TEST_TIMEOUT_S = 30


def say(*words):
    print(*words, flush=True)


def answer(call):
    say("incoming")
    call.answer()
    say("answered")
    while call.state == CallState.ANSWERED:
        time.sleep(0.05)
    say("ended")


def wait(phone, status):
    end = time.monotonic() + TEST_TIMEOUT_S
    while phone.get_status() != status:
        if time.monotonic() > end:
            raise TimeoutError(f"{phone.get_status()} after {TEST_TIMEOUT_S} s")
        time.sleep(0.05)


def main():
    parser = argparse.ArgumentParser()
    for name in ("--user", "--password"):
        parser.add_argument(name, required=True)
    for name in ("--port", "--own-port"):
        parser.add_argument(name, required=True, type=int)
    arguments = parser.parse_args()
    # What it does not understand is printed.
    pyVoIP.DEBUG = True
    phone = VoIPPhone(
        "127.0.0.1",
        arguments.port,
        arguments.user,
        arguments.password,
        myIP="127.0.0.1",
        callCallback=answer,
        sipPort=arguments.own_port,
    )
    phone.start()
    wait(phone, PhoneStatus.REGISTERED)
    say("registered")
    for line in sys.stdin:
        if line.strip() == "stop":
            phone.stop()
            wait(phone, PhoneStatus.INACTIVE)
            say("stopped")
            break


main()
