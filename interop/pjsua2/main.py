"""A phone made of PJSIP: it registers over TLS, calls, and hangs up.

It prints one line for each case: `ok NAME: DETAIL` or `FAIL NAME: REASON`.
"""

import argparse
import time

import pjsua2 as pj

# Longer than any machine takes.
TEST_TIMEOUT_S = 30


class Account(pj.Account):
    def __init__(self):
        super().__init__()
        self.codes = []

    def onRegState(self, prm):
        self.codes.append(prm.code)


class Call(pj.Call):
    def __init__(self, account):
        super().__init__(account)
        self.states = []
        self.codes = []

    def onCallState(self, prm):
        info = self.getInfo()
        self.states.append(info.state)
        self.codes.append(info.lastStatusCode)


def wait(endpoint, what, done):
    end = time.monotonic() + TEST_TIMEOUT_S
    while not done():
        if time.monotonic() > end:
            raise TimeoutError(f"nothing after {TEST_TIMEOUT_S} s: {what}")
        endpoint.libHandleEvents(20)


def registers(endpoint, account):
    wait(endpoint, "registration", lambda: account.codes)
    assert account.codes[0] == 200, f"answered {account.codes[0]}"
    return "200"


def calls(endpoint, account, uri):
    call = Call(account)
    call.makeCall(uri, pj.CallOpParam(True))
    confirmed, over = pj.PJSIP_INV_STATE_CONFIRMED, pj.PJSIP_INV_STATE_DISCONNECTED
    wait(endpoint, "answer", lambda: confirmed in call.states or over in call.states)
    assert confirmed in call.states, f"answered {call.codes}"
    call.hangup(pj.CallOpParam())
    wait(endpoint, "end of the call", lambda: over in call.states)
    # The 200 of the BYE; without it PJSIP reports a timeout.
    assert call.codes[-1] == 200, f"the BYE was answered {call.codes[-1]}"
    return "set up and ended"


def start(log, ca):
    endpoint = pj.Endpoint()
    endpoint.libCreate()
    config = pj.EpConfig()
    config.logConfig.consoleLevel = 0
    config.logConfig.level = 4
    config.logConfig.filename = log
    # Events come in wait() alone.
    config.uaConfig.threadCnt = 0
    config.uaConfig.mainThreadOnly = True
    endpoint.libInit(config)
    endpoint.audDevManager().setNullDev()
    transport = pj.TransportConfig()
    transport.tlsConfig.CaListFile = ca
    transport.tlsConfig.verifyServer = True
    endpoint.transportCreate(pj.PJSIP_TRANSPORT_TLS, transport)
    endpoint.libStart()
    return endpoint


def register(server):
    config = pj.AccountConfig()
    config.idUri = f"sip:alice@{server.split(';')[0]}"
    config.regConfig.registrarUri = f"sip:{server}"
    credentials = pj.AuthCredInfo("digest", "*", "alice", 0, "wonderland")
    config.sipConfig.authCreds.append(credentials)
    account = Account()
    account.create(config)
    return account


def refuses(endpoint, account):
    wait(endpoint, "registration", lambda: account.codes)
    # PJSIP's own code for a transport that cannot be had.
    assert account.codes[0] in (502, 503), f"answered {account.codes[0]}"
    return "no connection"


def attempt(name, case, *arguments):
    try:
        print(f"ok {name}: {case(*arguments)}", flush=True)
    except Exception as error:  # Whatever it is, it is this case's failure.
        text = getattr(error, "reason", "") or str(error) or type(error).__name__
        print(f"FAIL {name}: {text}", flush=True)


def main():
    parser = argparse.ArgumentParser()
    for name in ("--port", "--ca", "--log"):
        parser.add_argument(name, required=True)
    parser.add_argument("--refuses", action="store_true")
    arguments = parser.parse_args()
    server = f"localhost:{arguments.port};transport=tls"
    endpoint = start(arguments.log, arguments.ca)
    account = register(server)
    if arguments.refuses:
        attempt("refuses an unknown authority over TLS", refuses, endpoint, account)
    else:
        attempt("registers over TLS", registers, endpoint, account)
        attempt("calls over TLS", calls, endpoint, account, f"sip:test@{server}")
    account.shutdown()
    endpoint.libDestroy()


main()
